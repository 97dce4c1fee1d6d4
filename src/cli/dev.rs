//! `quorate dev`: quorate-dev is a program of its own, which takes the place of this one.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::companion;
use super::exit::Failure;

/// Carries this program's path to quorate-dev, which starts replicas of it.
pub const PROGRAM_VARIABLE: &str = "QUORATE_PROGRAM";

/// Replaces this process with quorate-dev, which is given the whole command line.
///
/// # Errors
/// A failure if quorate-dev cannot be found or started. Otherwise this never returns.
pub fn run() -> Result<(), Failure> {
    let this = env::current_exe()
        .map_err(|error| Failure::failed(format!("cannot find the file of this program: {error}")))?;
    let program = companion::find("quorate-dev").ok_or_else(|| {
        let beside = this.parent().unwrap_or(&this).display();
        Failure::failed(format!(
            "`quorate dev` needs the program quorate-dev, which is neither in {beside} nor on PATH"
        ))
        .hint("in Quorate's sources, `make run` or `cargo build --workspace` builds it; the images hold none")
    })?;
    let mut arguments = env::args_os();
    // Help, errors and printed commands name the program as the user did.
    let called = arguments.next().unwrap_or_else(|| "quorate".into());
    let failed = Command::new(&program)
        .arg0(called)
        .args(arguments)
        .env(PROGRAM_VARIABLE, this)
        .exec();
    Err(Failure::failed(format!(
        "cannot start {}: {failed}",
        program.display()
    )))
}
