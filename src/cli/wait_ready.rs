//! `quorate wait-ready`: block until the reconciled state admits a release.

use clap::Args;

use super::connection::EtcdArgs;
use super::exit::Failure;

/// Arguments of the command.
#[derive(Args, Debug)]
pub struct WaitReadyArgs {}

/// Runs the command.
pub async fn run(_args: WaitReadyArgs, _etcd: &EtcdArgs) -> Result<(), Failure> {
    Err(Failure::failed("not yet"))
}
