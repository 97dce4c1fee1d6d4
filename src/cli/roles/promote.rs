//! `quorate promote`.

use clap::Args;

use super::request::{promote, read_node};
use super::wait;
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::Failure;
use crate::cli::output::{Reader, print};
use crate::cli::wait::WaitArgs;
use crate::store::Name;

/// Arguments of `quorate promote`.
#[derive(Args, Debug)]
#[command(after_help = "\
The desired role becomes manager, and the leader makes the node a manager at once. An agent that keeps the etcd of its node \
(--peer-url) then lets that join and starts it, and --wait waits until its member votes. On a node without such an agent, a manager is no \
member of etcd yet: quorate join lets its etcd join, and --wait waits for the role alone. Before the leader has made the node a \
manager, quorate demote withdraws the promotion; after that, a manager without a member is not demoted (rule NotAMember) but joins, \
or is deleted. If one of the nodes does not exist, none is promoted.

Examples:
  quorate promote n4 --wait       # with an agent that keeps its etcd: until its member votes
  quorate join n4 --peer-url https://10.0.0.4:2380 -o env \\
    > etcd.env.new && mv etcd.env.new /etc/etcd.env")]
pub struct PromoteArgs {
    /// The nodes
    #[arg(value_name = "NODE", required = true)]
    nodes: Vec<Name>,

    #[command(flatten)]
    wait: WaitArgs,
}

/// Runs the command.
///
/// # Errors
/// 3 for a node that does not exist, 2 if the time is over.
pub async fn run(args: PromoteArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let store = connect(etcd).await?;
    // Before any of them is promoted.
    for name in &args.nodes {
        read_node(&store, name).await?;
    }
    for name in &args.nodes {
        let done = promote(&store, name).await?;
        let _: Reader = print(&format!("{done}\n"))?;
    }
    if args.wait.wait {
        wait::for_managers(&store, &args.nodes, args.wait.timeout).await?;
    }
    Ok(())
}
