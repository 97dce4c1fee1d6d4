//! A benchmark as a program: whether it is chosen, how much it measures, and how it is interrupted.

use anyhow::{Result, bail};

/// Runs `measure` if the arguments choose the benchmark of this name: cargo passes `--bench` and the words that were given, one of
/// which the name must contain. `measure` gets whether `--small` is among them.
pub fn run(name: &str, args: &[String], measure: impl AsyncFnOnce(bool) -> Result<()>) -> Result<()> {
    let mut words = args.iter().filter(|arg| !arg.starts_with('-')).peekable();
    if words.peek().is_some() && !words.any(|word| name.contains(word.as_str())) {
        return Ok(());
    }
    let small = args.iter().any(|arg| arg == "--small");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::select! {
            measured = measure(small) => measured,
            // Dropping what is measured ends its processes and removes its files.
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        }
    })
}
