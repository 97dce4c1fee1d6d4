//! `quorate dev`: a whole cluster on this machine.

use clap::Args;

use super::exit::Failure;

/// Arguments of the command.
#[derive(Args, Debug)]
pub struct DevArgs {}

/// Runs the command.
pub async fn run(_args: DevArgs) -> Result<(), Failure> {
    Err(Failure::failed("not yet"))
}
