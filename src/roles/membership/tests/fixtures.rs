//! Members in every state that a decision distinguishes, for unit tests.

use std::time::{Duration, Instant};

use crate::etcd::members::{Alarm, Evidence, Inquiry, ListedMember, Listener, NotAsked, Status};
use crate::etcd::{MemberId, Revision};
use crate::proto::removal::Cause;
use crate::proto::{Readdress, Role};
use crate::roles::membership::{Member, Membership, Reachability, Record};
use crate::roles::owner::{NodeRoles, Owner};

/// The answers of a healthy member that has applied the log up to this index.
pub(crate) fn answers(id: MemberId, raft_leader: Option<MemberId>, applied: u64) -> Evidence {
    let status = Status {
        version: "3.4.23".to_owned(),
        db_size: 0,
        db_in_use: 0,
        raft_leader,
        raft_term: 2,
        committed: applied,
        applied,
        learner: false,
        alarms: Vec::new(),
    };
    let at = Instant::now();
    Evidence {
        member: id,
        learner: false,
        read: Inquiry::Asked { at, answer: Ok(()) },
        status: Inquiry::Asked {
            at,
            answer: Ok(status),
        },
    }
}

/// A healthy voter of a desired manager.
pub(crate) fn voter(id: u64) -> Member {
    Member {
        id: MemberId(id),
        listed: Some(ListedMember {
            id: MemberId(id),
            name: format!("n{id}"),
            peer_urls: vec![format!("http://10.0.0.{id}:2380")],
            client_urls: vec![format!("http://10.0.0.{id}:2379")],
            learner: false,
        }),
        record: Some(Record {
            node: format!("n{id}"),
            uid: format!("u{id}"),
            owner: Owner::Node(manager()),
            removal: None,
            promotion: false,
            readdress: None,
        }),
        evidence: answers(MemberId(id), None, 100 + id),
        corrupt: false,
        idle: Duration::ZERO,
        quiet: false,
        moved: Reachability::Pending,
    }
}

/// The roles of a manager that stays one.
pub(crate) fn manager() -> NodeRoles {
    NodeRoles {
        desired: Role::Manager,
        observed: Role::Manager,
        revision: Revision(1),
    }
}

impl Member {
    fn with_listing(mut self, change: impl FnOnce(&mut ListedMember)) -> Self {
        change(self.listed.as_mut().unwrap());
        self
    }

    fn with_record(mut self, change: impl FnOnce(&mut Record)) -> Self {
        change(self.record.as_mut().unwrap());
        self
    }

    pub(crate) fn owned_by(self, owner: Owner) -> Self {
        self.with_record(|record| record.owner = owner)
    }

    pub(crate) fn down(mut self) -> Self {
        self.evidence = Evidence::not_asked(self.id, self.is_learner(), NotAsked::NotYet);
        self
    }

    pub(crate) fn learner(mut self) -> Self {
        self.evidence.learner = true;
        self.with_listing(|listed| listed.learner = true)
    }

    /// Never started, so down as well.
    pub(crate) fn unstarted(self) -> Self {
        self.down().with_listing(|listed| {
            listed.name.clear();
            listed.client_urls.clear();
        })
    }

    pub(crate) fn applied(mut self, index: u64) -> Self {
        let learner = self.is_learner();
        self.evidence = Evidence {
            learner,
            ..answers(self.id, None, index)
        };
        self
    }

    pub(crate) fn at(self, peer_url: &str) -> Self {
        self.with_listing(|listed| listed.peer_urls = vec![peer_url.to_owned()])
    }

    pub(crate) fn unlisted(mut self) -> Self {
        self.listed = None;
        self
    }

    pub(crate) fn unmanaged(mut self) -> Self {
        self.record = None;
        self
    }

    pub(crate) fn desiring(self, desired: Role) -> Self {
        self.owned_by(Owner::Node(NodeRoles { desired, ..manager() }))
    }

    pub(crate) fn demoted(self) -> Self {
        self.desiring(Role::Worker)
    }

    pub(crate) fn nodeless(self) -> Self {
        self.owned_by(Owner::Removed)
    }

    /// Its node's key is gone, without a record of removal.
    pub(crate) fn node_missing(self) -> Self {
        self.owned_by(Owner::Missing)
    }

    /// It reports its status, but serves no read, as without a quorum.
    pub(crate) fn unread(mut self) -> Self {
        self.evidence.read = Inquiry::NotAsked(NotAsked::NotYet);
        self
    }

    /// It answers, and etcd has raised the alarm CORRUPT for it.
    pub(crate) fn corrupt(mut self) -> Self {
        self.corrupt = true;
        let id = self.id.0;
        self.with_alarm(Alarm::CORRUPT, id)
    }

    /// It says that this alarm of the member is raised.
    pub(crate) fn with_alarm(mut self, kind: &str, member: u64) -> Self {
        if let Inquiry::Asked {
            answer: Ok(status), ..
        } = &mut self.evidence.status
        {
            status.alarms.push(Alarm {
                member: MemberId(member),
                kind: kind.to_owned(),
            });
        }
        self
    }

    /// A learner that has made no progress for so long.
    pub(crate) fn idle(mut self, seconds: u64) -> Self {
        self.idle = Duration::from_secs(seconds);
        self
    }

    /// No call of a decided change of it can be under way.
    pub(crate) fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// Its removal is decided.
    pub(crate) fn leaving(self, cause: Cause) -> Self {
        self.with_record(|record| record.removal = Some(cause))
    }

    /// Its move to the peer URL of another machine is decided, where this one listens.
    pub(crate) fn moving(mut self, listener: Listener) -> Self {
        self.moved = Reachability::Reached(listener);
        self.with_record(|record| {
            record.readdress = Some(Readdress {
                peer_urls: vec!["http://10.0.0.9:2380".to_owned()],
                ..Readdress::default()
            });
        })
    }

    /// The same, and the list has that peer URL.
    pub(crate) fn moved(self, listener: Listener) -> Self {
        self.moving(listener).at("http://10.0.0.9:2380")
    }

    /// Its promotion is decided.
    pub(crate) fn rising(self) -> Self {
        self.with_record(|record| record.promotion = true)
    }
}

/// All members have answered, and the first leads.
pub(crate) fn surveyed(members: Vec<Member>) -> Membership {
    Membership {
        complete: true,
        raft_leader: members.first().map(|member| member.id),
        members,
        ..Membership::default()
    }
}

impl Evidence {
    /// Its status says that its data takes so many bytes.
    pub(crate) fn db_size(&mut self, bytes: u64) {
        if let Inquiry::Asked {
            answer: Ok(status), ..
        } = &mut self.status
        {
            status.db_size = bytes;
        }
    }
}
