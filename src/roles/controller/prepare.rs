//! From a step to what is committed and called: whatever a step writes and compares is taken from the index here, so that
//! what comes of it holds nothing of the index any more. Pure.

use jiff::Timestamp;
use prost::Message;

use crate::etcd::members::ListedMember;
use crate::etcd::{MemberId, Revision, Txn};
use crate::proto::join::Progress;
use crate::proto::removal::Cause;
use crate::proto::{Join, Member, Promotion, Removal, Role};
use crate::roles::index::{Index, Owner};
use crate::roles::plan::{Picture, Step, cause_words};
use crate::roles::reason::Reason;
use crate::roles::writes;
use crate::store::object::member::{is_ended, member_of};
use crate::store::object::time;
use crate::store::{Keys, Name};

/// What a step does.
pub enum Deed {
    /// Commits.
    Commit(Txn),
    /// Proves on a quorum of these voters that the member is gone, then commits.
    Forget(MemberId, Vec<Stays>, Txn),
    /// Asks for a removal, then as above.
    Remove {
        /// Which.
        victim: ListedMember,
        /// Whom to ask.
        through: ListedMember,
        /// The voters that stay.
        voters: Vec<Stays>,
        /// What follows.
        forget: Txn,
    },
    /// Moves the raft leadership.
    MoveLeadership(ListedMember, MemberId),
    /// Lets a learner vote.
    Promote(ListedMember, MemberId),
    /// Adds a learner, then commits what is made of the answer.
    Add(ListedMember, Vec<String>, Box<Draft>),
    /// Gives a voter other peer URLs.
    Readdress(ListedMember, MemberId, Vec<String>),
}

/// A voter that stays where another member goes.
pub struct Stays {
    pub member: ListedMember,
    /// It has, or had, the member that goes in its own list.
    pub had_it: bool,
}

/// The record of a member whose id is known once it is there.
pub struct Draft {
    keys: Keys,
    node: Name,
    join: Join,
    join_revision: Revision,
    now: Timestamp,
}

impl Draft {
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

/// The names of the failpoints before and after a step.
pub fn points(step: &Step) -> (&'static str, &'static str) {
    match step {
        Step::Forget(_) => ("roles.forgetting", "roles.forgotten"),
        Step::DecideRemoval(..) => ("roles.deciding-removal", "roles.decided-removal"),
        Step::MoveLeadership { .. } => ("roles.moving-leadership", "roles.moved-leadership"),
        Step::Remove { .. } => ("roles.removing", "roles.removed"),
        Step::DecidePromotion(_) => ("roles.deciding-promotion", "roles.decided-promotion"),
        Step::Promote { .. } => ("roles.promoting", "roles.promoted"),
        Step::DecideAdd(_) => ("roles.deciding-add", "roles.decided-add"),
        Step::Add { .. } => ("roles.adding", "roles.added"),
        Step::Record { .. } => ("roles.recording", "roles.recorded"),
        Step::Readdress { .. } => ("roles.readdressing", "roles.readdressed"),
        Step::Note { .. } => ("roles.noting", "roles.noted"),
    }
}

/// What a step does, from what the index holds now. `None` if the index no longer holds what it is about.
pub fn prepare(
    step: &Step,
    index: &Index,
    picture: &Picture,
    list: &[ListedMember],
    keys: &Keys,
    term: Revision,
    now: Timestamp,
) -> Option<Deed> {
    let prepare = Prepare {
        index,
        picture,
        list,
        keys,
        term,
        now,
    };
    prepare.deed(step)
}

struct Prepare<'a> {
    index: &'a Index,
    picture: &'a Picture,
    list: &'a [ListedMember],
    keys: &'a Keys,
    term: Revision,
    now: Timestamp,
}

impl Prepare<'_> {
    fn deed(&self, step: &Step) -> Option<Deed> {
        let deed = match step {
            Step::Forget(id) => Deed::Forget(*id, self.voters_without(*id), self.forget(*id)?),
            Step::DecideRemoval(id, cause) => Deed::Commit(self.decide_removal(*id, *cause)?),
            Step::MoveLeadership { from, to } => Deed::MoveLeadership(self.listed(*from)?, *to),
            Step::Remove { member, through } => Deed::Remove {
                victim: self.listed(*member)?,
                through: self.listed(*through)?,
                voters: self.voters_without(*member),
                forget: self.forget(*member)?,
            },
            Step::DecidePromotion(id) => Deed::Commit(self.decide_promotion(*id)?),
            Step::Promote { member, through } => Deed::Promote(self.listed(*through)?, *member),
            Step::DecideAdd(node) => Deed::Commit(self.decide_add(node)?),
            Step::Add { node, through } => {
                let draft = self.draft(node)?;
                Deed::Add(
                    self.listed(*through)?,
                    draft.join.peer_urls.clone(),
                    Box::new(draft),
                )
            }
            Step::Record { node, member } => Deed::Commit(self.draft(node)?.txn(*member)),
            Step::Readdress {
                node,
                member,
                through,
            } => {
                let (join, _) = self.index.join(node);
                let urls = join?.request.as_ref()?.peer_urls.clone();
                Deed::Readdress(self.listed(*through)?, *member, urls)
            }
            Step::Note {
                node,
                member,
                progress,
                why,
            } => Deed::Commit(self.note(node, *member, *progress, why.as_ref())?),
        };
        Some(deed)
    }

    fn listed(&self, id: MemberId) -> Option<ListedMember> {
        self.list.iter().find(|member| member.id == id).cloned()
    }

    fn voters_without(&self, id: MemberId) -> Vec<Stays> {
        let voters = self
            .list
            .iter()
            .filter(|member| !member.learner && member.id != id);
        // A linearizable read through a voter leaves it with all that was committed before. Once a removal was decided on,
        // the reads of the picture were asked for no earlier than that, and so after the member was added.
        let record = self.index.record(id);
        let decided = record.is_some_and(|(record, _)| record.member.removal.is_some());
        let had_it = |voter: &ListedMember| {
            let place = self.picture.seat(voter.id).and_then(|seat| seat.listed.as_ref());
            decided && place.is_some_and(|place| place.healthy)
        };
        voters
            .map(|voter| Stays {
                member: voter.clone(),
                had_it: had_it(voter),
            })
            .collect()
    }

    /// The record of a member, to be written over what it was read as.
    fn changed_record(&self, id: MemberId, change: impl FnOnce(&mut Member)) -> Option<Txn> {
        let (record, revision) = self.index.record(id)?;
        let mut member = record.member.clone();
        change(&mut member);
        let key = self.keys.member(id);
        Some(
            Txn::new()
                .when_unchanged(&key, revision)
                .put(&key, member.encode_to_vec()),
        )
    }

    /// The intent: in one transaction with the proof that the node still is what it was decided on (REQ-M-8).
    fn decide_removal(&self, id: MemberId, cause: Cause) -> Option<Txn> {
        let txn = self.changed_record(id, |member| {
            member.removal = Some(Removal {
                cause: cause.into(),
                decided_at: Some(time::to_proto(self.now)),
                term: self.term.0,
            });
        })?;
        let (record, _) = self.index.record(id)?;
        let name = record.member.node.parse::<Name>().ok();
        let Some(name) = name else {
            // No node can have such a name.
            return (cause == Cause::NodeGone).then_some(txn);
        };
        let node = self
            .index
            .node(name.as_str())
            .map_or(Revision::ABSENT, |entry| entry.mod_revision);
        let txn = txn.when_unchanged(&self.keys.node(&name), node);
        if cause != Cause::NodeGone {
            return Some(txn);
        }
        // A node that is there shows that the nodes are.
        let witness = self.index.records().find_map(|(other, record, _)| {
            let owner = self.index.owner(&record.member);
            let there = other != id && matches!(owner, Owner::Node(..));
            there.then(|| record.member.node.parse::<Name>().ok())?
        })?;
        Some(txn.when_present(&self.keys.node(&witness)))
    }

    fn decide_promotion(&self, id: MemberId) -> Option<Txn> {
        let txn = self.changed_record(id, |member| {
            member.promotion = Some(Promotion {
                decided_at: Some(time::to_proto(self.now)),
                term: self.term.0,
            });
        })?;
        let (record, _) = self.index.record(id)?;
        let Owner::Node(_, revision) = self.index.owner(&record.member) else {
            return None;
        };
        let name: Name = record.member.node.parse().ok()?;
        Some(txn.when_unchanged(&self.keys.node(&name), revision))
    }

    fn decide_add(&self, node: &str) -> Option<Txn> {
        let (stored, revision) = self.index.join(node);
        let mut join = stored?.clone();
        let request = join.request.clone()?;
        let name: Name = node.parse().ok()?;
        let (_, node_revision) = self.index.known_node(node, &request.node_uid)?;
        join.answers = request.id;
        join.progress = Progress::Adding.into();
        join.member_id = 0;
        join.peer_urls = request.peer_urls;
        join.node_uid.clone_from(&request.node_uid);
        join.reason.clear();
        join.message.clear();
        join.changed_at = Some(time::to_proto(self.now));
        let key = self.keys.join(&name);
        let txn = Txn::new()
            .when_unchanged(&key, revision)
            .when_unchanged(&self.keys.node(&name), node_revision)
            .when_absent(&self.keys.removed(&request.node_uid))
            .put(&key, join.encode_to_vec());
        Some(txn)
    }

    fn draft(&self, node: &str) -> Option<Draft> {
        let (join, join_revision) = self.index.join(node);
        Some(Draft {
            keys: self.keys.clone(),
            node: node.parse().ok()?,
            join: join?.clone(),
            join_revision,
            now: self.now,
        })
    }

    fn note(
        &self,
        node: &str,
        member: Option<MemberId>,
        progress: Progress,
        why: Option<&(Reason, String)>,
    ) -> Option<Txn> {
        let (stored, revision) = self.index.join(node);
        let mut join = stored?.clone();
        set_progress(&mut join, member, progress, why, self.now);
        let key = self.keys.join(&node.parse().ok()?);
        let txn = Txn::new()
            .when_unchanged(&key, revision)
            .put(&key, join.encode_to_vec());
        // A member that has a new address has it in its record as well.
        let readdressed = member.and_then(|id| {
            let listed = self.list.iter().find(|listed| listed.id == id)?;
            let (record, revision) = self.index.record(id)?;
            if listed.has_peer_urls(&record.member.peer_urls) {
                return None;
            }
            let mut changed = record.member.clone();
            changed.peer_urls.clone_from(&listed.peer_urls);
            Some((self.keys.member(id), revision, changed.encode_to_vec()))
        });
        Some(match readdressed {
            Some((key, revision, value)) => txn.when_unchanged(&key, revision).put(&key, value),
            None => txn,
        })
    }

    /// The end of a member: its record goes, its join ends, and its node becomes a worker if that is what it is to be.
    /// A desired role that changed meanwhile leaves the observed one as it is: the node may join again.
    fn forget(&self, id: MemberId) -> Option<Txn> {
        let (record, revision) = self.index.record(id)?;
        let key = self.keys.member(id);
        let mut txn = Txn::new().when_unchanged(&key, revision).delete(&key);
        let Ok(name) = record.member.node.parse::<Name>() else {
            return Some(txn);
        };
        let own = |other: &Member| other.node == record.member.node;
        let last = !self
            .index
            .records()
            .any(|(other, record, _)| other != id && own(&record.member));
        let join_key = self.keys.join(&name);
        let (join, join_revision) = self.index.join(name.as_str());
        // Which both of the writes below hang on.
        txn = txn.when_unchanged(&join_key, join_revision);
        let joining = join.is_some_and(|join| join.progress() == Progress::Adding);
        if let Owner::Node(facts, node_revision) = self.index.owner(&record.member)
            && facts.desired == Role::Worker
            && facts.observed != Role::Worker
            && last
            && !joining
        {
            let node_key = self.keys.node(&name);
            txn = txn
                .when_unchanged(&node_key, node_revision)
                .put(&node_key, writes::with_role(&facts.value, Role::Worker));
        }
        if let Some(join) = join.filter(|join| member_of(join) == Some(id) && !is_ended(join) && !joining) {
            let cause = record
                .member
                .removal
                .as_ref()
                .map_or(Cause::Unspecified, Removal::cause);
            let reason = match cause {
                Cause::NeverStarted => Reason::NeverStarted,
                _ => Reason::Overtaken,
            };
            let message = format!("member {id} was removed, {}", cause_words(cause));
            let mut join = join.clone();
            // A request that came later is still to be looked at.
            let answers = join.answers.clone();
            set_progress(
                &mut join,
                Some(id),
                Progress::Removed,
                Some(&(reason, message)),
                self.now,
            );
            join.answers = answers;
            txn = txn.put(&join_key, join.encode_to_vec());
        }
        Some(txn)
    }
}

fn set_progress(
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
    let (reason, message) = why.map_or(("", ""), |(reason, message)| (reason.as_str(), message));
    join.reason = reason.to_owned();
    join.message = message.to_owned();
    join.changed_at = Some(time::to_proto(now));
}
