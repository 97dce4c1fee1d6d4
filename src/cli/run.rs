//! `quorate run`: a replica of the controller.

use clap::Args;

use super::connection::EtcdArgs;
use super::exit::Failure;

/// Arguments of the command.
#[derive(Args, Debug)]
pub struct RunArgs {}

/// Runs the command.
pub async fn run(_args: RunArgs, _etcd: &EtcdArgs) -> Result<(), Failure> {
    Err(Failure::failed("not yet"))
}
