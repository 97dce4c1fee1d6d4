//! `quorate adopt`: records, and nodes where there are none, for members that etcd has already.

use clap::Args;
use jiff::Timestamp;
use prost::Message;

use super::facts::records;
use crate::cli::confirm::{self, ATTEMPTS};
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::{Reader, one_line, print};
use crate::etcd::Txn;
use crate::etcd::members::{ListedMember, MemberList};
use crate::proto::node_spec::Availability;
use crate::proto::{Member, Metadata, Node, NodeSpec, NodeStatus, Role};
use crate::retry::Delays;
use crate::store::object::{decode, time};
use crate::store::{Name, Store};

/// Arguments of `quorate adopt`.
#[derive(Args, Debug)]
#[command(after_help = "\
Quorate never touches a member of etcd that it has no record of. This writes the records: each member belongs to the \
node that is called as the member is. A node that does not exist is created as a manager; one that exists must be a \
desired manager and have no other member. Nothing is changed in etcd's member list. From then on the members follow \
the roles of their nodes.

Examples:
  quorate adopt                    # all members
  quorate adopt etcd-1 8e9e05c52164694d")]
pub struct AdoptArgs {
    /// Ids (hexadecimal) or names of members; all that have no record, if none is given
    #[arg(value_name = "MEMBER")]
    members: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// 3 for a member that is not in the list, 4 for one that cannot be adopted.
pub async fn run(args: AdoptArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let store = connect(etcd).await?;
    let list = store.etcd.list_members().await.map_err(Failure::failed)?;
    let chosen = choose(&list, &args.members)?;
    let mut failures = Vec::new();
    for member in chosen {
        match adopt(&store, member).await {
            Ok(line) => _ = print(&format!("{line}\n"))? == Reader::Gone,
            Err(failure) => failures.push(failure),
        }
    }
    let Some(first) = failures.first() else {
        return Ok(());
    };
    let lines: Vec<String> = failures.iter().map(|failure| format!("\n  {failure}")).collect();
    Err(Failure::new(
        first.exit,
        format!("not every member was adopted{}", lines.concat()),
    ))
}

fn choose<'a>(list: &'a MemberList, named: &[String]) -> Result<Vec<&'a ListedMember>, Failure> {
    if named.is_empty() {
        return Ok(list.members.iter().collect());
    }
    let mut chosen: Vec<&ListedMember> = Vec::new();
    for text in named {
        let found = find(list, text);
        match found[..] {
            [member] if chosen.contains(&member) => {}
            [member] => chosen.push(member),
            [] => {
                let text = text.escape_debug();
                return Err(
                    Failure::new(Exit::NotFound, format!("no member has the id or name \"{text}\""))
                        .hint("quorate get members lists them"),
                );
            }
            _ => {
                return Err(Failure::usage(format!(
                    "{} members are named {text}: give the id of the one that is meant",
                    found.len()
                )));
            }
        }
    }
    Ok(chosen)
}

/// The members with this id or name. An id comes first: a name may look like one.
pub fn find<'a>(list: &'a MemberList, text: &str) -> Vec<&'a ListedMember> {
    let id = u64::from_str_radix(text, 16).ok();
    let by_id = list.members.iter().find(|member| Some(member.id.0) == id);
    match by_id {
        Some(member) => vec![member],
        None => {
            let named = list.members.iter().filter(|member| member.name == text);
            named.collect()
        }
    }
}

/// Ties one member to its node; what was done, in words.
///
/// # Errors
/// 4 by the rule that refuses it.
pub async fn adopt(store: &Store, listed: &ListedMember) -> Result<String, Failure> {
    let id = listed.id;
    let refuse = |rule: &str, why: String| {
        Failure::new(
            Exit::Refused,
            format!("member/{id}: refused by rule {rule}: {why}"),
        )
    };
    let key = store.keys.member(id);
    let mut delays = Delays::etcd();
    for _ in 0..ATTEMPTS {
        let (records, revision) = records(store).await?;
        if let Some(record) = records.get(&id) {
            return Ok(match &record.member {
                Ok(member) => {
                    format!("member/{id} belongs to node {} already", one_line(&member.node))
                }
                Err(malformed) => {
                    return Err(refuse(
                        "Malformed",
                        format!("its record cannot be read: {malformed}"),
                    ));
                }
            });
        }
        if !listed.is_started() {
            let why = "it has never started, so it has no name to call a node by".to_owned();
            return Err(refuse("NoName", why));
        }
        let name: Name = listed.name.parse().map_err(|error| {
            refuse(
                "NoName",
                format!("a node cannot be called as this member is: {error}"),
            )
        })?;
        let node_key = store.keys.node(&name);
        let (stored, _) = store.etcd.get(&node_key).await.map_err(Failure::failed)?;
        let mut txn = Txn::new()
            .when_absent(&key)
            .when_range_unwritten_since(&store.keys.members(), revision);
        let (uid, created) = match &stored {
            None => {
                let node = manager(&name);
                txn = txn.when_absent(&node_key).put(&node_key, node.encode_to_vec());
                (node.metadata.unwrap_or_default().uid, true)
            }
            Some(kv) => {
                let node: Node = decode(name.as_str(), &kv.value).map_err(|malformed| {
                    refuse("Malformed", format!("node {name} cannot be read: {malformed}"))
                })?;
                if node.spec.unwrap_or_default().desired_role() != Role::Manager {
                    // It would be removed from etcd at once.
                    let why =
                        format!("node {name} is a desired worker; quorate promote makes a manager of it");
                    return Err(refuse("NotAManager", why));
                }
                txn = txn.when_unchanged(&node_key, kv.mod_revision);
                (node.metadata.unwrap_or_default().uid, false)
            }
        };
        let other = records.iter().find(|(_, record)| {
            let member = record.member.as_ref();
            member.is_ok_and(|member| member.node == name.as_str() && member.node_uid == uid)
        });
        if let Some((other, _)) = other {
            return Err(refuse(
                "NodeHasMember",
                format!("node {name} has the member {other}"),
            ));
        }
        let record = Member {
            node: name.to_string(),
            node_uid: uid,
            peer_urls: listed.peer_urls.clone(),
            joined_at: Some(time::to_proto(Timestamp::now())),
            ..Member::default()
        };
        txn = txn.put(&key, record.encode_to_vec());
        if confirm::commit(&store.etcd, txn, "adopted").await? {
            return Ok(match created {
                true => format!("member/{id} adopted by node {name}, which is created as a manager"),
                false => format!("member/{id} adopted by node {name}"),
            });
        }
        delays.wait().await;
    }
    Err(confirm::overtaken())
}

/// A new node that is a manager: the one that its member is the proof of.
fn manager(name: &Name) -> Node {
    Node {
        metadata: Some(Metadata {
            name: name.to_string(),
            uid: uuid::Uuid::new_v4().to_string(),
            creation_time: Some(time::to_proto(Timestamp::now())),
            generation: 1,
            ..Metadata::default()
        }),
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
