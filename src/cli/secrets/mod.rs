//! `quorate secrets`: how the values of Secrets lie in etcd.

use clap::{Args, Subcommand, ValueEnum};

use super::connection::EtcdArgs;
use super::exit::Failure;

mod rotate;
mod status;

/// Arguments of `quorate secrets`.
#[derive(Args, Debug)]
pub struct SecretsArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Show with which key each Secret is encrypted
    Status(status::StatusArgs),
    /// Encrypt every Secret with the first key
    Rotate(rotate::RotateArgs),
}

/// How the answer is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Shape {
    /// One line per Secret
    #[default]
    Table,
    /// One document
    Json,
}

/// Runs the command.
///
/// # Errors
/// A failure with the exit code of the subcommand.
pub async fn run(args: SecretsArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    match args.command {
        Command::Status(args) => status::run(&args, etcd).await,
        Command::Rotate(args) => rotate::run(&args, etcd).await,
    }
}

/// A count with its noun: `1 secret`, `2 secrets`.
fn secrets(count: usize) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} secret{plural}")
}
