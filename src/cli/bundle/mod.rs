//! `quorate bundle`: check, diff, rbac.

mod check;
mod diff;
mod rbac;

use std::path::Path;

use clap::{Args, Subcommand};

use super::connection::EtcdArgs;
use super::exit::Failure;
use crate::resources::Bundle;
use crate::resources::bundle::BUILTIN;

/// Arguments of `quorate bundle`.
#[derive(Args, Debug)]
pub struct BundleArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Check a bundle, and an upgrade to it, offline
    Check(check::CheckArgs),
    /// Show what would change in the cluster, by a server-side dry run
    Diff(diff::DiffArgs),
    /// Print the RBAC objects that the controller needs for a bundle
    Rbac(rbac::RbacArgs),
}

/// Runs the command.
///
/// # Errors
/// A failure with the exit code of the subcommand.
pub async fn run(args: BundleArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    match args.command {
        Command::Check(args) => check::run(&args),
        Command::Diff(args) => diff::run(&args, etcd).await,
        Command::Rbac(args) => rbac::run(&args),
    }
}

/// Loads the bundle of `--bundle`, or the built-in one without the flag.
///
/// # Errors
/// A usage failure that says what is wrong with the bundle.
pub fn of_flag(directory: Option<&Path>) -> Result<Bundle, Failure> {
    match directory {
        Some(directory) => {
            Bundle::load(directory).map_err(|error| Failure::usage(format!("--bundle: {error}")))
        }
        None => Ok(Bundle::builtin()),
    }
}

/// Loads the bundle in a directory; `builtin` is the built-in one, unless a directory has that name.
fn load(directory: &str) -> Result<Bundle, Failure> {
    if directory == BUILTIN && !Path::new(directory).exists() {
        return Ok(Bundle::builtin());
    }
    Bundle::load(Path::new(directory)).map_err(Failure::usage)
}
