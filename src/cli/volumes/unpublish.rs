//! `quorate unpublish`: asks the leader to unpublish a volume from a node.

use clap::Args;

use super::{REQUESTED, wait_for};
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

Examples:
  quorate unpublish data n1
  quorate unpublish data n1 --confirm --wait")]
pub struct UnpublishArgs {
    /// The volume
    #[arg(value_name = "VOLUME")]
    volume: Name,

    /// The node
    #[arg(value_name = "NODE")]
    node: Name,

    /// Confirm in the node's place that it no longer uses the volume
    #[arg(long)]
    confirm: bool,

    #[command(flatten)]
    wait: WaitArgs,
}

/// Runs the command.
///
/// # Errors
/// 3 for a volume that is not published to the node, 2 after the timeout.
pub async fn run(args: UnpublishArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let store = connect(etcd).await?;
    let id = format!("{}/{}", args.volume, args.node);
    let key = store.keys.publication(&args.volume, &args.node);
    let (before, _) = store.etcd.get(&key).await?;
    let created = before.map_or(Revision::ABSENT, |kv| kv.create_revision);
    let said = commit::settle(&store, REQUESTED, async || decide(&store, &args, &key).await).await?;
    print(&format!("publication/{id} {said}\n"))?;
    if !args.wait.wait {
        return Ok(());
    }
    // A publication that is created later is another one.
    let is_gone = |kv: Option<&KeyValue>| Ok(kv.filter(|kv| kv.create_revision == created).is_none());
    wait_for(&store, &args.volume, &args.node, args.wait.timeout, is_gone).await?;
    print(&format!("publication/{id} is gone\n")).map(drop)
}

async fn decide(store: &Store, args: &UnpublishArgs, key: &[u8]) -> Result<Decision<String>, Failure> {
    let id = format!("{}/{}", args.volume, args.node);
    let Some(stored) = Versioned::<Publication>::find(store, &id, key.to_vec()).await? else {
        return Err(Failure::not_found(format!(
            "volume {} is not published to node {}",
            args.volume, args.node
        ))
        .hint("quorate get publications lists where volumes are"));
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
