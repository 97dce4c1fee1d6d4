//! `quorate apply`.

use clap::Args;

use crate::cli::connection::EtcdArgs;
use crate::cli::exit::Failure;

/// Arguments of the command.
#[derive(Args, Debug)]
pub struct ApplyArgs {}

/// Runs the command.
pub async fn run(_args: ApplyArgs, _etcd: &EtcdArgs) -> Result<(), Failure> {
    Err(Failure::failed("not yet"))
}
