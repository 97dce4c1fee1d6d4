//! `quorate demote`.

use clap::Args;

use super::request::{demote, plan_demotion};
use super::wait;
use crate::cli::confirm;
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::Failure;
use crate::cli::output::{Reader, note, print};
use crate::cli::wait::WaitArgs;
use crate::store::Name;

/// Arguments of `quorate demote`.
#[derive(Args, Debug)]
#[command(after_help = "\
The desired role becomes worker. The leader then transfers raft leadership away from the node's member if it has it, \
removes the member, and makes the node a worker. Until the leader asks etcd to remove the member, quorate promote withdraws a \
demotion; after that, the node must join again. Without --wait the command does not say whether it is carried out: quorate \
describe node says what holds it up.

A demotion is refused for the last manager (rule LastManager), for a manager without a member in etcd's list \
(NotAMember), and if it would leave etcd without a healthy quorum (QuorumRisk). Nothing is changed then. The command says how many \
voters etcd can lose afterwards: two voters tolerate no loss, and four no more than three.

Examples:
  quorate demote n4 --wait --timeout 2m
  quorate demote --yes n4")]
pub struct DemoteArgs {
    /// The node
    #[arg(value_name = "NODE")]
    node: Name,

    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,

    #[command(flatten)]
    wait: WaitArgs,
}

/// Runs the command.
///
/// # Errors
/// 3 for a node that does not exist, 4 if it is refused, 5 if others changed it meanwhile, 2 if the time is over, 64 if
/// standard input is not a terminal and `--yes` is not given.
pub async fn run(args: DemoteArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    confirm::require(args.yes, "demote")?;
    let store = connect(etcd).await?;
    let name = &args.node;
    let planned = plan_demotion(&store, name).await?;
    match (planned.txn.is_some(), args.yes) {
        (true, false) => confirm::ask(&[&planned.statement], "nothing was changed")?,
        (true, true) => note(&planned.statement),
        (false, _) => {}
    }
    let done = demote(&store, name, planned).await?;
    let _: Reader = print(&format!("{done}\n"))?;
    if args.wait.wait {
        wait::for_worker(&store, name, args.wait.timeout).await?;
    }
    Ok(())
}
