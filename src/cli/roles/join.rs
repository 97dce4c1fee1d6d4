//! `quorate join`: a request below `/joins/`, and what etcd needs to start once the leader has carried it out.

use std::time::Duration;

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use prost::Message;

use super::facts::Facts;
use super::request::read_node;
use super::{hint, refused};
use crate::cli::confirm::{self, ATTEMPTS};
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::duration::duration;
use crate::cli::exit::{Exit, Failure};
use crate::cli::objects::view::View;
use crate::cli::output::{Reader, print};
use crate::cli::wait::{self, until};
use crate::etcd::{KeyRange, MemberId, Revision, Txn};
use crate::proto::join::Progress;
use crate::proto::{Join, JoinRequest, RemovedNode};
use crate::retry::Delays;
use crate::roles::checks::{Refusal, check_peer_url};
use crate::roles::reason::Reason;
use crate::store::object::{member, time};
use crate::store::{Name, Store};

mod environment;

use environment::Environment;

/// Arguments of `quorate join`.
#[derive(Args, Debug)]
#[command(after_help = "\
The leader tries whether the peer URL can be reached (a refused connection will do: etcd starts after this), adds the \
node's etcd as a learner, and lets it vote once it has caught up. The command returns as soon as etcd can be started, \
and prints what it needs for that. A learner that is not started within the leader's --learner-timeout is removed.

The data directory of a member that has never started must be empty: what a removed member left behind is of no use. One \
that has started keeps its own.

Asked again, it prints the same again. A member that joins with another peer URL gets that, nothing else changes.

Refused are workers (rule NotAManager), nodes that were removed (NodeRemoved), peer URLs of another member \
(PeerUrlTaken) and ones that cannot be reached (PeerUnreachable).

Examples:
  quorate join n4 --peer-url https://10.0.0.4:2380
  quorate join n4 --peer-url https://10.0.0.4:2380 \\
    --client-url https://10.0.0.4:2379 -o env > /etc/etcd.env
  quorate join n4 --peer-url https://10.0.0.4:2380 --wait    # until it votes")]
pub struct JoinArgs {
    /// The node, a manager
    #[arg(value_name = "NODE")]
    node: Name,

    /// Where the other members reach its etcd; may be given several times
    #[arg(long = "peer-url", value_name = "URL", required = true, value_delimiter = ',', value_parser = url)]
    peer_urls: Vec<String>,

    /// Where clients reach its etcd, for the printed settings alone
    #[arg(long = "client-url", value_name = "URL", value_delimiter = ',', value_parser = url)]
    client_urls: Vec<String>,

    /// Do not try whether the peer URL can be reached
    #[arg(long)]
    no_dial: bool,

    /// The node's uid, if it is known: a node of this name that was created later does not join then
    #[arg(long, value_name = "UID")]
    uid: Option<String>,

    /// How to print what etcd needs
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: JoinFormat,

    /// Go on waiting until it votes
    #[arg(long)]
    wait: bool,

    /// Give up waiting after this long (30s, 5m, 1h30m) [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
}

/// Form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum JoinFormat {
    /// For people
    #[default]
    Text,
    /// A line a variable, as a shell and systemd read them
    Env,
    /// One JSON object
    Json,
}

fn url(text: &str) -> Result<String, String> {
    let text = text.trim_end_matches('/');
    check_peer_url(text).map_err(|why| why.trim_start_matches("is none: ").to_owned())?;
    Ok(text.to_owned())
}

/// Runs the command.
///
/// # Errors
/// 3 for a node that does not exist, 4 for what is refused, by the command or by the leader, 5 where somebody else asks
/// for another join of this node, 2 where the time is over.
pub async fn run(args: JoinArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let store = connect(etcd).await?;
    let name = &args.node;
    let begun = std::time::Instant::now();
    let id = request(&store, &args).await?;
    let hint = "the request stays, and is carried out once nothing holds it up and a replica leads";
    let joined = |enough: &'static [Progress], limit| {
        let ranges = vec![KeyRange::key(store.keys.join(name))];
        let id = id.clone();
        let store = &store;
        async move {
            let seen = |view: &View| look(view, name, &id, enough);
            until(store, ranges, limit, hint, seen).await
        }
    };
    let member = joined(&[Progress::Learner, Progress::Voter], args.timeout).await?;
    let list = store.etcd.list_members().await.map_err(Failure::failed)?;
    let environment = Environment::new(name, member, &list, &args.peer_urls, &args.client_urls)?;
    let _: Reader = print(&environment.render(args.output))?;
    if args.wait {
        let left = args.timeout.map(|limit| limit.saturating_sub(begun.elapsed()));
        joined(&[Progress::Voter], left).await?;
        eprintln!("node/{name}: member {member} votes");
    }
    Ok(())
}

/// Writes the request, unless the same is under way; its id.
async fn request(store: &Store, args: &JoinArgs) -> Result<String, Failure> {
    let name = &args.node;
    let key = store.keys.join(name);
    let mut delays = Delays::etcd();
    for _ in 0..ATTEMPTS {
        let found = match read_node(store, name).await {
            Err(failure) if failure.exit == Exit::NotFound => {
                return Err(removed(store, name, args.uid.as_deref())
                    .await?
                    .map_or(failure, |refusal| refused(&refusal)));
            }
            found => found?,
        };
        let uid = args.uid.as_deref().unwrap_or(found.uid());
        let removed_key = store.keys.removed(uid);
        let (removed, _) = store.etcd.get(&removed_key).await.map_err(Failure::failed)?;
        let roles = (uid == found.uid()).then(|| found.roles());
        let facts = Facts::without_health(store).await?;
        facts
            .managers
            .check_join(name.as_str(), roles, removed.is_some(), &args.peer_urls)
            .map_err(|refusal| refused(&refusal))?;
        let (stored, _) = store.etcd.get(&key).await.map_err(Failure::failed)?;
        let before = match &stored {
            None => Join::default(),
            Some(kv) => member::decode_join(&kv.value).map_err(|malformed| {
                let why =
                    format!("refused by rule Malformed: the join of node {name} cannot be read: {malformed}");
                let key = String::from_utf8_lossy(&kv.key).into_owned();
                Failure::new(Exit::Refused, why).hint(format!("etcdctl del {key}, then ask again"))
            })?,
        };
        let asked = before.request.as_ref().filter(|asked| {
            let same = asked.node_uid == uid && asked.peer_urls == args.peer_urls;
            same && asked.no_dial == args.no_dial && !member::is_ended(&before)
        });
        if let Some(asked) = asked {
            return Ok(asked.id.clone());
        }
        let id = uuid::Uuid::new_v4().to_string();
        // The leader's part stays: it says what became of an add that is under way.
        let join = Join {
            request: Some(JoinRequest {
                id: id.clone(),
                node_uid: uid.to_owned(),
                peer_urls: args.peer_urls.clone(),
                requested_at: Some(time::to_proto(Timestamp::now())),
                no_dial: args.no_dial,
            }),
            ..before
        };
        let read_at = stored.map_or(Revision::ABSENT, |kv| kv.mod_revision);
        let txn = Txn::new()
            .when_unchanged(&store.keys.node(name), found.revision)
            .when_unchanged(&key, read_at)
            .when_absent(&removed_key)
            .put(&key, join.encode_to_vec());
        if confirm::commit(&store.etcd, txn, "requested").await? {
            return Ok(id);
        }
        delays.wait().await;
    }
    Err(confirm::overtaken())
}

/// The refusal of a node that does not exist any more, where its removal is on record.
async fn removed(store: &Store, name: &Name, uid: Option<&str>) -> Result<Option<Refusal>, Failure> {
    let range = match uid {
        Some(uid) => KeyRange::key(store.keys.removed(uid)),
        None => store.keys.all_removed(),
    };
    let (records, _) = store.etcd.list(&range).await.map_err(Failure::failed)?;
    let named = |value: &[u8]| RemovedNode::decode(value).is_ok_and(|removed| removed.name == name.as_str());
    let found = records.iter().any(|kv| named(&kv.value));
    Ok(found.then(|| {
        Refusal::new(
            Reason::NodeRemoved,
            format_args!("node {name} was removed: a node of its uid is never admitted again"),
        )
    }))
}

/// How far the join is; done with its member once it has come to one of `enough`.
fn look(
    view: &View,
    name: &Name,
    id: &str,
    enough: &[Progress],
) -> Result<wait::Progress<MemberId>, Failure> {
    let gone = |why: &str| {
        Err(Failure::new(
            Exit::Conflict,
            format!("the join of node {name} {why}"),
        ))
    };
    let Some(stored) = view.get(&view.keys.join(name)) else {
        return gone("was deleted meanwhile");
    };
    let Ok(join) = member::decode_join(&stored.value) else {
        return gone("was overwritten with what cannot be read");
    };
    if join.request.as_ref().is_none_or(|request| request.id != id) {
        return gone("was requested again by another client, with other settings");
    }
    if !member::is_answered(&join) {
        return Ok(wait::Progress::Waiting(Vec::new()));
    }
    let member = member::member_of(&join);
    if let Some(member) = member.filter(|_| enough.contains(&join.progress())) {
        return Ok(wait::Progress::Done(member));
    }
    let why = match join.reason.as_str() {
        "" => join.message.clone(),
        reason => format!("{reason}: {}", join.message),
    };
    match join.progress() {
        Progress::Refused => {
            let failure = Failure::new(
                Exit::Refused,
                format!("refused by rule {}: {}", join.reason, join.message),
            );
            Err(match hint(&join.reason) {
                Some(advice) => failure.hint(advice),
                None => failure,
            })
        }
        Progress::Removed => Err(Failure::failed(format!(
            "node/{name}: its member was removed again: {why}"
        ))),
        Progress::Learner => Ok(wait::Progress::Waiting(vec![match why.as_str() {
            "" => format!("node/{name} is a learner: it votes once it is started and has caught up"),
            why => format!("node/{name} is a learner: {why}"),
        }])),
        Progress::Waiting => Ok(wait::Progress::Waiting(vec![format!("node/{name}: {why}")])),
        Progress::Unspecified | Progress::Adding | Progress::Voter => Ok(wait::Progress::Waiting(Vec::new())),
    }
}
