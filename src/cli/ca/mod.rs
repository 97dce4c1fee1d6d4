//! `quorate ca`: the two authorities of a cluster, and certificates of etcd's members and clients. The list of revoked ones and how far a
//! rotation is lie in etcd; no other of these commands needs it.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::connection::EtcdArgs;
use super::exit::Failure;
use crate::identity::NotMade;
use crate::identity::directory::DirectoryError;

mod crl;
mod init;
mod issue;
mod rotate;
mod show;
mod status;

pub use status::read;

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
    /// Put new authorities in the place of the present ones
    Rotate(rotate::RotateArgs),
    /// Show how far the rotation of the authorities is
    Status(status::StatusArgs),
    /// Print the list of revoked certificates, which etcd reads
    Crl(crl::CrlArgs),
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
pub async fn run(args: CaArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    match args.command {
        Command::Init(args) => init::run(&args),
        Command::Show(args) => show::run(&args),
        Command::Issue(args) => issue::run(args),
        Command::Rotate(args) => rotate::run(&args, etcd).await,
        Command::Status(args) => status::run(&args, etcd).await,
        Command::Crl(args) => crl::run(&args, etcd).await,
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
            DirectoryError::Read { .. } => failure.hint(
                "is --ca-dir right? It holds current/ with the authorities of the cluster; quorate ca init makes those of a new one",
            ),
            DirectoryError::Write { .. } | DirectoryError::Unusable { .. } => failure,
        }
    }
}
