//! `quorate completions`: the completion script of a shell, on stdout.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;
use super::exit::Failure;
use super::output::{Reader, print};

/// Arguments of `quorate completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// Writes the script to stdout.
///
/// # Errors
/// A failure if it cannot be written.
pub fn run(args: CompletionsArgs) -> Result<(), Failure> {
    // In memory first, where writing cannot fail: the generator panics if it does.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "quorate", &mut script);
    let _: Reader = print(&String::from_utf8_lossy(&script))?;
    Ok(())
}
