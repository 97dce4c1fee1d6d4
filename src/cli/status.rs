//! `quorate status`: leader, gate and replicas at a glance.

use clap::Args;

use super::connection::EtcdArgs;
use super::exit::Failure;

/// Arguments of the command.
#[derive(Args, Debug)]
pub struct StatusArgs {}

/// Runs the command.
pub async fn run(_args: StatusArgs, _etcd: &EtcdArgs) -> Result<(), Failure> {
    Err(Failure::failed("not yet"))
}
