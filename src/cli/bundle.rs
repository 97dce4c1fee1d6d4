//! `quorate bundle`: check, diff, rbac.

use clap::Args;

use super::connection::EtcdArgs;
use super::exit::Failure;

/// Arguments of the command.
#[derive(Args, Debug)]
pub struct BundleArgs {}

/// Runs the command.
pub async fn run(_args: BundleArgs, _etcd: &EtcdArgs) -> Result<(), Failure> {
    Err(Failure::failed("not yet"))
}
