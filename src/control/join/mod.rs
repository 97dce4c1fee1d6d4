//! `Join`: makes a node and its first request for a certificate, for the holder of a token.

use std::time::Instant;

use jiff::Timestamp;
use prost::Message;
use tonic::Status;
use tracing::{debug, info};

use super::Site;
use super::certificates::{Record, Requested};
use super::refusal;
use super::write::{Attempts, Decision};
use crate::etcd::{KeyValue, Txn};
use crate::failpoint;
use crate::identity::Token;
use crate::identity::request::RequestedKey;
use crate::proto::{JoinToken, Metadata, Node, NodeJoinRequest, NodeJoinResponse};
use crate::store::keys::Joiner;
use crate::store::object::{Object, decode, message, node};
use crate::store::{Name, Store};

mod plan;

use plan::{Found, Step, plan};

/// The most of them at a time.
pub const MOST_IN_FLIGHT: usize = 64;

/// The most new nodes a second.
pub const MOST_NEW: u32 = 50;

/// What a node that joins has said.
struct Joining {
    token: Token,
    name: Name,
    csr: Vec<u8>,
    key: RequestedKey,
}

/// Answers a call. It may be repeated: the holder of the key on record is the node that has joined.
///
/// # Errors
/// The refusal.
pub async fn join(site: &Site, request: NodeJoinRequest) -> Result<NodeJoinResponse, Status> {
    let Ok(_in_flight) = site.joins.try_acquire() else {
        return Err(refusal::exhausted(format!(
            "{MOST_IN_FLIGHT} nodes join at this moment; try again"
        )));
    };
    let joining = read(request)?;
    let new_uid = uuid::Uuid::new_v4().to_string();
    let (mut attempts, mut is_counted) = (Attempts::default(), false);
    loop {
        let seen = observe(&site.store, &joining).await?;
        let step = plan(&seen.found(&joining)).map_err(|refused| {
            debug!("a node that says it is {} may not join: {refused}", joining.name);
            Status::new(refused.code(), refused.to_string())
        })?;
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
            report(site, &joining.name, step, &node_uid);
            if failpoint::drop_reply_at("control.join-reply") {
                return Err(Status::unavailable("the reply was lost"));
            }
            return Ok(NodeJoinResponse { node_uid });
        }
    }
}

fn report(site: &Site, name: &Name, step: Step, uid: &str) {
    match step {
        Step::Create(role) => {
            site.store.etcd.metrics().nodes_joined.inc();
            info!(
                "node {name} ({uid}) has joined as a {}",
                node::role_word(role.into())
            );
        }
        Step::TakeOver => {
            site.store.etcd.metrics().nodes_joined.inc();
            info!("an agent has taken over node {name} ({uid}) with the token of the node");
        }
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
        }
    }

    fn key_on_record(&self) -> Option<RequestedKey> {
        let request = self.certificate.as_ref()?.value.request.as_ref()?;
        RequestedKey::read(&request.csr).ok()
    }

    /// The writes of a step, each compared with what the step was decided from.
    fn decide(self, joining: &Joining, step: Step, new_uid: &str, site: &Site) -> Decision<String> {
        let keys = &site.store.keys;
        let Some((joiner, _, token)) = self.token.filter(|_| step != Step::Known) else {
            let uid = self.node.map(|(node, _)| node.uid().to_owned());
            return Decision::Nothing(uid.unwrap_or_default());
        };
        // A token that is rotated meanwhile lets in no more.
        let token_key = keys.join_token(&joiner);
        let txn = Txn::new().when_unchanged(&token_key, token.mod_revision);
        let (name, now) = (&joining.name, Timestamp::now());
        let node_key = keys.node(name);
        let request = |uid, role| Requested {
            node: name,
            uid,
            csr: &joining.csr,
            role,
        };
        match (step, self.node) {
            (Step::Create(role), _) => {
                let node = site.new_node(Metadata::new(name, new_uid, now), role);
                let txn = txn.when_absent(&node_key).put(&node_key, node.encode_to_vec());
                let txn = request(new_uid, role.into()).record(txn, keys, None, now);
                Decision::Write(txn, new_uid.to_owned())
            }
            (_, Some((node, stored))) => {
                let uid = node.uid().to_owned();
                let observed = node.status.unwrap_or_default().role;
                // The token is for one agent, and one time.
                let txn = txn
                    .when_created_at(&node_key, stored.create_revision)
                    .when_absent(&keys.removed(&uid))
                    .delete(&token_key);
                let before = self.certificate.as_ref();
                let txn = request(&uid, observed).record(txn, keys, before, now);
                Decision::Write(txn, uid)
            }
            // The plan takes over a node that exists.
            (_, None) => Decision::Nothing(String::new()),
        }
    }
}
