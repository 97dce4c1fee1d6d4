//! The rules by which requests are refused. Commands check them to answer at once, and the leader checks them again when
//! it carries a request out. Pure.
//!
//! A command writes in a transaction that compares everything in the store that its check used: each record and the node
//! of each. The member list and the health of members are etcd's own and cannot be compared; the leader reads them again
//! before every change.

use std::fmt;
use std::net::IpAddr;

use super::membership::{Member, Membership};
use super::owner::NodeRoles;
use super::quorum::Quorum;
use super::reason::Reason;
use crate::etcd::MemberId;
use crate::proto::Role;

/// The refusal of a request by a rule. The same request is refused again until something changes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The rule that refuses it.
    pub rule: Reason,
    message: String,
}

impl Refusal {
    /// A refusal by this rule, with a message for people.
    pub fn new(rule: Reason, message: impl fmt::Display) -> Self {
        Self {
            rule,
            message: message.to_string(),
        }
    }

    /// The refusal of a manager without a member.
    pub fn not_a_member(name: &str) -> Self {
        let message = format_args!("node {name} is a manager but has no member in etcd's list");
        Self::new(Reason::NotAMember, message)
    }

    /// The refusal to replace a member that answers.
    pub fn member_healthy(id: MemberId) -> Self {
        let message = format_args!("member {id} answers; only a member that has lost its data is replaced");
        Self::new(Reason::MemberHealthy, message)
    }

    /// The refusal of a node that was removed.
    pub fn node_removed(name: &str) -> Self {
        let message = format_args!("node {name} was removed; a removed uid is never admitted again");
        Self::new(Reason::NodeRemoved, message)
    }
}

impl Membership {
    /// Whether this node, a desired manager, may be demoted. The member of another node that had its name is none of its own.
    ///
    /// # Errors
    /// [`Refusal`] by one of the rules `NotAMember`, `LastManager`, `QuorumRisk`, in this order.
    pub fn check_demotion(&self, node: &str, uid: &str, observed: Role) -> Result<(), Refusal> {
        let own: Vec<&Member> = self.members_of_node(node, uid).collect();
        if own.is_empty() {
            // A promotion that is not carried out yet can be withdrawn: it has had no effect.
            if observed != Role::Manager {
                return Ok(());
            }
            return Err(Refusal::not_a_member(node));
        }
        let mut others = self.voters().filter(|member| !member.is_of(node, uid));
        if own.iter().any(|member| member.is_voter()) && !others.any(Member::stays) {
            return Err(Refusal::new(
                Reason::LastManager,
                format_args!("node {node} is the last manager: no other desired manager is a voter"),
            ));
        }
        // They leave whether or not the request is carried out. A member that does not answer strengthens the quorum by
        // leaving, whatever the others do.
        let answers = own.iter().any(|member| member.is_healthy());
        let leaving = self.listed().filter(|member| answers && member.cause().is_some());
        let gone: Vec<MemberId> = own.into_iter().chain(leaving).map(|member| member.id).collect();
        let left = Quorum::without(&self.votes(), &gone);
        match left.holds() {
            true => Ok(()),
            false => Err(Refusal::new(
                Reason::QuorumRisk,
                left.lost(format_args!("without node {node}")),
            )),
        }
    }

    /// Whether a node may be removed: `desired` is `None` if its value cannot be read. With it go the members of nodes that had
    /// its name and whose removal is not recorded.
    ///
    /// # Errors
    /// [`Refusal`] by one of the rules `MemberOfEtcd`, `LastVoter`, in this order.
    pub fn check_removal(&self, node: &str, desired: Option<Role>) -> Result<(), Refusal> {
        let own: Vec<&Member> = self.members_of(node).collect();
        if !own.is_empty() && desired != Some(Role::Worker) {
            return Err(Refusal::new(
                Reason::MemberOfEtcd,
                format_args!("node {node} is a desired manager with a member in etcd's list"),
            ));
        }
        let is_own = |member: &Member| own.iter().any(|own| own.id == member.id);
        if own.iter().any(|member| member.is_voter()) && self.voters().all(is_own) {
            return Err(Refusal::new(
                Reason::LastVoter,
                format_args!("the member of node {node} is etcd's last voter"),
            ));
        }
        Ok(())
    }

    /// Whether a node may join with these peer URLs. `roles` is `None` if no node has the name and uid of the request;
    /// `removed` is whether that uid is recorded as removed. The member of another node that had its name is none of its own.
    ///
    /// # Errors
    /// [`Refusal`] by one of the rules `NodeRemoved`, `NodeNotFound`, `NotAManager`, `BadPeerUrl`, `PeerUrlTaken`, in
    /// this order.
    pub fn check_join(
        &self,
        name: &str,
        uid: &str,
        roles: Option<NodeRoles>,
        removed: bool,
        peer_urls: &[String],
    ) -> Result<(), Refusal> {
        if removed {
            return Err(Refusal::node_removed(name));
        }
        check_manager(name, roles)?;
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
        self.check_peer_hosts(name, uid, peer_urls)?;
        // A URL of a member that leaves is free soon; the leader waits for that.
        let others = self.listed().filter(|member| !member.is_of(name, uid));
        for other in others.filter(|member| member.cause().is_none()) {
            if let Some(taken) = peer_urls.iter().find(|url| other.peer_urls().contains(url)) {
                let earlier = match other.node() == name {
                    true => format!(
                        ", which is an earlier one (quorate adopt {} ties it to this one)",
                        other.id
                    ),
                    false => String::new(),
                };
                return Err(Refusal::new(
                    Reason::PeerUrlTaken,
                    format_args!("peer URL {taken} belongs to {other}{earlier}"),
                ));
            }
        }
        Ok(())
    }

    /// Whether the other members can use these peer URLs at all, whatever listens there.
    fn check_peer_hosts(&self, name: &str, uid: &str, peer_urls: &[String]) -> Result<(), Refusal> {
        let others = || self.listed().filter(|member| !member.is_of(name, uid));
        let urls_of_others = || others().flat_map(Member::peer_urls);
        let scheme = |url: &str| url.split_once("://").map(|(scheme, _)| scheme.to_owned());
        // Members that move change from http to https one after the other.
        let moves = self.member_of_node(name, uid).is_some();
        for url in peer_urls {
            let refused = |why: &str| {
                Err(Refusal::new(
                    Reason::BadPeerUrl,
                    format_args!("peer URL {url} {why}"),
                ))
            };
            let host = Host::of(url);
            if host == Host::Unspecified {
                return refused("names no machine: it is an address to listen at");
            }
            if host == Host::Loopback && urls_of_others().any(|url| Host::of(url) != Host::Loopback) {
                return refused("is that of each machine itself, where others do not reach it");
            }
            let alike = urls_of_others().any(|other| scheme(other) == scheme(url));
            if !moves && !alike && urls_of_others().next().is_some() {
                return refused("has another scheme than those of all other members");
            }
        }
        Ok(())
    }

    /// Whether this member may be removed so that its node joins again with an empty data directory: it does not answer, or
    /// an operator gives it up (`forced`).
    ///
    /// A member that does not answer is no part of the quorum. So where etcd has one, it has one without the member too: to
    /// add the new member first would gain nothing.
    ///
    /// # Errors
    /// [`Refusal`] by one of the rules `LastVoter`, `MemberHealthy`, `QuorumRisk`, in this order.
    pub fn check_replacement(&self, member: &Member, forced: bool) -> Result<(), Refusal> {
        let id = member.id;
        if member.is_voter() && self.voters().all(|voter| voter.id == id) {
            let message = format_args!("member {id} is etcd's last voter, so no other has its data");
            return Err(Refusal::new(Reason::LastVoter, message));
        }
        if member.is_healthy() && !forced {
            return Err(Refusal::member_healthy(id));
        }
        let left = Quorum::without(&self.votes(), &[id]);
        match left.holds() {
            true => Ok(()),
            false => Err(Refusal::new(
                Reason::QuorumRisk,
                left.lost(format_args!("without member {id}")),
            )),
        }
    }
}

/// Whether a node is a manager, and stays one; `roles` is `None` if it does not exist.
///
/// # Errors
/// [`Refusal`] by one of the rules `NodeNotFound`, `NotAManager`.
pub fn check_manager(name: &str, roles: Option<NodeRoles>) -> Result<(), Refusal> {
    let Some(roles) = roles else {
        return Err(Refusal::new(
            Reason::NodeNotFound,
            format_args!("node {name} does not exist"),
        ));
    };
    if roles.observed == Role::Manager && roles.desired != Role::Worker {
        return Ok(());
    }
    let is = match roles.observed {
        Role::Manager => "is being demoted",
        Role::Worker | Role::Unspecified => "is a worker",
    };
    Err(Refusal::new(
        Reason::NotAManager,
        format_args!("node {name} {is}; only managers join etcd"),
    ))
}

/// Whether other machines can reach the host of a peer URL.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Host {
    Unspecified,
    Loopback,
    Reachable,
}

impl Host {
    fn of(url: &str) -> Self {
        let authority = url.split_once("://").map_or(url, |(_, authority)| authority);
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        let host = host.trim_matches(['[', ']']);
        match host.parse::<IpAddr>() {
            Ok(address) if address.is_unspecified() => Self::Unspecified,
            Ok(address) if address.is_loopback() => Self::Loopback,
            Err(_) if host == "localhost" => Self::Loopback,
            _ => Self::Reachable,
        }
    }
}

/// Whether etcd accepts this as a peer URL: `http` or `https`, a host, a port, and nothing else.
///
/// # Errors
/// What is wrong, in words that follow the URL.
pub fn check_peer_url(url: &str) -> Result<(), &'static str> {
    const EXPECTED: &str = "is invalid: expected like https://10.0.0.1:2380";
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
