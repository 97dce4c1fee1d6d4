//! The calls of the keeper, which run beside its loop, and what it does with their answers.

use tracing::{info, warn};

use super::{Failure, Keeper, now};
use crate::agent::manager::calls::{self, Fault, Issued, Startable};
use crate::agent::manager::files::FilesError;
use crate::agent::manager::plan::Task;
use crate::agent::manager::record::Record;
use crate::agent::plan::Since;
use crate::clock;
use crate::failpoint;
use crate::identity::NodeKey;
use crate::identity::etcd::Host;
use crate::identity::leaf::Leaf;
use crate::proto::JoinMemberRequest;

/// A call that has ended.
#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
pub(super) enum Called {
    /// A request to join.
    Join(Result<Startable, Fault>),
    /// A request for a certificate, with its key.
    Certify(Result<Issued, Fault>, NodeKey),
}

impl Keeper {
    /// Begins to ask that etcd becomes a member.
    pub(super) fn call_join(&mut self) {
        let Some(identity) = self.wiring.identities.borrow().clone() else {
            return;
        };
        let message = JoinMemberRequest {
            peer_urls: self.settings.peer_urls.clone(),
            client_urls: self.settings.client_urls.clone(),
            no_dial: false,
        };
        let (calls, uid) = (self.wiring.calls.clone(), identity.chain.node.uid.clone());
        let cluster = identity.chain.node.cluster;
        self.under_way.insert(Task::Join);
        let call = async move { Called::Join(calls::join_member(calls, uid, cluster, message).await) };
        self.calls.push(Box::pin(call));
    }

    /// Begins to request a certificate for etcd, with a key that is on disk by then.
    pub(super) fn call_certify(&mut self) {
        let Some((identity, files)) = self.wiring.identities.borrow().clone().zip(self.files.as_ref()) else {
            return;
        };
        let (was_requested, begun) = (files.awaits_answer(), clock::now());
        let key = match files.requested_key() {
            Ok(key) => key,
            Err(error) => return self.fail(Task::Certify, &error.into()),
        };
        if !was_requested {
            self.key_made = Some(begun);
        }
        let (calls, uid) = (self.wiring.calls.clone(), identity.chain.node.uid.clone());
        self.under_way.insert(Task::Certify);
        let call = async move {
            let answer = calls::etcd_certificate(calls, uid, &key).await;
            Called::Certify(answer, key)
        };
        self.calls.push(Box::pin(call));
    }

    /// Takes over the answer of a call.
    pub(super) fn take_call(&mut self, called: Called) {
        let (task, done) = match called {
            Called::Join(answer) => (
                Task::Join,
                answer
                    .map_err(Failure::from)
                    .and_then(|startable| self.take_answer(startable)),
            ),
            Called::Certify(answer, key) => (
                Task::Certify,
                answer
                    .map_err(Failure::from)
                    .and_then(|issued| self.install(&issued, &key)),
            ),
        };
        self.under_way.remove(&task);
        match done {
            Ok(()) => self.succeed(task),
            Err(why) => self.fail(task, &why),
        }
    }

    fn take_answer(&mut self, startable: Startable) -> Result<(), Failure> {
        failpoint::abort_at("manager.joined");
        if self.shown.removed.contains(&startable.own.id) {
            // One of the two is old. The next answer is another one, or the next view.
            let why = format!("{} is named, and is out of the cluster", startable.own);
            return Err(Fault::Failed(why).into());
        }
        // A member that moves is known at its new URLs from now on.
        if let Some(record) = &self.record
            && record.noted.own == startable.own
            && self.has_moved(record)
        {
            let moved = Record {
                peer_urls: self.settings.peer_urls.clone(),
                client_urls: self.settings.client_urls.clone(),
                ..record.clone()
            };
            self.notes.save(&moved)?;
            self.record = Some(moved);
            // Its certificate is judged again, by its hosts.
            self.leaf = None;
        }
        self.answered = Some((startable, clock::now()));
        Ok(())
    }

    fn install(&mut self, issued: &Issued, key: &NodeKey) -> Result<(), Failure> {
        failpoint::abort_at("manager.certificate-issued");
        let files = self.files.as_ref().ok_or(Failure::Overtaken)?;
        let installed = files.install(key, &issued.chain, &issued.authorities, now().wall);
        if let Err(FilesError::OtherKey) = installed {
            // Another request was answered instead. The next one has a key of its own.
            files.drop_request()?;
        }
        let leaf = installed?;
        if files.list().is_none() && !issued.list.is_empty() {
            files.write_list(&issued.list)?;
        }
        info!(until = %leaf.not_after, "received a certificate for etcd");
        self.count_lacking(&leaf);
        let since = Since::received(leaf.issued(), self.key_made, now());
        self.held = Some(self.hold(&leaf, since));
        self.leaf = Some(leaf);
        Ok(())
    }

    /// Counts a certificate that lacks a host of the URLs of etcd. The next one is asked for ever later.
    fn count_lacking(&mut self, leaf: &Leaf) {
        let unnamed: Vec<String> = self.unnamed_hosts(leaf).iter().map(Host::to_string).collect();
        if unnamed.is_empty() {
            self.lacking = 0;
            return;
        }
        self.lacking = self.lacking.saturating_add(1);
        let unnamed = unnamed.join(", ");
        warn!(
            "the certificate for etcd does not name {unnamed}: the join of the node has other URLs on record"
        );
    }
}
