//! `quorate drain`: a node gets nothing new, or is given up.

use clap::Args;

use super::{Request, carry_out};
use crate::cli::confirm;
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::Failure;
use crate::cli::output::print;
use crate::cli::roles::request::read_node;
use crate::proto::node_spec::Availability;
use crate::store::object::Object;
use crate::store::{Name, Store};

/// Arguments of `quorate drain`.
#[derive(Args, Debug)]
#[command(after_help = "\
Sets the node's availability to drain. --out-of-service says besides that the node is off, or cut off for good: every \
volume that is published to it is unpublished from it without asking it, so that another node can have it. Say so only \
if nothing on the node can write any more, as two writers destroy a file system.

It is taken back by applying the node with availability: active and outOfService: false.

Examples:
  quorate drain n1
  quorate drain n1 --out-of-service")]
pub struct DrainArgs {
    /// The node
    #[arg(value_name = "NODE")]
    node: Name,

    /// Take what is published to the node from it without asking it
    #[arg(long)]
    out_of_service: bool,

    /// Do not ask whether the node is to be out of service
    #[arg(short, long)]
    yes: bool,
}

/// Runs the command.
///
/// # Errors
/// 3 for a node that does not exist, 64 where nobody can be asked.
pub async fn run(args: DrainArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let node = &args.node;
    let what = format!("declare node {node} out of service");
    confirm::require(args.yes || !args.out_of_service, &what)?;
    let store = connect(etcd).await?;
    // Before anyone is asked about a node that does not exist.
    decide(&store, &args).await?;
    if args.out_of_service && !args.yes {
        let statement = format!(
            "node/{node} is declared out of service: its volumes are unpublished from it without asking it, and may be \
             published elsewhere"
        );
        confirm::ask(&[&statement], "nothing was changed")?;
    }
    let said = carry_out(&store, || decide(&store, &args)).await?;
    print(&format!("node/{node} {said}\n")).map(drop)
}

async fn decide(store: &Store, args: &DrainArgs) -> Result<Request, Failure> {
    let DrainArgs {
        node, out_of_service, ..
    } = args;
    let stored = read_node(store, node).await?;
    let mut described = stored.object.clone();
    let spec = described.spec.get_or_insert_default();
    let said = match out_of_service {
        true => "is out of service",
        false => "is set to drain",
    };
    if spec.availability() == Availability::Drain && (spec.out_of_service || !out_of_service) {
        return Ok(Request::Nothing(format!("{said} already")));
    }
    spec.set_availability(Availability::Drain);
    spec.out_of_service |= *out_of_service;
    described.next_generation();
    Ok(Request::Write(stored.put(&described), said.to_owned()))
}
