//! `quorate ca`: the two authorities of a cluster, and certificates of etcd's members and clients. None of these commands needs
//! etcd.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::exit::Failure;
use crate::identity::NotMade;
use crate::identity::directory::DirectoryError;

mod init;
mod issue;
mod show;

/// Arguments of `quorate ca`.
#[derive(Args, Debug)]
pub struct CaArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Make the two authorities of a cluster
    Init(init::InitArgs),
    /// Show the authorities, and whether they can sign
    Show(show::ShowArgs),
    /// Issue a certificate with its key
    Issue(issue::IssueArgs),
}

/// The directory that `quorate ca init` has written.
#[derive(Args, Debug)]
pub struct CaDir {
    /// Directory of the authorities
    #[arg(long, value_name = "DIR", env = "QUORATE_CA_DIR")]
    pub ca_dir: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// A failure with the exit code of the subcommand.
pub fn run(args: CaArgs) -> Result<(), Failure> {
    match args.command {
        Command::Init(args) => init::run(&args),
        Command::Show(args) => show::run(&args),
        Command::Issue(args) => issue::run(args),
    }
}

impl From<NotMade> for Failure {
    fn from(error: NotMade) -> Self {
        Self::failed(error)
    }
}

impl From<DirectoryError> for Failure {
    fn from(error: DirectoryError) -> Self {
        let failure = Self::failed(&error);
        match error {
            DirectoryError::Exists(_) => Self::new(super::exit::Exit::Conflict, error).hint(
                "authorities are not overwritten: whatever trusts them would refuse what the new ones sign; move them away first",
            ),
            DirectoryError::Read { .. } => failure.hint("quorate ca init makes the authorities of a cluster"),
            DirectoryError::Write { .. } | DirectoryError::Unusable { .. } => failure,
        }
    }
}
