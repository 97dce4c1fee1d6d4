//! `quorate expanded`: says in the nodes' place that they have expanded what is on a volume.

use clap::Args;

use super::REQUESTED;
use crate::cli::commit::{self, Decision};
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::Failure;
use crate::cli::objects::stored::Versioned;
use crate::cli::output::print;
use crate::proto::{Publication, Volume};
use crate::store::object::publication::is_on_node;
use crate::store::object::volume::format_bytes;
use crate::store::{Name, Store};
use crate::volumes::record;

/// Arguments of `quorate expanded`.
#[derive(Args, Debug)]
#[command(after_help = "\
Some plugins expand a volume in two parts: first the device, by the controller plugin, then the file system on it, by \
NodeExpandVolume on the node. Until then the volume has the condition NodeExpansionPending. Run this once that is done: with a \
node for that node, which is how each node that has the volume confirms it, without one for all of them.

Examples:
  quorate expanded data n1
  quorate expanded data")]
pub struct ExpandedArgs {
    /// The volume
    #[arg(value_name = "VOLUME")]
    volume: Name,

    /// The node that has expanded what is on it; without one, all nodes have
    #[arg(value_name = "NODE")]
    node: Option<Name>,
}

/// Runs the command.
///
/// # Errors
/// 3 for a volume that does not exist, or is not published to the node, 4 for a publication that has not begun or has ended, 5 if the
/// volume was expanded again meanwhile.
pub async fn run(args: ExpandedArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let store = connect(etcd).await?;
    let mut confirmed = None;
    let said = commit::settle(&store, REQUESTED, async || {
        decide(&store, &args, &mut confirmed).await
    });
    print(&format!("volume/{} {}\n", args.volume, said.await?)).map(drop)
}

/// `confirmed` is the capacity of the first decision: a later expansion needs more of the nodes, which is not confirmed.
async fn decide(
    store: &Store,
    args: &ExpandedArgs,
    confirmed: &mut Option<i64>,
) -> Result<Decision<String>, Failure> {
    let ExpandedArgs { volume: name, node } = args;
    let stored: Versioned<Volume> = Versioned::read(store, name.as_str(), store.keys.volume(name)).await?;
    let status = stored.object.status.as_ref();
    let due = status.map_or(0, |status| status.node_expansion_bytes);
    if due > *confirmed.get_or_insert(due) {
        let why = format!("it was expanded to {} meanwhile", format_bytes(due));
        return Err(Failure::conflict(why).hint("expand what is on it again, and then run this again"));
    }
    if due == 0 {
        let said = "has no expansion that its nodes have yet to do";
        return Ok(Decision::Nothing(said.to_owned()));
    }
    let Some(node) = node else {
        let txn = stored.put(&record::node_expanded(&stored.object, due));
        return Ok(Decision::Write(txn, "is expanded on its nodes".to_owned()));
    };
    let id = format!("{name}/{node}");
    let key = store.keys.publication(name, node);
    let Some(published) = Versioned::<Publication>::find(store, &id, key).await? else {
        let why = format!("volume {name} is not published to node {node}");
        return Err(Failure::not_found(why).hint("quorate get publications lists where volumes are"));
    };
    if !is_on_node(&published.object) {
        let why = format!("the volume is not on node {node} yet, or no longer: publication/{id}");
        let hint =
            "a node confirms while its publication is published; quorate get publications shows the states";
        return Err(Failure::refused("NotPublished", why).hint(hint));
    }
    let mut publication = published.object.clone();
    publication.status.get_or_insert_default().expanded_bytes = due;
    let txn = published
        .put(&publication)
        .when_unchanged(&stored.key, stored.revision);
    Ok(Decision::Write(txn, format!("is expanded on node {node}")))
}
