//! `quorate demote`.

use clap::Args;

use super::request::{Outcome, demote, plan_demotion};
use super::wait;
use crate::cli::confirm;
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::Failure;
use crate::cli::output::{Reader, print};
use crate::cli::wait::WaitArgs;
use crate::proto::Role;
use crate::store::Name;

/// Arguments of `quorate demote`.
#[derive(Args, Debug)]
#[command(after_help = "\
The desired role becomes worker. The leader then moves etcd's leadership off the node's member if need be, removes the \
member, and makes the node a worker. A demotion that the leader has not begun can be taken back with quorate promote; \
after that the node has to join again.

Refused are the demotion of the last manager (rule LastManager), of a manager that is not in the member list \
(NotAMember), and one that would leave etcd without a healthy quorum (QuorumRisk). Nothing is changed then.

Examples:
  quorate demote n4 --wait --timeout 2m
  quorate demote --yes n4")]
pub struct DemoteArgs {
    /// The node
    #[arg(value_name = "NODE")]
    node: Name,

    /// Do not ask
    #[arg(short, long)]
    yes: bool,

    #[command(flatten)]
    wait: WaitArgs,
}

/// Runs the command.
///
/// # Errors
/// 3 for a node that does not exist, 4 for a refusal, 5 if another client changed the node meanwhile, 2 after the time-out, 64
/// if standard input is no terminal to ask on.
pub async fn run(args: DemoteArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    confirm::require(args.yes, "demote")?;
    let store = connect(etcd).await?;
    let name = &args.node;
    let planned = plan_demotion(&store, name).await?;
    if !args.yes && planned.is_change() {
        confirm::ask(&[&planned.statement], "nothing was changed")?;
    }
    let line = match demote(&store, name, planned).await? {
        Outcome::Requested => format!("node/{name} will become a worker\n"),
        Outcome::Already => format!("node/{name} is a desired worker already\n"),
    };
    let _: Reader = print(&line)?;
    if args.wait.wait {
        wait::for_roles(
            &store,
            std::slice::from_ref(name),
            Role::Worker,
            args.wait.timeout,
        )
        .await?;
    }
    Ok(())
}
