//! `quorate completions`: prints the completion script of a shell.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;
use super::exit::Failure;
use super::output::{Reader, print};

/// What follows the script for bash: names of objects as etcd has them. The library's own way to names that the program looks up
/// (its feature `unstable-dynamic`) gives a word without those before it, so that the kind of `get nodes N` is unknown.
const NAMES: &str = include_str!("completions.bash");

/// Arguments of `quorate completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// Runs the command.
///
/// # Errors
/// 1 if the script cannot be written.
pub fn run(args: CompletionsArgs) -> Result<(), Failure> {
    // The generator panics if a write fails, so it writes to memory, where none does.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "quorate", &mut script);
    if args.shell == Shell::Bash {
        script.extend_from_slice(NAMES.as_bytes());
    }
    let _: Reader = print(&String::from_utf8_lossy(&script))?;
    Ok(())
}
