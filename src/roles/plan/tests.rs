use super::*;
use crate::etcd::Revision;
use crate::proto::{JoinRequest, Role};

mod cases;
mod every_cluster;
mod guards;
mod pictures;

/// A healthy voter of a desired manager.
fn voter(id: u64) -> Seat {
    Seat {
        id: MemberId(id),
        listed: Some(Place {
            learner: false,
            started: true,
            peer_urls: vec![format!("http://10.0.0.{id}:2380")],
            healthy: true,
            applied: 100 + id,
        }),
        record: Some(Tie {
            node: format!("n{id}"),
            uid: format!("u{id}"),
            owner: whose(Role::Manager),
            joined_at: Some(Timestamp::UNIX_EPOCH),
            removal: None,
            promotion: false,
        }),
    }
}

fn whose(desired: Role) -> Whose {
    Whose::Node(Known {
        desired,
        observed: Role::Manager,
        node: Revision(1),
    })
}

impl Seat {
    fn place(mut self, change: impl FnOnce(&mut Place)) -> Self {
        change(self.listed.as_mut().unwrap());
        self
    }

    fn tie(mut self, change: impl FnOnce(&mut Tie)) -> Self {
        change(self.record.as_mut().unwrap());
        self
    }

    fn down(self) -> Self {
        self.place(|place| place.healthy = false)
    }

    fn learner(self) -> Self {
        self.place(|place| place.learner = true)
    }

    fn demoted(self) -> Self {
        self.tie(|tie| tie.owner = whose(Role::Worker))
    }

    fn nodeless(self) -> Self {
        self.tie(|tie| tie.owner = Whose::Gone)
    }

    fn unmanaged(mut self) -> Self {
        self.record = None;
        self
    }

    fn decided(self, cause: Cause) -> Self {
        self.tie(|tie| tie.removal = Some(cause))
    }
}

/// All have answered; the first leads.
fn seen(seats: Vec<Seat>) -> Picture {
    Picture {
        complete: true,
        raft_leader: seats.first().map(|seat| seat.id),
        seats,
        ..Picture::default()
    }
}

/// A join of node `n9`, which nobody looked at yet.
fn asking() -> Asked {
    Asked {
        node: "n9".to_owned(),
        join: Join {
            request: Some(JoinRequest {
                id: "r1".to_owned(),
                node_uid: "u9".to_owned(),
                peer_urls: vec!["http://10.0.0.9:2380".to_owned()],
                ..JoinRequest::default()
            }),
            ..Join::default()
        },
        known: match whose(Role::Manager) {
            Whose::Node(known) => Some(known),
            _ => None,
        },
        removed: false,
        dial: Dial::Reached { listening: false },
    }
}

/// A join of this node on the peer URL of [`asking`], for which an add was decided on at second 0.
fn adding(node: &str) -> Asked {
    let mut asked = asking();
    asked.node = node.to_owned();
    asked.join.progress = Progress::Adding.into();
    asked.join.answers = "r1".to_owned();
    asked.join.peer_urls = vec!["http://10.0.0.9:2380".to_owned()];
    asked.join.changed_at = Some(prost_types::Timestamp::default());
    asked
}

fn next(picture: &Picture) -> Plan {
    plan(picture, Timestamp::UNIX_EPOCH, &Limits::default())
}

fn step(picture: &Picture) -> Option<Step> {
    next(picture).step
}

fn reasons(picture: &Picture) -> Vec<Reason> {
    let plan = next(picture);
    assert_eq!(plan.step, None);
    plan.blocked.into_iter().map(|blocked| blocked.reason).collect()
}
