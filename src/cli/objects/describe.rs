//! `quorate describe`.

use clap::Args;

use crate::cli::connection::EtcdArgs;
use crate::cli::exit::Failure;

/// Arguments of the command.
#[derive(Args, Debug)]
pub struct DescribeArgs {}

/// Runs the command.
pub async fn run(_args: DescribeArgs, _etcd: &EtcdArgs) -> Result<(), Failure> {
    Err(Failure::failed("not yet"))
}
