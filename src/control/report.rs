//! `Report`: the release of an agent, its CSI plugins, whether it keeps the etcd of its node, and whether the data of its member is lost.
//! Nothing else of a node can be reported here: the gate and the election never read what an agent says.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::MutexGuard;
use tokio::time::timeout;
use tonic::Status;

use super::Site;
use super::caller::Caller;
use super::refusal;
use super::write::{Attempts, Decision};
use crate::etcd::{MemberId, Revision, Txn};
use crate::proto::{CsiNode, MemberReport, Node, NodeStatus, ReportRequest, ReportResponse};
use crate::release::Release;
use crate::roles::node_update;
use crate::store::Store;
use crate::store::keys::NodeKey;
use crate::store::object::decode;
use crate::store::object::node::DATA_LOST;

/// The fields `NodeStatus.csi`, `NodeStatus.agent_release` and `NodeStatus.keeps_etcd`.
const REPORTED: [u64; 3] = [4, 6, 7];

/// More plugins than a node has.
const MOST_PLUGINS: usize = 128;

/// The most bytes of a node id, from the CSI specification.
const MOST_NODE_ID: usize = 256;

/// How long a report with a new node id waits for those before it.
const CLAIM_LIMIT: Duration = Duration::from_secs(5);

/// The most bytes of the name of a plugin, and of a key and a value of its topology.
const MOST_TEXT: usize = 128;

/// The most keys of a topology.
const MOST_TOPOLOGY: usize = 32;

/// The reason of the condition [`DATA_LOST`].
const NO_DATA: &str = "DataDirectoryEmpty";

/// The most bytes of what is said about that.
const MOST_MESSAGE: usize = 1024;

/// Answers a call. A report that changes nothing is not written: every write below `/nodes/` delays a restriction of the status.
///
/// Where its plugins are refused, those on record stay, and the rest is recorded all the same: a plugin that reports a wrong node id does
/// not hide that the member has lost its data.
///
/// # Errors
/// The refusal.
pub async fn report(
    site: &Site,
    mut caller: Caller,
    mut report: ReportRequest,
) -> Result<ReportResponse, Status> {
    check(&report)?;
    let mut refused = check_csi(&report.csi).err();
    let Store { etcd, keys } = &site.store;
    // Of several reports with new node ids, each proves that no other was written meanwhile: beside each other all but one would fail.
    let mut alone = None;
    let mut attempts = Attempts::default();
    let mut is_counted = false;
    loop {
        if refused.is_some() {
            report.csi = known_csi(caller.node()).to_vec();
        }
        let decision = match reported(&caller, &report) {
            None => Decision::Nothing(()),
            Some(value) => {
                if !is_counted {
                    site.count_write(caller.uid())?;
                    is_counted = true;
                }
                let key = keys.node(caller.name());
                let claimed = claim_node_ids(site, &mut alone, &caller, &report).await;
                let txn = match claimed {
                    Ok(txn) => txn,
                    Err(why) => {
                        (refused, alone) = (Some(why), None);
                        continue;
                    }
                };
                let txn = txn.when_unchanged(&key, caller.revision()).put(&key, value);
                Decision::Write(txn, ())
            }
        };
        if attempts.carry_out(etcd, decision).await?.is_some() {
            return match refused {
                None => Ok(ReportResponse {}),
                Some(why) => Err(refusal::of_plugins(&why)),
            };
        }
        caller = caller.again(&site.store).await?;
    }
}

/// A transaction of the caller. Where it claims a node id, this waits until no other report of this replica does, unless `alone` says so
/// already, and the transaction compares that no other node has come to report one.
async fn claim_node_ids<'s>(
    site: &'s Site,
    alone: &mut Option<MutexGuard<'s, ()>>,
    caller: &Caller,
    report: &ReportRequest,
) -> Result<Txn, Status> {
    let keys = &site.store.keys;
    let txn = caller.writes(keys);
    if !has_new_node_id(caller.node(), report) {
        return Ok(txn);
    }
    if alone.is_none() {
        *alone = Some(claim(site).await?);
    }
    let seen = check_node_ids(&site.store, caller, report).await?;
    Ok(txn.when_range_unwritten_since(&keys.nodes(), seen))
}

/// Waits until no other report of this replica claims a node id.
async fn claim(site: &Site) -> Result<MutexGuard<'_, ()>, Status> {
    let claiming = timeout(CLAIM_LIMIT, site.node_ids.lock()).await;
    claiming.map_err(|_| refusal::exhausted("many nodes report new node ids; try again"))
}

/// Checks what can be said of a report alone, besides its plugins.
fn check(report: &ReportRequest) -> Result<(), Status> {
    let release = report.agent_release.as_ref();
    let release = release.ok_or_else(|| refusal::invalid("agent_release is missing"))?;
    Release::from_proto(Some(release))
        .map_err(|bad| refusal::invalid(format_args!("agent_release: {bad}")))?;
    let message = report.member.as_ref().map_or("", |member| &member.message);
    if message.len() > MOST_MESSAGE || message.chars().any(char::is_control) {
        let why = format!("member.message has more than {MOST_MESSAGE} bytes, or is no single line");
        return Err(refusal::invalid(why));
    }
    Ok(())
}

/// Checks what can be said of plugins alone.
fn check_csi(csi: &[CsiNode]) -> Result<(), Status> {
    if csi.len() > MOST_PLUGINS {
        return Err(refusal::invalid(format_args!(
            "csi has more than {MOST_PLUGINS} plugins"
        )));
    }
    let mut plugins = BTreeSet::new();
    for CsiNode {
        plugin,
        node_id,
        topology,
    } in csi
    {
        if plugin.is_empty() || plugin.len() > MOST_TEXT {
            let why = format!("a plugin of csi has no name, or one of more than {MOST_TEXT} bytes");
            return Err(refusal::invalid(why));
        }
        let is_long = |text: &String| text.len() > MOST_TEXT;
        if topology.len() > MOST_TOPOLOGY
            || topology.iter().any(|(key, value)| is_long(key) || is_long(value))
        {
            return Err(refusal::invalid(format_args!(
                "the topology of plugin {plugin} is too large"
            )));
        }
        // An empty node id must reach no CSI call (INV-6), so none is taken in.
        if node_id.is_empty() || node_id.len() > MOST_NODE_ID {
            let why = format!("the node id of plugin {plugin} is empty, or longer than {MOST_NODE_ID} bytes");
            return Err(refusal::invalid(why));
        }
        if !plugins.insert(plugin) {
            return Err(refusal::invalid(format_args!(
                "plugin {plugin} occurs twice in csi"
            )));
        }
    }
    Ok(())
}

/// The node with this report; `None` if it says that already. What only a later release knows of the node and its status stays; of a
/// plugin and of a release it goes, since these are as the agent reports them now.
fn reported(caller: &Caller, report: &ReportRequest) -> Option<Vec<u8>> {
    let value = with_report(caller, report);
    let stored = value.as_deref().unwrap_or(caller.stored());
    let member = report.member.as_ref();
    let with_condition = member.and_then(|member| with_data_lost(stored, member));
    with_condition.or(value)
}

/// The node with the condition [`DATA_LOST`], or without it; `None` if it is so already.
fn with_data_lost(stored: &[u8], member: &MemberReport) -> Option<Vec<u8>> {
    let (id, message) = (MemberId(member.member_id), &member.message);
    let why =
        format!("member {id} has lost its data, and etcd is not started on an empty directory: {message}");
    let why = member.data_lost.then_some((NO_DATA, &*why));
    node_update::with_condition(stored, DATA_LOST, why, Timestamp::now())
}

/// The node with the release and the plugins of this report, and with whether its agent keeps its etcd; `None` if it says that already.
fn with_report(caller: &Caller, report: &ReportRequest) -> Option<Vec<u8>> {
    let before = caller.node().status.clone().unwrap_or_default();
    let known = (before.agent_release, &before.csi, before.keeps_etcd);
    let is_new = known != (report.agent_release, &report.csi, report.keeps_etcd);
    let change = NodeStatus {
        agent_release: report.agent_release,
        csi: report.csi.clone(),
        keeps_etcd: report.keeps_etcd,
        ..NodeStatus::default()
    };
    is_new.then(|| node_update::with_status(caller.stored(), &REPORTED, &change))
}

/// The plugins of a node that are on record.
fn known_csi(node: &Node) -> &[CsiNode] {
    node.status.as_ref().map_or(&[][..], |status| &status.csi)
}

fn has_new_node_id(node: &Node, report: &ReportRequest) -> bool {
    let is_known = |csi: &CsiNode| known_csi(node).iter().any(|known| is_same(known, csi));
    !report.csi.iter().all(is_known)
}

fn is_same(one: &CsiNode, other: &CsiNode) -> bool {
    one.plugin == other.plugin && one.node_id == other.node_id
}

/// Checks that no other node reports one of these node ids: volumes would be attached to that node in place of this one. The revision
/// at which none does.
async fn check_node_ids(store: &Store, caller: &Caller, report: &ReportRequest) -> Result<Revision, Status> {
    let Store { etcd, keys } = store;
    let read = etcd.list(&keys.nodes()).await;
    let (stored, revision) = read.map_err(|error| refusal::unavailable(&error))?;
    for kv in &stored {
        let NodeKey::Node(name) = keys.parse_node(&kv.key) else {
            continue;
        };
        // Any of these node ids may be its own.
        let node: Node = decode(name, &kv.value)
            .map_err(|_| refusal::unreadable(format_args!("node {name}, which may have that node id,")))?;
        let taken = known_csi(&node);
        let taken = report
            .csi
            .iter()
            .find(|csi| taken.iter().any(|other| is_same(other, csi)));
        if let Some(CsiNode { plugin, node_id, .. }) = taken.filter(|_| name != caller.name().as_str()) {
            let why =
                format!("DuplicateNodeID: node {name} reports the node id {node_id} of plugin {plugin}");
            return Err(Status::already_exists(why));
        }
    }
    Ok(revision)
}
