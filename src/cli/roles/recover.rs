//! `quorate recover plan`: what to do for this very cluster after it has lost its quorum.

use clap::{Args, Subcommand};

use super::facts::Facts;
use crate::cli::connection::{EtcdArgs, connect_without_quorum};
use crate::cli::exit::Failure;
use crate::cli::output::{Reader, print};

mod steps;

/// Arguments of `quorate recover`.
#[derive(Args, Debug)]
pub struct RecoverArgs {
    #[command(subcommand)]
    command: RecoverCommand,
}

#[derive(Subcommand, Debug)]
enum RecoverCommand {
    /// Print the steps for this cluster; changes nothing
    #[command(after_help = "\
The command asks every member by itself, so it needs no quorum; one member that answers is enough. It says whether there is a \
quorum, which member has the most data, and each step by which the cluster comes back from that member, or from a snapshot.

Examples:
  quorate recover plan --etcd-endpoints http://10.0.0.1:2379,http://10.0.0.2:2379,http://10.0.0.3:2379")]
    Plan,
}

/// Runs the command.
///
/// # Errors
/// 1 if no member answers.
pub async fn run(args: RecoverArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let RecoverCommand::Plan = args.command;
    let store = connect_without_quorum(etcd).await.map_err(|failure| {
        failure.hint(
            "no member answers, so none says what it holds: start one with its data, or restore a snapshot (docs/recover.md)",
        )
    })?;
    let facts = Facts::with_health(&store).await?;
    print(&steps::steps(&facts.membership)).map(|_: Reader| ())
}
