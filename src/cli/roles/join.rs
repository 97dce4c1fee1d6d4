//! `quorate join`: writes a request below `/joins/`, and prints what etcd needs to start once the leader has carried it
//! out.

use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use prost::Message;

use super::request::read_node;
use super::wait::{REQUEST_STAYS, awaited, reasoned};
use super::{refused, refused_by};
use crate::cli::commit::{self, Decision};
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::duration::duration;
use crate::cli::exit::{Exit, Failure};
use crate::cli::objects::view::View;
use crate::cli::output::{Reader, note, print};
use crate::cli::wait::{self, until};
use crate::etcd::{KeyRange, MemberId, Revision, Txn};
use crate::proto::join::Progress;
use crate::proto::{Join, RemovedNode};
use crate::roles::checks::{Refusal, check_peer_url};
use crate::roles::facts::Facts;
use crate::roles::join_request::{Asked, Wanted};
use crate::roles::settings::EtcdSettings;
use crate::store::object::{Object, member};
use crate::store::{Name, Store};

mod environment;
mod versions;

/// Arguments of `quorate join`.
#[derive(Args, Debug)]
#[command(after_help = "\
The leader tests whether the peer URL can be reached (a refused connection will do, since etcd starts later), adds the \
node's etcd as a learner, and promotes it to a voter once it has caught up. The command returns as soon as etcd can be \
started, and prints the settings for that. A learner that is not started within the leader's --learner-timeout is removed.

The data directory of a member that has never started must be empty: the data of a removed member is of no use. A member \
that has started keeps its own, and its settings have no ETCD_INITIAL_CLUSTER: on an empty directory etcd would forget what it \
has acknowledged. So print them again once it has started, and keep those. If its data is lost, quorate replace is the way.

The same command again continues the same join, or the replacement of a lost member at the same peer URL. A member that \
joins with another peer URL gets that URL: a voter keeps all else, and a member that has not started is added again, under another id.

A join is refused for workers (rule NotAManager), removed nodes (NodeRemoved), peer URLs of other members \
(PeerUrlTaken) and peer URLs that cannot be reached (PeerUnreachable).

Examples:
  quorate join n4 --peer-url https://10.0.0.4:2380
  quorate join n4 --peer-url https://10.0.0.4:2380 \\
    --client-url https://10.0.0.4:12379 -o env > etcd.env.new && mv etcd.env.new /etc/etcd.env
  quorate join n4 --peer-url https://10.0.0.4:2380 --wait    # until it votes; then the second command again")]
pub struct JoinArgs {
    /// The node, a manager
    #[arg(value_name = "NODE")]
    node: Name,

    /// URL at which the other members reach its etcd; may be given several times
    #[arg(long = "peer-url", value_name = "URL", required = true, value_delimiter = ',', value_parser = url)]
    peer_urls: Vec<String>,

    /// Uid of the node; a node of this name with another uid does not join
    #[arg(long, value_name = "UID")]
    uid: Option<String>,

    #[command(flatten)]
    options: JoinOptions,
}

/// How a member is added, and what is printed of it.
#[derive(Args, Debug)]
pub struct JoinOptions {
    /// URL at which clients reach its etcd, for the printed settings [default: that of the member in etcd's list, else the
    /// host of the peer URL, port 2379]
    #[arg(long = "client-url", value_name = "URL", value_delimiter = ',', value_parser = url)]
    pub client_urls: Vec<String>,

    /// Do not test whether the peer URL can be reached
    #[arg(long)]
    pub no_dial: bool,

    /// How to print the settings
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: JoinFormat,

    /// Wait until the member votes
    #[arg(long)]
    wait: bool,

    /// Give up waiting after this long (30s, 5m, 1h30m) [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
}

/// The form in which the settings are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum JoinFormat {
    /// For people
    #[default]
    Text,
    /// One line a variable, for a shell or systemd
    Env,
    /// One JSON object
    Json,
}

/// Parses a URL of etcd.
pub fn url(text: &str) -> Result<String, String> {
    let text = text.trim_end_matches('/');
    check_peer_url(text).map_err(|why| why.trim_start_matches("is invalid: ").to_owned())?;
    Ok(text.to_owned())
}

/// Runs the command.
///
/// # Errors
/// 3 for a node that does not exist, 4 if the command or the leader refuses it, 5 if another join of this node is requested
/// meanwhile, 2 if the time is over.
pub async fn run(args: JoinArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let store = connect(etcd).await?;
    let id = request(&store, &args).await?;
    let requested = Requested {
        id,
        peer_urls: args.peer_urls.clone(),
        client_urls: args.options.client_urls.clone(),
        replaces: 0,
    };
    follow(&store, &args.node, &requested, &args.options).await
}

/// A request that was made, by this command or before.
#[derive(Clone, Debug)]
pub struct Requested {
    /// The id of the request.
    pub id: String,
    /// The peer URLs of the member that joins.
    pub peer_urls: Vec<String>,
    /// Its client URLs, for the settings; empty for those of the list.
    pub client_urls: Vec<String>,
    /// The member that is removed first; zero if there is none.
    pub replaces: u64,
}

/// Follows the request, prints the settings, and waits as the options say.
///
/// # Errors
/// As [`run`].
pub async fn follow(
    store: &Store,
    name: &Name,
    requested: &Requested,
    options: &JoinOptions,
) -> Result<(), Failure> {
    let begun = Instant::now();
    let joined = async |enough: &[Progress], limit| {
        let keys = [store.keys.join(name), store.keys.roles_pause()];
        let ranges = keys.map(KeyRange::key).to_vec();
        let observe = |view: &View| observe(view, name, requested, enough);
        until(store, ranges, limit, REQUEST_STAYS, observe).await
    };
    let member = joined(&[Progress::Learner, Progress::Voter], options.timeout).await?;
    let list = store.etcd.list_members().await?;
    let settings = EtcdSettings::new(name, member, &list, &requested.peer_urls, &requested.client_urls);
    let settings = settings.ok_or_else(|| {
        let why = format!("node/{name}: its member {member} is no longer in etcd's list");
        Failure::failed(why).hint("join again")
    })?;
    let _: Reader = print(&environment::render(&settings, name, member, options.output))?;
    if !settings.started
        && options.output == JoinFormat::Text
        && let Ok(facts) = Facts::with_health(store).await
        && let Some(advice) = versions::advice(facts.versions())
    {
        let _: Reader = print(&format!("Beside it, {advice}\n"))?;
    }
    if options.wait {
        let left = options.timeout.map(|limit| limit.saturating_sub(begun.elapsed()));
        joined(&[Progress::Voter], left).await?;
        note(format_args!("node/{name}: member {member} votes"));
    }
    Ok(())
}

/// Writes the request, unless the same one is under way, and returns its id.
async fn request(store: &Store, args: &JoinArgs) -> Result<String, Failure> {
    commit::settle(store, "requested", async || decide(store, args).await).await
}

async fn decide(store: &Store, args: &JoinArgs) -> Result<Decision<String>, Failure> {
    let name = &args.node;
    let found = match read_node(store, name).await {
        Err(failure) if failure.exit == Exit::NotFound => {
            let removed = removed(store, name, args.uid.as_deref()).await?;
            return Err(removed.map_or(failure, |refusal| refused(&refusal)));
        }
        found => found?,
    };
    let uid = args.uid.as_deref().unwrap_or(found.object.uid());
    let removed_key = store.keys.removed(uid);
    let (removed, _) = store.etcd.get(&removed_key).await?;
    let roles = (uid == found.object.uid()).then(|| found.roles());
    // Before etcd's list: a join that has led to a voter, beside an older list with a learner, would be asked for again.
    let (before, read_at) = stored_join(store, name).await?;
    let facts = Facts::without_health(store).await?;
    facts
        .membership
        .check_join(name.as_str(), uid, roles, removed.is_some(), &args.peer_urls)
        .map_err(|refusal| refused(&refusal))?;
    let wanted = Wanted {
        node: name.as_str(),
        uid,
        peer_urls: &args.peer_urls,
        // They are for the printed settings alone: those of a member that an agent runs are on record by the agent.
        client_urls: &[],
        no_dial: args.options.no_dial,
    };
    let id = uuid::Uuid::new_v4().to_string();
    let join = match wanted.ask(before, &facts.membership, &id, Timestamp::now()) {
        Asked::Already(id) => return Ok(Decision::Nothing(id)),
        Asked::New(join) => join,
    };
    let key = store.keys.join(name);
    let txn = Txn::new()
        .when_unchanged(&store.keys.node(name), found.revision)
        .when_unchanged(&key, read_at)
        .when_absent(&removed_key)
        .put(&key, join.encode_to_vec());
    Ok(Decision::Write(txn, id))
}

/// The join of the node, and when it was last written; an empty one if there is none.
///
/// # Errors
/// 4 if it cannot be read.
pub async fn stored_join(store: &Store, name: &Name) -> Result<(Join, Revision), Failure> {
    let key = store.keys.join(name);
    let (stored, _) = store.etcd.get(&key).await?;
    let Some(kv) = stored else {
        return Ok((Join::default(), Revision::ABSENT));
    };
    let join = member::decode_join(&kv.value).map_err(|malformed| {
        let why = format!("the join of node {name} cannot be read: {malformed}");
        let key = String::from_utf8_lossy(&key).into_owned();
        Failure::refused("Malformed", why).hint(format!("etcdctl del {key}, then join again"))
    })?;
    Ok((join, kv.mod_revision))
}

/// The refusal of a node that does not exist, if its removal is recorded.
async fn removed(store: &Store, name: &Name, uid: Option<&str>) -> Result<Option<Refusal>, Failure> {
    let range = match uid {
        Some(uid) => KeyRange::key(store.keys.removed(uid)),
        None => store.keys.all_removed(),
    };
    let (records, _) = store.etcd.list(&range).await?;
    let named = |value: &[u8]| RemovedNode::decode(value).is_ok_and(|removed| removed.name == name.as_str());
    let found = records.iter().any(|kv| named(&kv.value));
    Ok(found.then(|| Refusal::node_removed(name.as_str())))
}

/// How far the join is; done, with its member, once its progress is one of `enough`.
fn observe(
    view: &View,
    name: &Name,
    requested: &Requested,
    enough: &[Progress],
) -> Result<wait::Progress<MemberId>, Failure> {
    let lost = |why: &str| Err(Failure::conflict(format!("the join of node {name} {why}")));
    let Some(stored) = view.get(&view.keys.join(name)) else {
        return lost("was deleted meanwhile");
    };
    let Ok(join) = member::decode_join(&stored.value) else {
        return lost("was overwritten and cannot be read");
    };
    if join
        .request
        .as_ref()
        .is_none_or(|request| request.id != requested.id)
    {
        return lost("was replaced by another request, with other settings");
    }
    let paused = || super::wait::paused(view).map(|paused| format!("node/{name}: {paused}"));
    if !member::is_answered(&join) {
        return Ok(wait::Progress::Waiting(paused().into_iter().collect()));
    }
    let member = member::member_of(&join);
    if let Some(member) = member.filter(|_| enough.contains(&join.progress())) {
        if member.0 == requested.replaces {
            return Err(Failure::failed(format!(
                "member {member} of node {name} was not replaced: the leader is of an earlier release, which cannot do that"
            ))
            .hint("update every replica, then repeat the command"));
        }
        return Ok(wait::Progress::Done(member));
    }
    match join.progress() {
        Progress::Refused => Err(refused_by(&join.reason, &join.message)),
        Progress::Removed => {
            let why = reasoned(&join);
            let why = format!("node/{name}: its member was removed again: {why}");
            Err(Failure::failed(why))
        }
        _ => {
            let why = awaited(name, &join).or_else(paused);
            Ok(wait::Progress::Waiting(why.into_iter().collect()))
        }
    }
}
