//! `quorate drain`: nothing new goes to a node, or its volumes are taken from it.

use clap::Args;

use super::REQUESTED;
use crate::cli::commit::{self, Decision};
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
Sets the node's availability to drain: nothing new is published to it. A publication that was requested before, and that the leader \
has not begun, waits; what is published stays. With --out-of-service, the node is also declared off, or cut off for good: every \
volume that is published to it is unpublished without its confirmation, so that another node can have the volume. Declare \
it only if nothing on the node can write any more: two writers destroy a file system.

To undo it, apply the node with availability: active and outOfService: false.

Examples:
  quorate drain n1
  quorate drain n1 --out-of-service")]
pub struct DrainArgs {
    /// The node
    #[arg(value_name = "NODE")]
    node: Name,

    /// Unpublish the node's volumes without its confirmation
    #[arg(long)]
    out_of_service: bool,

    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

/// Runs the command.
///
/// # Errors
/// 3 for a node that does not exist, 64 without a terminal to ask for confirmation.
pub async fn run(args: DrainArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let node = &args.node;
    let what = format!("declare node {node} out of service");
    confirm::require(args.yes || !args.out_of_service, &what)?;
    let store = connect(etcd).await?;
    // A node that does not exist needs no confirmation.
    decide(&store, &args).await?;
    if args.out_of_service && !args.yes {
        let statement = format!(
            "node/{node} is declared out of service: its volumes are unpublished without its confirmation, and may be \
             published elsewhere"
        );
        confirm::ask(&[&statement], "nothing was changed")?;
    }
    let said = commit::settle(&store, REQUESTED, async || decide(&store, &args).await).await?;
    print(&format!("node/{node} {said}\n")).map(drop)
}

async fn decide(store: &Store, args: &DrainArgs) -> Result<Decision<String>, Failure> {
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
        return Ok(Decision::Nothing(said.replacen("is", "is already", 1)));
    }
    spec.set_availability(Availability::Drain);
    spec.out_of_service |= *out_of_service;
    described.next_generation();
    Ok(Decision::Write(stored.put(&described), said.to_owned()))
}
