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
    /// Check a bundle offline, and what an upgrade to it means
    Check(check::CheckArgs),
    /// Show what would change in the cluster, by the API server's own dry run
    Diff(diff::DiffArgs),
    /// Print the permissions that keeping a bundle in place takes, as YAML
    Rbac(rbac::RbacArgs),
}

/// Runs the command.
///
/// # Errors
/// A failure that says what is wrong and where.
pub async fn run(args: BundleArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    match args.command {
        Command::Check(args) => check::run(&args),
        Command::Diff(args) => diff::run(&args, etcd).await,
        Command::Rbac(args) => rbac::run(&args),
    }
}

/// The bundle that `--bundle` names, or the built-in one. For `run`, and for `quorate dev`.
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

/// Loads the bundle in a directory, or the built-in one.
fn load(directory: &str) -> Result<Bundle, Failure> {
    if directory == BUILTIN && !Path::new(directory).exists() {
        return Ok(Bundle::builtin());
    }
    Bundle::load(Path::new(directory)).map_err(Failure::usage)
}
