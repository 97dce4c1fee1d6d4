//! Which requests are refused, by which rule. For commands, which answer at once, and for the leader, which looks again
//! when it carries a request out. Pure.
//!
//! A command writes in a transaction that compares everything that its check looked at in the store: each record, and the
//! node of each, unchanged. The member list and the health of members are etcd's own and cannot be compared; the leader
//! looks at them anew before every change.

use std::collections::BTreeSet;
use std::fmt;

use super::quorum::{Quorum, Standing};
use super::reason::Reason;
use crate::etcd::{MemberId, Revision};
use crate::proto::Role;

/// A member of etcd's list that has a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Managed {
    /// The member, and its health.
    pub standing: Standing,
    /// Its peer URLs, from the list.
    pub peer_urls: Vec<String>,
    /// When the record was last written.
    pub record: Revision,
    /// Whether the record holds the intent to remove it.
    pub removal: bool,
    /// The name of its node, from the record.
    pub node: String,
    /// Its node; `None` if no node of this name has the uid in the record.
    pub known: Option<Known>,
}

/// A node that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// What the operator wants.
    pub desired: Role,
    /// What the leader found.
    pub observed: Role,
    /// When it was last written.
    pub node: Revision,
}

/// The member list, the records and the nodes of the records, read for one check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Managers {
    /// Listed members with a record.
    pub managed: Vec<Managed>,
    /// Listed members without one.
    pub unmanaged: Vec<(Standing, Vec<String>)>,
}

/// A request that is refused, and by which rule. The same request gets the same answer until something changes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The rule.
    pub rule: Reason,
    message: String,
}

impl Refusal {
    /// By this rule, in these words.
    pub fn new(rule: Reason, message: impl fmt::Display) -> Self {
        Self {
            rule,
            message: message.to_string(),
        }
    }
}

impl Managers {
    /// The listed members of this node: more than one only where someone wrote records by hand.
    pub fn of<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Managed> {
        self.managed.iter().filter(move |managed| managed.node == node)
    }

    fn standings(&self) -> impl Iterator<Item = &Standing> {
        let unmanaged = self.unmanaged.iter().map(|(standing, _)| standing);
        self.managed
            .iter()
            .map(|managed| &managed.standing)
            .chain(unmanaged)
    }

    /// Members that are on their way out whatever becomes of the request.
    fn leaving(&self) -> impl Iterator<Item = &Managed> {
        self.managed.iter().filter(|managed| managed.is_leaving())
    }

    /// Whether the node, a desired manager that is to be a desired worker, may be demoted.
    ///
    /// # Errors
    /// [`Refusal`] by one of the rules `NotAMember`, `LastManager`, `QuorumRisk`, in this order.
    pub fn check_demotion(&self, node: &str, observed: Role) -> Result<(), Refusal> {
        let own: Vec<&Managed> = self.of(node).collect();
        if own.is_empty() {
            // A promotion that was not carried out yet can be taken back; it has not led to anything.
            if observed != Role::Manager {
                return Ok(());
            }
            return Err(Refusal::new(
                Reason::NotAMember,
                format_args!("node {node} is a manager, but not in the member list of etcd"),
            ));
        }
        let votes = |managed: &Managed| !managed.standing.learner && !managed.is_leaving();
        let others = self
            .managed
            .iter()
            .filter(|managed| managed.node != node && votes(managed));
        if own.iter().any(|managed| !managed.standing.learner) && others.count() == 0 {
            return Err(Refusal::new(
                Reason::LastManager,
                format_args!("node {node} is the last manager: no other desired manager is a voter"),
            ));
        }
        let gone: Vec<MemberId> = own
            .into_iter()
            .chain(self.leaving())
            .map(|managed| managed.standing.id)
            .collect();
        self.check_quorum(&gone, format_args!("without node {node}"))
    }

    /// Whether a node may be removed: `desired` is `None` if its value cannot be read.
    ///
    /// # Errors
    /// [`Refusal`] by one of the rules `MemberOfEtcd`, `LastVoter`, in this order.
    pub fn check_removal(&self, node: &str, desired: Option<Role>) -> Result<(), Refusal> {
        let own: Vec<&Managed> = self.of(node).collect();
        if !own.is_empty() && desired != Some(Role::Worker) {
            return Err(Refusal::new(
                Reason::MemberOfEtcd,
                format_args!("node {node} is a desired manager and in the member list of etcd"),
            ));
        }
        let gone: BTreeSet<MemberId> = own.iter().map(|managed| managed.standing.id).collect();
        let voters = |member: &&Standing| !member.learner;
        let left = self.standings().filter(voters);
        if own.iter().any(|managed| !managed.standing.learner)
            && left.filter(|member| !gone.contains(&member.id)).count() == 0
        {
            return Err(Refusal::new(
                Reason::LastVoter,
                format_args!("the member of node {node} is the last voter of etcd"),
            ));
        }
        Ok(())
    }

    /// Whether a node may join with these peer URLs. `node` is `None` if there is none of this name and uid; `removed`
    /// says whether that uid is on record as removed.
    ///
    /// # Errors
    /// [`Refusal`] by one of the rules `NodeRemoved`, `NodeNotFound`, `NotAManager`, `BadPeerUrl`, `PeerUrlTaken`, in
    /// this order.
    pub fn check_join(
        &self,
        name: &str,
        node: Option<Known>,
        removed: bool,
        peer_urls: &[String],
    ) -> Result<(), Refusal> {
        if removed {
            return Err(Refusal::new(
                Reason::NodeRemoved,
                format_args!("node {name} was removed: a node of its uid is never admitted again"),
            ));
        }
        let Some(node) = node else {
            return Err(Refusal::new(
                Reason::NodeNotFound,
                format_args!("there is no node {name}"),
            ));
        };
        if node.observed != Role::Manager || node.desired == Role::Worker {
            let is = match node.observed {
                Role::Manager => "is to be a worker",
                Role::Worker | Role::Unspecified => "is a worker",
            };
            return Err(Refusal::new(
                Reason::NotAManager,
                format_args!("node {name} {is}; only managers are members of etcd"),
            ));
        }
        if peer_urls.is_empty() {
            return Err(Refusal::new(Reason::BadPeerUrl, "no peer URL is given"));
        }
        for url in peer_urls {
            if let Err(why) = check_peer_url(url) {
                return Err(Refusal::new(
                    Reason::BadPeerUrl,
                    format_args!("peer URL {:?} {why}", url.as_str()),
                ));
            }
        }
        let others = self
            .managed
            .iter()
            .filter(|managed| managed.node != name)
            .map(|managed| (managed.standing.id, &managed.peer_urls, managed.node.as_str()));
        let unmanaged = self
            .unmanaged
            .iter()
            .map(|(standing, urls)| (standing.id, urls, ""));
        for (id, urls, owner) in others.chain(unmanaged) {
            if let Some(taken) = peer_urls.iter().find(|url| urls.contains(url)) {
                let owner = match owner {
                    "" => format!("member {id}, which has no node"),
                    node => format!("member {id} of node {node}"),
                };
                return Err(Refusal::new(
                    Reason::PeerUrlTaken,
                    format_args!("peer URL {taken} is that of {owner}"),
                ));
            }
        }
        Ok(())
    }

    fn check_quorum(&self, gone: &[MemberId], what: fmt::Arguments<'_>) -> Result<(), Refusal> {
        let left = Quorum::without(self.standings(), gone);
        match left.holds() {
            true => Ok(()),
            false => Err(Refusal::new(
                Reason::QuorumRisk,
                format_args!("{what} etcd would have no healthy quorum: {left}"),
            )),
        }
    }
}

impl Managed {
    /// Whether it is to be removed: decided, not wanted, or without a node.
    pub fn is_leaving(&self) -> bool {
        self.removal || self.known.is_none_or(|known| known.desired != Role::Manager)
    }
}

/// Whether etcd takes this as a peer URL: `http` or `https`, a host, a port, and nothing else.
///
/// # Errors
/// What is wrong, to be put after the URL.
pub fn check_peer_url(url: &str) -> Result<(), &'static str> {
    const EXPECTED: &str = "is none: expected like https://10.0.0.1:2380";
    let address = url
        .strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"));
    let parsed: http::uri::Authority = address
        .filter(|address| !address.contains('@'))
        .and_then(|address| address.parse().ok())
        .ok_or(EXPECTED)?;
    match parsed.port_u16() {
        Some(1..) if !parsed.host().is_empty() => Ok(()),
        _ => Err(EXPECTED),
    }
}

#[cfg(test)]
mod tests;
