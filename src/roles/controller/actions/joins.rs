//! The intent to add a learner, its record, and the progress of its join.

use jiff::Timestamp;
use prost::Message;

use super::Context;
use crate::etcd::{MemberId, Revision, Txn};
use crate::proto::join::Progress;
use crate::proto::{Join, Member};
use crate::roles::reason::Reason;
use crate::store::object::time;
use crate::store::{Keys, Name};

/// The record of a learner that etcd is about to add, or has added: complete but for the member's id.
pub struct NewMemberRecord {
    keys: Keys,
    node: Name,
    join: Join,
    join_revision: Revision,
    now: Timestamp,
}

impl NewMemberRecord {
    /// The peer URLs of the intent.
    pub fn peer_urls(&self) -> &[String] {
        &self.join.peer_urls
    }

    /// The transaction that creates the record and says so in the join.
    pub fn txn(self, id: MemberId) -> Txn {
        let record = Member {
            node: self.node.to_string(),
            node_uid: self.join.node_uid.clone(),
            peer_urls: self.join.peer_urls.clone(),
            joined_at: Some(time::to_proto(self.now)),
            ..Member::default()
        };
        let mut join = self.join;
        join.progress = Progress::Learner.into();
        join.member_id = id.0;
        join.reason.clear();
        join.message.clear();
        join.changed_at = Some(time::to_proto(self.now));
        let (record_key, join_key) = (self.keys.member(id), self.keys.join(&self.node));
        Txn::new()
            .when_absent(&record_key)
            .when_unchanged(&join_key, self.join_revision)
            .put(&record_key, record.encode_to_vec())
            .put(&join_key, join.encode_to_vec())
    }
}

impl Context<'_> {
    /// The intent to add a learner, with the proof that its node is unchanged and not removed.
    pub(super) fn decide_add(&self, node: &str) -> Option<Txn> {
        let (stored, revision) = self.index.join(node);
        let mut join = stored?.clone();
        let request = join.request.clone()?;
        let name: Name = node.parse().ok()?;
        let roles = self.index.roles_of(node, &request.node_uid)?;
        // A renewed intent waits for what it waited for.
        if join.progress() != Progress::Adding || join.answers != request.id {
            join.reason.clear();
            join.message.clear();
        }
        join.answers = request.id;
        join.progress = Progress::Adding.into();
        join.member_id = 0;
        join.peer_urls = request.peer_urls;
        join.node_uid.clone_from(&request.node_uid);
        join.changed_at = Some(time::to_proto(self.now));
        let key = self.keys.join(&name);
        let txn = Txn::new()
            .when_unchanged(&key, revision)
            .when_unchanged(&self.keys.node(&name), roles.revision)
            .when_absent(&self.keys.removed(&request.node_uid))
            .put(&key, join.encode_to_vec());
        Some(txn)
    }

    pub(super) fn new_record(&self, node: &str) -> Option<NewMemberRecord> {
        let (join, join_revision) = self.index.join(node);
        Some(NewMemberRecord {
            keys: self.keys.clone(),
            node: node.parse().ok()?,
            join: join?.clone(),
            join_revision,
            now: self.now,
        })
    }

    /// Writes the progress of a join, and the peer URLs of its member to the record if they have changed.
    pub(super) fn note(
        &self,
        node: &str,
        member: Option<MemberId>,
        progress: Progress,
        why: Option<&(Reason, String)>,
    ) -> Option<Txn> {
        let (stored, revision) = self.index.join(node);
        let mut join = stored?.clone();
        match progress {
            // The intent stays as it is.
            Progress::Adding => set_reason(&mut join, why),
            _ => set_progress(&mut join, member, progress, why, self.now),
        }
        let key = self.keys.join(&node.parse().ok()?);
        let txn = Txn::new()
            .when_unchanged(&key, revision)
            .put(&key, join.encode_to_vec());
        let readdressed = member.and_then(|id| {
            let listed = self.listed(id)?;
            let (record, revision) = self.index.record(id)?;
            if listed.has_peer_urls(&record.peer_urls) {
                return None;
            }
            let mut changed = record.clone();
            changed.peer_urls = listed.peer_urls;
            Some((self.keys.member(id), revision, changed.encode_to_vec()))
        });
        Some(match readdressed {
            Some((key, revision, value)) => txn.when_unchanged(&key, revision).put(&key, value),
            None => txn,
        })
    }
}

/// Sets the leader's part of a join, as the answer to the current request.
pub(super) fn set_progress(
    join: &mut Join,
    member: Option<MemberId>,
    progress: Progress,
    why: Option<&(Reason, String)>,
    now: Timestamp,
) {
    if let Some(request) = &join.request {
        join.answers.clone_from(&request.id);
    }
    join.progress = progress.into();
    join.member_id = member.map_or(0, |id| id.0);
    set_reason(join, why);
    join.changed_at = Some(time::to_proto(now));
}

fn set_reason(join: &mut Join, why: Option<&(Reason, String)>) {
    let (reason, message) = why.map_or(("", ""), |(reason, message)| (reason.as_str(), message));
    join.reason = reason.to_owned();
    join.message = message.to_owned();
}
