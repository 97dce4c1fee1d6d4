//! `quorate unpublish`: a node is to lose a volume.

use clap::Args;

use super::{Request, carry_out, wait_for};
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::{Exit, Failure};
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
The node is to stop using the volume and confirms that; then the leader unpublishes it through the volume's plugin, and \
the publication is gone. --confirm says in the node's place that it uses the volume no more: say so only if that is true, \
as data may be lost otherwise. A node that was deleted, or declared out of service (quorate drain NODE --out-of-service), \
is not asked.

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

    /// Say in the node's place that it uses the volume no more
    #[arg(long)]
    confirm: bool,

    #[command(flatten)]
    wait: WaitArgs,
}

/// Runs the command.
///
/// # Errors
/// 3 for what is not published, 2 if the time is over.
pub async fn run(args: UnpublishArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let store = connect(etcd).await?;
    let id = format!("{}/{}", args.volume, args.node);
    let key = store.keys.publication(&args.volume, &args.node);
    let (before, _) = store.etcd.get(&key).await.map_err(Failure::failed)?;
    let created = before.map_or(Revision::ABSENT, |kv| kv.create_revision);
    let said = carry_out(&store, || decide(&store, &args, &key)).await?;
    print(&format!("publication/{id} {said}\n"))?;
    if !args.wait.wait {
        return Ok(());
    }
    // By the time that it came to be: one that is asked for later is another.
    let is_gone = |kv: Option<&KeyValue>| Ok(kv.filter(|kv| kv.create_revision == created).is_none());
    wait_for(&store, &args.volume, &args.node, args.wait.timeout, is_gone).await?;
    print(&format!("publication/{id} is gone\n")).map(drop)
}

async fn decide(store: &Store, args: &UnpublishArgs, key: &[u8]) -> Result<Request, Failure> {
    let id = format!("{}/{}", args.volume, args.node);
    let Some(stored) = Versioned::<Publication>::find(store, &id, key.to_vec()).await? else {
        return Err(Failure::new(
            Exit::NotFound,
            format!("volume {} is not published to node {}", args.volume, args.node),
        )
        .hint("quorate get publications lists where volumes are"));
    };
    let mut publication = stored.object.clone();
    let (before, was_again) = (
        state(&publication),
        publication.spec.as_ref().is_some_and(|spec| spec.again),
    );
    let after = match before {
        // The node never got it.
        State::PendingPublish => State::PendingUnpublish,
        State::Published | State::PendingNodeUnpublish if args.confirm => State::PendingUnpublish,
        State::Published => State::PendingNodeUnpublish,
        State::PendingNodeUnpublish | State::PendingUnpublish | State::Unspecified => before,
    };
    let said = match after {
        State::PendingNodeUnpublish => "waits for its node to confirm that it uses it no more".to_owned(),
        _ => "is to be unpublished".to_owned(),
    };
    if after == before && !was_again {
        return Ok(Request::Nothing(said));
    }
    publication.spec.get_or_insert_default().again = false;
    publication.status.get_or_insert_default().set_state(after);
    publication.next_generation();
    Ok(Request::Write(stored.put(&publication), said))
}
