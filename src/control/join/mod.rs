//! `Join`: makes a node and its first request for a certificate, for the holder of a token.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use prost::Message;
use tonic::{Code, Status};
use tracing::{debug, info, warn};

use super::Site;
use super::certificates::{Record, Requested};
use super::refusal;
use super::write::{Attempts, Decision};
use crate::etcd::{KeyValue, Txn};
use crate::identity::Token;
use crate::identity::request::RequestedKey;
use crate::kube::events::{Notice, Severity};
use crate::metrics::Outcome;
use crate::proto::node_certificate::State;
use crate::proto::{JoinToken, Metadata, Node, NodeJoinRequest, NodeJoinResponse};
use crate::store::keys::Joiner;
use crate::store::object::{Object, decode, message, node};
use crate::store::{Keys, Name, Store};

mod plan;

use plan::{Found, Refused, Step, plan};

/// The most of them at a time.
pub const MOST_IN_FLIGHT: usize = 64;

/// The most new nodes a second.
pub const MOST_NEW: u32 = 50;

/// A refused join is reported this often at most: anybody can make one, and an agent makes one again and again.
pub const REFUSALS_EVERY: Duration = Duration::from_secs(60);

/// What a node that joins has said.
struct Joining {
    token: Token,
    name: Name,
    csr: Vec<u8>,
    key: RequestedKey,
}

impl Joining {
    fn requested<'r>(&'r self, uid: &'r str, role: i32) -> Requested<'r> {
        Requested {
            node: &self.name,
            uid,
            csr: &self.csr,
            role,
        }
    }
}

/// Answers a call. It may be repeated: the holder of the key on record is the node that has joined.
///
/// # Errors
/// The refusal.
pub async fn join(site: &Site, request: NodeJoinRequest) -> Result<NodeJoinResponse, Status> {
    let joined = make(site, request).await;
    let result = match &joined {
        Ok((step, _)) => step.word(),
        Err(refused) => failure_word(refused.code()),
    };
    let joins = &site.store.etcd.metrics().node_joins;
    joins.get_or_create(&Outcome { result }).inc();
    let (_, node_uid) = joined?;
    refusal::unless_lost("control.join-reply")?;
    Ok(NodeJoinResponse { node_uid })
}

/// Why a node has not joined, as a word of the metric.
fn failure_word(code: Code) -> &'static str {
    match code {
        Code::InvalidArgument => "refused",
        Code::AlreadyExists => "name_in_use",
        Code::ResourceExhausted => "limited",
        _ => "failed",
    }
}

/// Makes the node of a call, or finds it; its uid.
async fn make(site: &Site, request: NodeJoinRequest) -> Result<(Step, String), Status> {
    let joining = read(request)?;
    // Before it takes the place of another one: a token of another authority is none of this cluster.
    let trust = site.trust.borrow().clone();
    if trust.is_some_and(|trust| !trust.trusts(joining.token.authority())) {
        return Err(refused(site, &joining, Refused::WrongToken));
    }
    let Ok(_in_flight) = site.joins.try_acquire() else {
        return Err(refusal::exhausted(format!(
            "{MOST_IN_FLIGHT} nodes join at this moment; try again"
        )));
    };
    let new_uid = uuid::Uuid::new_v4().to_string();
    let (mut attempts, mut is_counted) = (Attempts::default(), false);
    loop {
        let seen = observe(&site.store, &joining).await?;
        let step = plan(&seen.found(&joining)).map_err(|why| refused(site, &joining, why))?;
        if matches!(step, Step::Create(_)) && !is_counted {
            is_counted = site.may_add_node(Instant::now());
            if !is_counted {
                return Err(refusal::exhausted(format!(
                    "{MOST_NEW} nodes have joined in this second; try again"
                )));
            }
        }
        let decision = seen.decide(&joining, step, &new_uid, site);
        if let Some(node_uid) = attempts.carry_out(&site.store.etcd, decision).await? {
            report(&joining.name, step, &node_uid);
            return Ok((step, node_uid));
        }
    }
}

fn refused(site: &Site, joining: &Joining, why: Refused) -> Status {
    let note = format!("an agent may not join as node {}: {why}", joining.name);
    match site.may_report_refusal(Instant::now()) {
        true => {
            warn!("{note} (the next one is reported in {REFUSALS_EVERY:?} at the earliest)");
            site.notices.send(Notice {
                severity: Severity::Warning,
                reason: "NodeJoinRefused",
                action: "Join",
                note,
            });
        }
        false => debug!("{note}"),
    }
    Status::new(why.code(), why.to_string())
}

fn report(name: &Name, step: Step, uid: &str) {
    match step {
        Step::Create(role) => info!(
            "node {name} ({uid}) has joined as a {}",
            node::role_word(role.into())
        ),
        Step::TakeOver => info!("an agent has taken over node {name} ({uid}) with the token of the node"),
        Step::Again => info!("node {name} ({uid}) requests its first certificate again"),
        Step::Known => debug!("node {name} ({uid}) has joined before"),
    }
}

fn read(request: NodeJoinRequest) -> Result<Joining, Status> {
    let NodeJoinRequest { token, name, csr } = request;
    Ok(Joining {
        token: token.parse().map_err(refusal::invalid)?,
        name: name.parse().map_err(refusal::invalid)?,
        key: RequestedKey::read(&csr).map_err(refusal::invalid)?,
        csr,
    })
}

/// What the store holds about a join.
struct Seen {
    /// The token in etcd that is the one of the join.
    token: Option<(Joiner, JoinToken, KeyValue)>,
    /// The node of the name, with its key.
    node: Option<(Node, KeyValue)>,
    /// The record of that node's certificate.
    certificate: Option<Record>,
}

async fn observe(store: &Store, joining: &Joining) -> Result<Seen, Status> {
    let Store { etcd, keys } = store;
    let joiners = [
        Joiner::Worker,
        Joiner::Manager,
        Joiner::Node(joining.name.clone()),
    ];
    let [worker, manager, own] = joiners.each_ref().map(|joiner| keys.join_token(joiner));
    let key = keys.node(&joining.name);
    let read = etcd.get_each([&worker, &manager, &own, &key]).await;
    let ([worker, manager, own, node], _) = read.map_err(|error| refusal::unavailable(&error))?;
    let mut tokens = joiners.into_iter().zip([worker, manager, own]);
    let token = tokens.find_map(|(joiner, stored)| {
        let stored = stored?;
        let record: JoinToken = message("JoinToken", &stored.value).ok()?;
        let is_its = joining.token.is_recorded_as(&record);
        is_its.then_some((joiner, record, stored))
    });
    let mut seen = Seen {
        token,
        node: None,
        certificate: None,
    };
    if let Some(stored) = node {
        let node: Node = decode(joining.name.as_str(), &stored.value)
            .map_err(|_| refusal::unreadable(format_args!("node {}", joining.name)))?;
        seen.certificate = Record::read(store, node.uid()).await?;
        seen.node = Some((node, stored));
    }
    Ok(seen)
}

impl Seen {
    fn found<'s>(&'s self, joining: &Joining) -> Found<'s> {
        Found {
            joiner: self.token.as_ref().map(|(joiner, ..)| joiner),
            node_of_token: self.token.as_ref().map_or("", |(_, record, _)| &record.node_uid),
            node: self.node.as_ref().map(|(node, _)| node.uid()),
            is_key_on_record: self.key_on_record().as_ref() == Some(&joining.key),
            is_abandoned: self.certificate.as_ref().is_some_and(is_abandoned),
        }
    }

    fn key_on_record(&self) -> Option<RequestedKey> {
        let request = self.certificate.as_ref()?.value.request.as_ref()?;
        RequestedKey::read(&request.csr).ok()
    }

    /// The writes of a step, each compared with what the step was decided from.
    fn decide(&self, joining: &Joining, step: Step, new_uid: &str, site: &Site) -> Decision<String> {
        let keys = &site.store.keys;
        match step {
            Step::Known => {
                Decision::Nothing(self.node.as_ref().map_or("", |(node, _)| node.uid()).to_owned())
            }
            Step::Again => self.request(joining, Txn::new(), keys),
            // The token is for one agent, and one time.
            Step::TakeOver => self.request(joining, self.delete_token(self.while_in_force(keys), keys), keys),
            Step::Create(role) => {
                let now = Timestamp::now();
                let node_key = keys.node(&joining.name);
                let node = site.new_node(Metadata::new(&joining.name, new_uid, now), role);
                let txn = self
                    .while_in_force(keys)
                    .when_absent(&node_key)
                    .put(&node_key, node.encode_to_vec());
                let txn = joining
                    .requested(new_uid, role.into())
                    .record(txn, keys, None, now);
                Decision::Write(txn, new_uid.to_owned())
            }
        }
    }

    /// Requires that the token is as it was read: one that is rotated meanwhile lets in no more.
    fn while_in_force(&self, keys: &Keys) -> Txn {
        let txn = Txn::new();
        match &self.token {
            Some((joiner, _, stored)) => txn.when_unchanged(&keys.join_token(joiner), stored.mod_revision),
            None => txn,
        }
    }

    fn delete_token(&self, txn: Txn, keys: &Keys) -> Txn {
        match &self.token {
            Some((joiner, ..)) => txn.delete(&keys.join_token(joiner)),
            None => txn,
        }
    }

    /// Requests a certificate for the node that exists.
    fn request(&self, joining: &Joining, txn: Txn, keys: &Keys) -> Decision<String> {
        // The plan does so for a node that exists alone.
        let Some((node, stored)) = &self.node else {
            return Decision::Nothing(String::new());
        };
        let uid = node.uid();
        let txn = txn
            .when_created_at(&keys.node(&joining.name), stored.create_revision)
            .when_absent(&keys.removed(uid));
        let observed = node.status.as_ref().map_or(0, |status| status.role);
        let requested = joining.requested(uid, observed);
        let txn = requested.record(txn, keys, self.certificate.as_ref(), Timestamp::now());
        Decision::Write(txn, uid.to_owned())
    }
}

fn is_abandoned(record: &Record) -> bool {
    let ended = matches!(record.value.state(), State::Rotate | State::Failed);
    ended && record.value.chain.is_empty()
}
