//! `quorate publish`: asks the leader to publish volumes to a node.

use std::time::{Duration, Instant};

use clap::Args;
use futures::future::try_join;
use futures::{StreamExt as _, TryFutureExt as _, stream};
use jiff::Timestamp;
use prost::Message;

use super::{REQUESTED, wait_for};
use crate::cli::commit::{self, Decision};
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::{Exit, Failure};
use crate::cli::objects::kinds::READ_AT_ONCE;
use crate::cli::objects::stored::{Versioned, malformed};
use crate::cli::output::{pairs, print};
use crate::cli::wait::WaitArgs;
use crate::etcd::{KeyValue, Txn};
use crate::proto::access_mode::{Scope, Sharing};
use crate::proto::node_spec::Availability as NodeAvailability;
use crate::proto::publication_status::State;
use crate::proto::volume_spec::Availability;
use crate::proto::{Metadata, Node, Publication, PublicationSpec, PublicationStatus, Volume};
use crate::store::object::publication::{
    is_published, may_write, node_uid, reads_only_next, state, state_word,
};
use crate::store::object::{Malformed, Object, decode, volume};
use crate::store::{Name, Store};

/// Arguments of `quorate publish`.
#[derive(Args, Debug)]
#[command(after_help = "\
The leader publishes each volume through its plugin, once the volume is created and the node reports a node id for the \
plugin. The command refuses a volume that is paused, drained or marked for deletion, a node that is paused, drained or out of service, and a \
publication beyond the volume's access mode: one node at a time, one writer at a time. A node whose topology cannot reach the \
volume is refused as well. Of a volume that is shared readOnly, every node only reads. A volume that is being unpublished \
from that node is published again after that. A volume that a former node of that name has is published again in the same way. Of several volumes each is \
requested by itself: the others are requested even if one is refused.

Examples:
  quorate publish data n1
  quorate publish data logs n1
  quorate publish data n2 --read-only --wait --timeout 2m")]
pub struct PublishArgs {
    /// The volumes
    #[arg(value_name = "VOLUME", required = true, num_args = 1..)]
    volumes: Vec<Name>,

    /// The node
    #[arg(value_name = "NODE", required = true)]
    node: Name,

    /// The node only reads
    #[arg(long)]
    read_only: bool,

    #[command(flatten)]
    wait: WaitArgs,
}

/// The publication that is asked for.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    volume: &'a Name,
    node: &'a Name,
    read_only: bool,
}

/// Runs the command.
///
/// # Errors
/// 3 if a volume or the node does not exist, 4 if a rule refuses one, 2 after the timeout.
pub async fn run(args: PublishArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let begun = Instant::now();
    let store = connect(etcd).await?;
    let (mut requested, mut failures) = (Vec::new(), Vec::new());
    let requests = args.volumes.iter().map(|volume| {
        let wanted = Wanted {
            volume,
            node: &args.node,
            read_only: args.read_only,
        };
        let store = &store;
        async move {
            let said = commit::settle(store, REQUESTED, async || decide(store, &wanted).await).await;
            (volume, said)
        }
    });
    let mut requests = stream::iter(requests).buffered(READ_AT_ONCE);
    while let Some((volume, said)) = requests.next().await {
        let id = format!("publication/{volume}/{}", args.node);
        match said {
            Ok(said) => {
                print(&format!("{id} {said}\n"))?;
                requested.push(volume);
            }
            Err(failure) if args.volumes.len() == 1 => return Err(failure),
            Err(failure) => failures.push(failure.on(id)),
        }
    }
    drop(requests);
    if args.wait.wait {
        for volume in requested {
            let limit = args
                .wait
                .timeout
                .map(|limit| limit.saturating_sub(begun.elapsed()));
            wait_until_published(&store, volume, &args.node, limit).await?;
        }
    }
    Failure::all("not every volume was requested", &failures)
}

async fn wait_until_published(
    store: &Store,
    volume: &Name,
    node: &Name,
    limit: Option<Duration>,
) -> Result<(), Failure> {
    let id = format!("{volume}/{node}");
    let is_there = |kv: Option<&KeyValue>| {
        let Some(kv) = kv else {
            let gone = format!("publication/{id} is gone: it was unpublished meanwhile");
            return Err(Failure::not_found(gone));
        };
        let publication = decode::<Publication>(&id, &kv.value);
        // Where a publication is asked for again, a former node of that name has the volume.
        let is_again = |publication: &Publication| publication.spec.as_ref().is_some_and(|spec| spec.again);
        Ok(publication.is_ok_and(|publication| is_published(&publication) && !is_again(&publication)))
    };
    wait_for(store, volume, node, limit, is_there).await?;
    print(&format!("publication/{id} is published\n")).map(drop)
}

/// Reads the volume and the node.
async fn read(store: &Store, args: &Wanted<'_>) -> Result<(Versioned<Volume>, Versioned<Node>), Failure> {
    let Wanted { volume, node, .. } = *args;
    let found = Versioned::<Volume>::find(store, volume.as_str(), store.keys.volume(volume));
    let there = Versioned::<Node>::find(store, node.as_str(), store.keys.node(node));
    let (found, there) = try_join(found, there).await?;
    let missing: Vec<String> = [
        found.is_none().then(|| format!("volume/{volume}")),
        there.is_none().then(|| format!("node/{node}")),
    ]
    .into_iter()
    .flatten()
    .collect();
    found.zip(there).ok_or_else(|| {
        let missing = missing.join(", ");
        Failure::not_found(format!("{missing} not found"))
            .hint("quorate get volumes and quorate get nodes list what there is")
    })
}

async fn decide(store: &Store, args: &Wanted<'_>) -> Result<Decision<String>, Failure> {
    let range = store.keys.publications_of(args.volume);
    let publications = store.etcd.list(&range).map_err(Failure::from);
    // In any order: the transaction compares each as it was read.
    let ((volume, node), (stored, read_at)) = try_join(read(store, args), publications).await?;
    let key = store.keys.publication(args.volume, args.node);
    let mut others = Vec::new();
    let mut here = None;
    for kv in &stored {
        let id = store.keys.parse_publication(&kv.key).unwrap_or_default();
        let publication = decode::<Publication>(id, &kv.value);
        match kv.key == key {
            true => here = Some(publication),
            false => others.push((id.split_once('/').map_or(id, |(_, node)| node), publication)),
        }
    }
    let refusals = refusals(&volume.object, &node.object, args, &others);
    if !refusals.is_empty() {
        return Err(Failure::new(Exit::Refused, refusals.join("\n  ")));
    }
    // The transaction compares the volume, the node and the range of the volume's publications: what was checked still holds
    // when it commits.
    let txn = Txn::new()
        .when_unchanged(&volume.key, volume.revision)
        .when_unchanged(&node.key, node.revision)
        .when_range_unwritten_since(&range, read_at);
    match here {
        None => {
            let wanted = new_publication(args, &volume.object, &node.object);
            let txn = txn.when_absent(&key).put(&key, wanted.encode_to_vec());
            Ok(Decision::Write(txn, "requested".to_owned()))
        }
        Some(Ok(publication)) => {
            let read_only = reads_only(args, &volume.object);
            let former = is_of_former(&publication, &node.object).then_some(args.node);
            again(read_only, former, publication, txn, &key)
        }
        Some(Err(why)) => {
            let id = format!("{}/{}", args.volume, args.node);
            Err(malformed::<Publication>(&id, &why))
        }
    }
}

/// The rules that refuse the node.
fn refusals_of_node(volume: &Volume, node: &Node, args: &Wanted<'_>) -> Vec<(&'static str, String)> {
    let mut refusals = Vec::new();
    let mut refuse = |rule: &'static str, why: String| refusals.push((rule, why));
    let of_node = node.spec.unwrap_or_default();
    let why = match of_node.availability() {
        NodeAvailability::Drain => Some("drained"),
        NodeAvailability::Pause => Some("paused"),
        NodeAvailability::Active | NodeAvailability::Unspecified => None,
    };
    if let Some(why) = why.filter(|_| !of_node.out_of_service) {
        refuse(
            "NodeAvailability",
            format!("node {} is {why}: nothing new goes to it", args.node),
        );
    }
    if of_node.out_of_service {
        refuse("OutOfService", format!("node {} is out of service", args.node));
    }
    let csi = node.status.as_ref().map_or(&[][..], |status| &status.csi);
    let csi = csi.iter().find(|csi| csi.plugin == volume::driver(volume));
    if let Some(csi) = csi
        && !volume::is_reachable_from(volume, &csi.topology)
    {
        let (place, places) = (pairs(&csi.topology), volume::places_text(volume));
        refuse(
            "Topology",
            format!(
                "volume {} can be reached from {places}, and node {} is in {place}",
                args.volume, args.node
            ),
        );
    }
    refusals
}

/// Every rule that refuses the publication.
fn refusals(
    volume: &Volume,
    node: &Node,
    args: &Wanted<'_>,
    others: &[(&str, Result<Publication, Malformed>)],
) -> Vec<String> {
    let name = args.volume;
    let mut refusals = Vec::new();
    let mut refuse = |rule: &str, why: String| refusals.push(format!("refused by rule {rule}: {why}"));
    if volume.is_marked() {
        refuse("Deleting", format!("volume {name} is marked for deletion"));
    }
    let spec = volume.spec.clone().unwrap_or_default();
    if matches!(spec.availability(), Availability::Pause | Availability::Drain) {
        let word = volume::availability_word(volume);
        refuse(
            "Availability",
            format!("volume {name} is set to {word}: new publications are refused"),
        );
    }
    let of_node = refusals_of_node(volume, node, args).into_iter();
    of_node.for_each(|(rule, why)| refuse(rule, why));
    let mode = spec.access_mode.unwrap_or_default();
    let shown = |publication: &Result<Publication, _>| match publication {
        Ok(publication) => state_word(state(publication)),
        Err(_) => "malformed",
    };
    match (mode.scope(), mode.sharing()) {
        (Scope::MultiNode, Sharing::OneWriter) if !args.read_only => {
            let mut others = others.iter();
            let writer = others.find(|(_, publication)| publication.as_ref().map_or(true, may_write));
            if let Some((other, publication)) = writer {
                refuse(
                    "AccessMode",
                    format!(
                        "volume {name} has one writer, node {other} ({}); publish with --read-only",
                        shown(publication)
                    ),
                );
            }
        }
        (Scope::MultiNode, _) => {}
        (Scope::SingleNode | Scope::Unspecified, _) => {
            if let Some((other, publication)) = others.first() {
                refuse(
                    "AccessMode",
                    format!(
                        "volume {name} is for one node at a time, and node {other} has it ({}); unpublish it there \
                         first",
                        shown(publication)
                    ),
                );
            }
        }
    }
    refusals
}

/// Whether the node only reads: it was asked for, or the volume is only read wherever it is.
fn reads_only(args: &Wanted<'_>, volume: &Volume) -> bool {
    let mode = volume.spec.as_ref().and_then(|spec| spec.access_mode.as_ref());
    args.read_only || mode.is_some_and(|mode| mode.sharing() == Sharing::ReadOnly)
}

fn new_publication(args: &Wanted<'_>, volume: &Volume, node: &Node) -> Publication {
    Publication {
        metadata: Some(Metadata::new(args.node, uuid::Uuid::new_v4(), Timestamp::now())),
        spec: Some(PublicationSpec {
            volume: args.volume.to_string(),
            volume_uid: volume.uid().to_owned(),
            node_uid: node.uid().to_owned(),
            read_only: reads_only(args, volume),
            again: false,
            again_read_only: None,
        }),
        status: Some(PublicationStatus {
            state: State::PendingPublish.into(),
            ..PublicationStatus::default()
        }),
    }
}

/// Whether the publication was made for a former node of that name, which may be another machine.
fn is_of_former(publication: &Publication, node: &Node) -> bool {
    let uid = node_uid(publication);
    !uid.is_empty() && uid != node.uid()
}

/// The decision about a publication that exists; `former` is the name of its node, where that is a former one. What a former node has
/// ends, and is no answer to a request for the present one.
fn again(
    read_only: bool,
    former: Option<&Name>,
    mut publication: Publication,
    txn: Txn,
    key: &[u8],
) -> Result<Decision<String>, Failure> {
    let spec = publication.spec.get_or_insert_default();
    let is_same = spec.read_only == read_only;
    let is_requested = spec.again && reads_only_next(spec) == read_only;
    let said = match (former, state(&publication)) {
        (Some(node), _) => format!(
            "is that of a former node {node}: it will be published to the present one after it is unpublished from that one"
        ),
        (None, State::Published | State::PendingPublish) if !is_same => {
            let how = |read_only: bool| {
                if read_only {
                    "for reading only"
                } else {
                    "for reading and writing"
                }
            };
            return Err(Failure::new(
                Exit::Refused,
                format!(
                    "refused by rule ReadOnly: the volume is published there {}, not {}; unpublish it first",
                    how(!read_only),
                    how(read_only)
                ),
            ));
        }
        (None, State::Published) if is_published(&publication) => {
            return Ok(Decision::Nothing("is already published".to_owned()));
        }
        (None, State::Published | State::PendingPublish) => {
            return Ok(Decision::Nothing("is already requested".to_owned()));
        }
        (None, State::PendingNodeUnpublish | State::PendingUnpublish | State::Unspecified) => {
            "will be published again after it is unpublished".to_owned()
        }
    };
    if is_requested {
        return Ok(Decision::Nothing(said));
    }
    let spec = publication.spec.get_or_insert_default();
    spec.again = true;
    spec.again_read_only = Some(read_only);
    publication.next_generation();
    Ok(Decision::Write(txn.put(key, publication.encode_to_vec()), said))
}
