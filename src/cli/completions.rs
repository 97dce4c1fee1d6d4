//! `quorate completions`: the completion script of a shell, on stdout.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;
use super::exit::Failure;

/// Arguments of `quorate completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// Writes the script to stdout.
pub fn run(args: CompletionsArgs) -> Result<(), Failure> {
    clap_complete::generate(args.shell, &mut Cli::command(), "quorate", &mut std::io::stdout());
    Ok(())
}
