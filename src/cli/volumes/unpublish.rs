//! `quorate unpublish`: asks the leader to unpublish a volume from a node.

use clap::Args;

use super::{REQUESTED, force, stray, wait_for};
use crate::cli::commit::{self, Decision};
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::Failure;
use crate::cli::objects::stored::Versioned;
use crate::cli::output::print;
use crate::cli::wait::WaitArgs;
use crate::etcd::{KeyValue, Revision};
use crate::proto::Publication;
use crate::proto::publication_status::State;
use crate::store::object::Object;
use crate::store::object::publication::state;
use crate::store::{Name, Store};

/// Arguments of `quorate unpublish`.
#[derive(Args, Debug)]
#[command(after_help = "\
The node stops using the volume and confirms that; then the leader unpublishes it through the volume's plugin and deletes \
the publication. --confirm confirms in the node's place that it no longer uses the volume. Data may be lost if that is not \
true. A node that was deleted, or declared out of service (quorate drain NODE --out-of-service), need not confirm.

--node-id unpublishes the volume from a node id that no publication stores: quorate describe volume names it where the plugin \
lists one. Data may be lost if a node uses the volume under that id.

--force deletes the record of a publication that the plugin will never confirm to have ended, or that cannot be read; a \
tombstone keeps what may be left at the backend. Other nodes get the volume at once. If a call for the publication may be under \
way, the volume keeps its node id: the volume is published there again, and deleted, only after the plugin has unpublished it.

--node-id with --force gives that up, for a node id that the plugin will never confirm. Data may be lost if a call is under way.

Examples:
  quorate unpublish data n1
  quorate unpublish data n1 --confirm --wait
  quorate unpublish data --node-id csi-n9 --wait
  quorate unpublish data n1 --force
  quorate unpublish data --node-id csi-n9 --force")]
pub struct UnpublishArgs {
    /// The volume
    #[arg(value_name = "VOLUME")]
    volume: Name,

    /// The node
    #[arg(value_name = "NODE", required_unless_present = "node_id")]
    node: Option<Name>,

    /// Unpublish it from this node id of the plugin, which no publication stores
    #[arg(long, value_name = "ID", conflicts_with_all = ["node", "confirm"], value_parser = clap::builder::NonEmptyStringValueParser::new())]
    node_id: Option<String>,

    /// Confirm in the node's place that it no longer uses the volume
    #[arg(long)]
    confirm: bool,

    /// Delete the record alone, and leave a tombstone; with --node-id, no longer unpublish the volume from there
    #[arg(long, conflicts_with_all = ["confirm", "wait"])]
    force: bool,

    /// Do not ask for confirmation
    #[arg(short, long, requires = "force")]
    yes: bool,

    #[command(flatten)]
    wait: WaitArgs,
}

/// Runs the command.
///
/// # Errors
/// 3 for a volume that is not published to the node, or is not being unpublished from the node id, or does not exist, 4 for a node id
/// that a publication stores, 2 after the timeout.
pub async fn run(args: UnpublishArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let store = connect(etcd).await?;
    match (&args.node, &args.node_id) {
        (Some(node), _) if args.force => force::unpublish(&store, &args.volume, node, args.yes).await,
        (Some(node), _) => unpublish(&store, &args, node).await,
        (None, Some(node_id)) if args.force => stray::withdraw(&store, &args.volume, node_id, args.yes).await,
        (None, Some(node_id)) => stray::unpublish(&store, &args.volume, node_id, &args.wait).await,
        (None, None) => Err(Failure::usage("no node is given")),
    }
}

async fn unpublish(store: &Store, args: &UnpublishArgs, node: &Name) -> Result<(), Failure> {
    let id = format!("{}/{node}", args.volume);
    let key = store.keys.publication(&args.volume, node);
    let (before, _) = store.etcd.get(&key).await?;
    let created = before.map_or(Revision::ABSENT, |kv| kv.create_revision);
    let said = commit::settle(store, REQUESTED, async || decide(store, args, node, &key).await).await?;
    print(&format!("publication/{id} {said}\n"))?;
    if !args.wait.wait {
        return Ok(());
    }
    // A publication that is created later is another one.
    let is_gone = |kv: Option<&KeyValue>| Ok(kv.filter(|kv| kv.create_revision == created).is_none());
    wait_for(store, &args.volume, node, args.wait.timeout, is_gone).await?;
    print(&format!("publication/{id} is gone\n")).map(drop)
}

async fn decide(
    store: &Store,
    args: &UnpublishArgs,
    node: &Name,
    key: &[u8],
) -> Result<Decision<String>, Failure> {
    let id = format!("{}/{node}", args.volume);
    let Some(stored) = Versioned::<Publication>::find(store, &id, key.to_vec()).await? else {
        return Err(
            Failure::not_found(format!("volume {} is not published to node {node}", args.volume))
                .hint("quorate get publications lists where volumes are"),
        );
    };
    let mut publication = stored.object.clone();
    let (before, was_again) = (
        state(&publication),
        publication.spec.as_ref().is_some_and(|spec| spec.again),
    );
    let after = match before {
        // The node never got the volume.
        State::PendingPublish => State::PendingUnpublish,
        State::Published | State::PendingNodeUnpublish if args.confirm => State::PendingUnpublish,
        State::Published => State::PendingNodeUnpublish,
        State::PendingNodeUnpublish | State::PendingUnpublish | State::Unspecified => before,
    };
    let said = match after {
        State::PendingNodeUnpublish => {
            "waits for its node to confirm that it no longer uses the volume".to_owned()
        }
        _ => "will be unpublished".to_owned(),
    };
    if after == before && !was_again {
        return Ok(Decision::Nothing(said));
    }
    let spec = publication.spec.get_or_insert_default();
    (spec.again, spec.again_read_only) = (false, None);
    publication.status.get_or_insert_default().set_state(after);
    publication.next_generation();
    Ok(Decision::Write(stored.put(&publication), said))
}
