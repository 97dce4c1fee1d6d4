//! `quorate adopt`: creates the records, and missing nodes, of members that etcd has already.

use std::fmt;

use clap::Args;
use jiff::Timestamp;
use prost::Message;

use crate::cli::commit::{self, Decision};
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::Failure;
use crate::cli::output::{Reader, one_line, print};
use crate::etcd::members::{ListedMember, MemberList};
use crate::etcd::{KeyValue, MemberId, Revision, Txn};
use crate::proto::join::Progress;
use crate::proto::node_spec::Availability;
use crate::proto::{Member, Metadata, Node, NodeSpec, NodeStatus, Role};
use crate::store::object::member::{decode_join, decode_member};
use crate::store::object::{decode, time};
use crate::store::{Name, Store};

/// Arguments of `quorate adopt`.
#[derive(Args, Debug)]
#[command(after_help = "\
Quorate never touches a member of etcd that has no record. This command creates the records: each member belongs to \
the node with the name of the member. A node that does not exist is created as a manager; an existing node must be a \
desired manager and have no other member. Etcd's member list does not change. From then on the members follow the roles \
of their nodes. A member whose node was deleted by mistake is adopted again: by the node that has its name now, or by a \
new one.

--node names the node of a single member, where the two have different names or the member has none. The node must exist, and \
the member must have no other one.

Examples:
  quorate adopt                    # all members
  quorate adopt etcd-1 8e9e05c52164694d
  quorate adopt node-7f3a2c91 --node n1")]
pub struct AdoptArgs {
    /// Ids (hexadecimal) or names of members [default: all members]
    #[arg(value_name = "MEMBER")]
    members: Vec<String>,

    /// The node that adopts the one member [default: the node with the name of the member]
    #[arg(long, value_name = "NAME", requires = "members")]
    node: Option<Name>,
}

/// Runs the command.
///
/// # Errors
/// 3 for a member that is not in the list and for a node that does not exist, 4 for a member that cannot be adopted, 64 for
/// a node of several members.
pub async fn run(args: AdoptArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    if args.node.is_some() && args.members.len() > 1 {
        return Err(Failure::usage("--node is for a single member: a node has one"));
    }
    let store = connect(etcd).await?;
    let list = store.etcd.list_members().await?;
    let chosen = choose(&list, &args.members)?;
    let by = match (&args.node, args.members.is_empty()) {
        (Some(node), _) => Adopter::Node(node),
        (None, true) => Adopter::OwnOfAll,
        (None, false) => Adopter::OwnOfNamed,
    };
    let mut failures = Vec::new();
    for member in chosen {
        match adopt(&store, member, by).await {
            Ok(line) => _ = print(&format!("{line}\n"))? == Reader::Gone,
            Err(failure) => failures.push(failure),
        }
    }
    Failure::all("not every member was adopted", &failures)
}

fn choose<'a>(list: &'a MemberList, named: &[String]) -> Result<Vec<&'a ListedMember>, Failure> {
    if named.is_empty() {
        return Ok(list.members.iter().collect());
    }
    let mut chosen: Vec<&ListedMember> = Vec::new();
    for text in named {
        let found = find(&list.members, text);
        match found[..] {
            [member] if chosen.contains(&member) => {}
            [member] => chosen.push(member),
            [] => {
                let text = text.escape_debug();
                return Err(
                    Failure::not_found(format!("no member has the id or name \"{text}\""))
                        .hint("quorate get members lists them"),
                );
            }
            _ => {
                return Err(Failure::usage(format!(
                    "{} members are named {text}: give the id of the member",
                    found.len()
                )));
            }
        }
    }
    Ok(chosen)
}

/// The members with this id or name. An id comes first, because a name may look like an id.
pub fn find<'a>(
    members: impl IntoIterator<Item = &'a ListedMember, IntoIter: Clone>,
    text: &str,
) -> Vec<&'a ListedMember> {
    let (id, members) = (u64::from_str_radix(text, 16).ok(), members.into_iter());
    match members.clone().find(|member| Some(member.id.0) == id) {
        Some(member) => vec![member],
        None => members.filter(|member| member.name == text).collect(),
    }
}

/// The node that adopts a member.
#[derive(Clone, Copy, Debug)]
pub enum Adopter<'a> {
    /// The one with the name of the member, created where it is missing; of all members, those that leave etcd are left alone.
    OwnOfAll,
    /// The same of a member that the operator has named: one that leaves etcd is refused.
    OwnOfNamed,
    /// The existing node that the operator has named.
    Node(&'a Name),
}

/// Ties one member to a node, and returns in words what was done.
///
/// # Errors
/// 3 if the named node does not exist, 4 by the rule that refuses the member.
pub async fn adopt(store: &Store, listed: &ListedMember, by: Adopter<'_>) -> Result<String, Failure> {
    commit::settle(store, "adopted", async || decide(store, listed, by).await).await
}

async fn decide(store: &Store, listed: &ListedMember, by: Adopter<'_>) -> Result<Decision<String>, Failure> {
    let id = listed.id;
    let key = store.keys.member(id);
    let (stored, revision) = store.etcd.list(&store.keys.members()).await?;
    let recorded = stored.iter().find(|kv| kv.key == key);
    let before = recorded.map(|kv| decode_member(&kv.value)).transpose();
    let before = before.map_err(|malformed| {
        let why = format_args!("its record cannot be read: {malformed}");
        let key = String::from_utf8_lossy(&key);
        refuse(id, "Malformed", why).hint(format!(
            "quorate pause roles, quorate promote its node, etcdctl del {key}, adopt it again, quorate resume roles"
        ))
    })?;
    let node = match (by, &before) {
        (Adopter::Node(name), _) => NodeOf::existing(store, id, name).await?,
        (_, Some(record)) => NodeOf::read(store, id, &record.node).await?,
        (_, None) if listed.is_started() => NodeOf::read(store, id, &listed.name).await?,
        (_, None) => {
            let why = "it has never started, so it has no name for a node; --node names one";
            return Err(refuse(id, "NoName", why));
        }
    };
    let name = &node.name;
    if before.as_ref().is_some_and(|record| record.node_uid == node.uid) {
        return Ok(Decision::Nothing(format!(
            "member/{id} belongs to node {name} already"
        )));
    }
    let mut txn = node.txn.clone();
    if let Some(record) = &before {
        match leaves(store, record).await? {
            Some((rule, why)) if !matches!(by, Adopter::OwnOfAll) => return Err(refuse(id, rule, why)),
            Some((_, why)) => return Ok(Decision::Nothing(format!("member/{id} is left alone: {why}"))),
            None => txn = txn.when_absent(&store.keys.removed(&record.node_uid)),
        }
    }
    if let Some(record) = before.as_ref().filter(|record| record.node != name.as_str()) {
        txn = without_its_node(store, id, record, txn).await?;
    }
    if !listed.is_started() {
        txn = without_an_add(store, listed, txn).await?;
    }
    node.check_manager(id)?;
    check_no_other_member(store, id, &node, &stored)?;
    let record = Member {
        node: name.to_string(),
        node_uid: node.uid,
        peer_urls: listed.peer_urls.clone(),
        joined_at: Some(time::to_proto(Timestamp::now())),
        ..before.unwrap_or_default()
    };
    let txn = txn
        .when_range_unwritten_since(&store.keys.members(), revision)
        .put(&key, record.encode_to_vec());
    let done = match node.stored {
        None => format!("member/{id} adopted by node {name}, which is created as a manager"),
        Some(_) => format!("member/{id} adopted by node {name}"),
    };
    Ok(Decision::Write(txn, done))
}

/// The rule by which a member with this record leaves etcd, and why; `None` if it stays.
async fn leaves(store: &Store, record: &Member) -> Result<Option<(&'static str, String)>, Failure> {
    let (removed, _) = store.etcd.get(&store.keys.removed(&record.node_uid)).await?;
    let node = one_line(&record.node);
    Ok(match (removed, record.removal.is_some()) {
        (Some(_), _) => Some((
            "NodeRemoved",
            format!("its node {node} was removed, so the leader removes it from etcd"),
        )),
        (None, true) => Some((
            "RemovalPending",
            format!("the leader is removing it from etcd, as the member of node {node}"),
        )),
        (None, false) => None,
    })
}

/// The transaction with the proof that this learner, which never started, is not the one that the leader is adding for a node.
async fn without_an_add(store: &Store, listed: &ListedMember, txn: Txn) -> Result<Txn, Failure> {
    let range = store.keys.joins();
    let (joins, revision) = store.etcd.list(&range).await?;
    let adding = joins.iter().find_map(|kv| {
        let join = decode_join(&kv.value).ok()?;
        let is_this = join.progress() == Progress::Adding && listed.has_peer_urls(&join.peer_urls);
        is_this.then(|| String::from_utf8_lossy(&kv.key).into_owned())
    });
    match adding {
        None => Ok(txn.when_range_unwritten_since(&range, revision)),
        Some(key) => {
            let why = format_args!("the leader is adding it for the node of {key}");
            Err(refuse(listed.id, "LearnerPending", why))
        }
    }
}

/// The transaction with the proof that the recorded node of this member does not exist.
async fn without_its_node(store: &Store, id: MemberId, record: &Member, txn: Txn) -> Result<Txn, Failure> {
    let Ok(name) = record.node.parse::<Name>() else {
        return Ok(txn);
    };
    let recorded = NodeOf::read(store, id, name.as_str()).await?;
    if recorded.stored.is_some() && recorded.uid == record.node_uid {
        let why = format_args!("it belongs to node {name}; demote and delete that node first");
        return Err(refuse(id, "MemberHasNode", why));
    }
    let key = store.keys.node(&name);
    Ok(match recorded.revision {
        Revision::ABSENT => txn.when_absent(&key),
        revision => txn.when_unchanged(&key, revision),
    })
}

/// A node, and its part of the transaction.
struct NodeOf {
    name: Name,
    uid: String,
    /// `None` if it does not exist: then it is created.
    stored: Option<Node>,
    revision: Revision,
    /// Creates the node, or compares it.
    txn: Txn,
}

impl NodeOf {
    async fn read(store: &Store, id: MemberId, name: &str) -> Result<Self, Failure> {
        let name: Name = name.parse().map_err(|error| {
            let why = format_args!("its name cannot be the name of a node: {error}");
            refuse(id, "NoName", why)
        })?;
        let key = store.keys.node(&name);
        let (stored, _) = store.etcd.get(&key).await?;
        let Some(kv) = stored else {
            let node = manager(&name);
            let txn = Txn::new().when_absent(&key).put(&key, node.encode_to_vec());
            return Ok(Self {
                name,
                uid: node.metadata.unwrap_or_default().uid,
                stored: None,
                revision: Revision::ABSENT,
                txn,
            });
        };
        let node: Node = decode(name.as_str(), &kv.value).map_err(|malformed| {
            let why = format_args!("node {name} cannot be read: {malformed}");
            refuse(id, "Malformed", why).hint(format!(
                "quorate describe node {name} says why; mend it with quorate apply"
            ))
        })?;
        let uid = node.metadata.clone().unwrap_or_default().uid;
        if uid.is_empty() {
            // A record without a uid would belong to no node that the leader can tell from others.
            let why = format_args!("node {name} has no uid; delete it and create it again");
            return Err(refuse(id, "Malformed", why));
        }
        Ok(Self {
            uid,
            stored: Some(node),
            revision: kv.mod_revision,
            txn: Txn::new().when_unchanged(&key, kv.mod_revision),
            name,
        })
    }

    /// The node that the operator has named.
    async fn existing(store: &Store, id: MemberId, name: &Name) -> Result<Self, Failure> {
        let node = Self::read(store, id, name.as_str()).await?;
        match node.stored {
            Some(_) => Ok(node),
            None => Err(Failure::not_found(format!("node/{name} does not exist"))
                .hint("quorate get nodes lists them; quorate apply creates one")),
        }
    }

    fn check_manager(&self, id: MemberId) -> Result<(), Failure> {
        let desired = |node: &Node| node.spec.unwrap_or_default().desired_role();
        if self.stored.as_ref().map_or(Role::Manager, desired) == Role::Manager {
            return Ok(());
        }
        // The leader would remove the member from etcd at once.
        let name = &self.name;
        let why = format_args!("node {name} is a desired worker; quorate promote makes it a manager");
        Err(refuse(id, "NotAManager", why))
    }
}

fn check_no_other_member(
    store: &Store,
    id: MemberId,
    node: &NodeOf,
    stored: &[KeyValue],
) -> Result<(), Failure> {
    let other = stored.iter().find(|kv| {
        let record = decode_member(&kv.value);
        record.is_ok_and(|record| record.node == node.name.as_str() && record.node_uid == node.uid)
    });
    let other = other.and_then(|kv| store.keys.parse_member(&kv.key));
    other.map_or(Ok(()), |other| {
        let why = format_args!("node {} has the member {other}", node.name);
        let hint = "--node names another node; quorate get members shows whose each member is";
        Err(refuse(id, "NodeHasMember", why).hint(hint))
    })
}

fn refuse(id: MemberId, rule: &str, why: impl fmt::Display) -> Failure {
    Failure::refused(rule, why).on(format_args!("member/{id}"))
}

/// A new node that is a manager, which its member proves.
fn manager(name: &Name) -> Node {
    Node {
        metadata: Some(Metadata::new(name, uuid::Uuid::new_v4(), Timestamp::now())),
        spec: Some(NodeSpec {
            desired_role: Role::Manager.into(),
            availability: Availability::Active.into(),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            role: Role::Manager.into(),
            ..NodeStatus::default()
        }),
    }
}
