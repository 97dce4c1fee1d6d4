//! `quorate expanded`: says in the nodes' place that they have expanded what is on a volume.

use clap::Args;

use super::REQUESTED;
use crate::cli::commit::{self, Decision};
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::Failure;
use crate::cli::objects::stored::Versioned;
use crate::cli::output::print;
use crate::proto::Volume;
use crate::store::object::condition;
use crate::store::object::volume::NODE_EXPANSION_PENDING;
use crate::store::{Name, Store};

/// Arguments of `quorate expanded`.
#[derive(Args, Debug)]
#[command(after_help = "\
Some plugins expand a volume in two parts: first the device, by the controller plugin, then the file system on it, by \
NodeExpandVolume on the node. Until then the volume has the condition NodeExpansionPending. Run this once that is done.

Example:
  quorate expanded data")]
pub struct ExpandedArgs {
    /// The volume
    #[arg(value_name = "VOLUME")]
    volume: Name,
}

/// Runs the command.
///
/// # Errors
/// 3 for a volume that does not exist.
pub async fn run(args: ExpandedArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let (store, name) = (connect(etcd).await?, &args.volume);
    let said = commit::settle(&store, REQUESTED, async || decide(&store, name).await).await?;
    print(&format!("volume/{name} {said}\n")).map(drop)
}

async fn decide(store: &Store, name: &Name) -> Result<Decision<&'static str>, Failure> {
    let stored: Versioned<Volume> = Versioned::read(store, name.as_str(), store.keys.volume(name)).await?;
    let mut volume = stored.object.clone();
    let status = volume.status.get_or_insert_default();
    if status.node_expansion_bytes == 0 {
        return Ok(Decision::Nothing(
            "has no expansion that its nodes have yet to do",
        ));
    }
    status.node_expansion_bytes = 0;
    condition::clear(&mut status.conditions, NODE_EXPANSION_PENDING);
    Ok(Decision::Write(stored.put(&volume), "is expanded on its nodes"))
}
