//! What an agent does about its certificate. Pure: what it holds, what its session shows and the time in, a step with its reason
//! out.

use std::fmt;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::identity::node::NodeRole;
use crate::proto::Role;
use crate::proto::node_certificate::State;
use crate::store::object::node::role_word;

/// The earliest and the latest part of its life at which a certificate is replaced. In between at random, so that agents that
/// joined together do not come back together.
const RENEWED: (f64, f64) = (0.5, 0.8);

/// For so long after it was received, a certificate is not replaced for what a session shows: a replica shows what its follower
/// has, which may be as old.
const SETTLES: Duration = Duration::from_secs(5);

/// Now, by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// By the clock that is never set.
    pub monotonic: Instant,
    /// By the clock of certificates, which steps when it is set.
    pub wall: Timestamp,
}

/// From when on the age of a certificate counts.
#[derive(Clone, Copy, Debug)]
pub enum Since {
    /// This process received it.
    Received(Instant),
    /// An earlier process did. The wall clock alone knows how long ago.
    Issued(Timestamp),
}

/// The certificate of the node.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// The role that it says.
    pub role: NodeRole,
    /// From its issue to its end.
    pub life: Duration,
    /// When it was issued.
    pub since: Since,
    /// The age at which it is replaced.
    pub renewed_at: Duration,
    /// Whether another one was requested, and no answer received: its reply was lost, or the agent ended meanwhile.
    pub awaits_another: bool,
}

/// What the session of this very certificate shows last.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// The observed role of the node.
    pub role: Role,
    /// The state of its record.
    pub certificate: State,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Join with the token.
    Join(Joining),
    /// Request another certificate.
    Renew(Reason),
    /// Nothing for this long, unless the session shows something else.
    Rest(Duration),
}

/// Why to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joining {
    /// There is no certificate.
    First,
    /// The certificate has ended: no server takes it.
    Ended,
}

/// Why to request another certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The certificate has this much of its life left.
    Age {
        /// The rest of its life.
        left: Duration,
    },
    /// An earlier request was not answered.
    Unanswered,
    /// An operator asks for it.
    Rotate,
    /// The node is observed in this role, and the certificate says another one.
    Role(NodeRole),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Age { left } => write!(f, "its certificate ends in {} s", left.as_secs()),
            Self::Unanswered => f.write_str("an earlier request was not answered"),
            Self::Rotate => f.write_str("an operator asks for another certificate"),
            Self::Role(role) => write!(f, "the node is a {} now", role_word(role.to_proto().into())),
        }
    }
}

impl Held {
    /// How long ago it was issued. By a wall clock that is behind: just now.
    pub fn age(&self, now: Now) -> Duration {
        match self.since {
            Since::Received(at) => now.monotonic.saturating_duration_since(at),
            Since::Issued(at) => now.wall.duration_since(at).try_into().unwrap_or_default(),
        }
    }

    /// How long it is valid from now on.
    pub fn left(&self, now: Now) -> Duration {
        self.life.saturating_sub(self.age(now))
    }
}

/// The age at which a certificate of this life is replaced. `random` is a number from 0 to 1.
pub fn renewed_at(life: Duration, random: f64) -> Duration {
    let (earliest, latest) = RENEWED;
    life.mul_f64(earliest + (latest - earliest) * random.clamp(0.0, 1.0))
}

/// The next step. `shown` is `None` until the session of this certificate has shown something.
pub fn plan(held: Option<&Held>, shown: Option<&Shown>, now: Now) -> Step {
    let Some(held) = held else {
        return Step::Join(Joining::First);
    };
    let (age, left) = (held.age(now), held.left(now));
    if left.is_zero() {
        return Step::Join(Joining::Ended);
    }
    if age >= held.renewed_at {
        return Step::Renew(Reason::Age { left });
    }
    if held.awaits_another {
        return Step::Renew(Reason::Unanswered);
    }
    let due = held.renewed_at - age;
    let Some(reason) = shown.and_then(|shown| asked_for(held, shown)) else {
        return Step::Rest(due);
    };
    match held.since {
        Since::Received(_) if age < SETTLES => Step::Rest(due.min(SETTLES - age)),
        Since::Received(_) | Since::Issued(_) => Step::Renew(reason),
    }
}

fn asked_for(held: &Held, shown: &Shown) -> Option<Reason> {
    let observed = NodeRole::of(shown.role);
    match observed {
        Some(role) if held.role != role => Some(Reason::Role(role)),
        _ => (shown.certificate == State::Rotate).then_some(Reason::Rotate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Duration = Duration::from_secs(1000);

    fn now() -> Now {
        Now {
            monotonic: Instant::now(),
            wall: "2026-03-01T12:00:00Z".parse().unwrap(),
        }
    }

    fn later(now: Now, seconds: u64) -> Now {
        let by = Duration::from_secs(seconds);
        Now {
            monotonic: now.monotonic + by,
            wall: now.wall + by,
        }
    }

    fn held(since: Since) -> Held {
        Held {
            role: NodeRole::Worker,
            life: LIFE,
            since,
            renewed_at: renewed_at(LIFE, 0.5),
            awaits_another: false,
        }
    }

    fn shown(role: Role, certificate: State) -> Shown {
        Shown { role, certificate }
    }

    #[test]
    fn without_a_certificate_and_with_one_that_has_ended_it_joins() {
        let begun = now();
        assert_eq!(plan(None, None, begun), Step::Join(Joining::First));
        let held = held(Since::Received(begun.monotonic));
        let ended = plan(Some(&held), None, later(begun, 1000));
        assert_eq!(ended, Step::Join(Joining::Ended));
    }

    #[test]
    fn it_renews_between_half_and_four_fifths_of_the_life() {
        assert_eq!(renewed_at(LIFE, 0.0), Duration::from_secs(500));
        assert_eq!(renewed_at(LIFE, 1.0), Duration::from_secs(800));
        assert_eq!(renewed_at(LIFE, 7.0), Duration::from_secs(800));
        let begun = now();
        let held = held(Since::Received(begun.monotonic));
        let early = plan(Some(&held), None, later(begun, 649));
        assert_eq!(early, Step::Rest(Duration::from_secs(1)));
        let due = plan(Some(&held), None, later(begun, 650));
        let left = Duration::from_secs(350);
        assert_eq!(due, Step::Renew(Reason::Age { left }));
    }

    #[test]
    fn a_step_of_the_wall_clock_changes_nothing_until_a_restart() {
        let begun = now();
        let hour = Duration::from_secs(3600);
        let received = held(Since::Received(begun.monotonic));
        for wall in [begun.wall + hour, begun.wall - hour] {
            let stepped = Now { wall, ..begun };
            let rest = Step::Rest(Duration::from_secs(650));
            assert_eq!(plan(Some(&received), None, stepped), rest);
        }
        let restored = held(Since::Issued(begun.wall));
        assert_eq!(
            plan(Some(&restored), None, later(begun, 640)),
            Step::Rest(Duration::from_secs(10))
        );
        let behind = Now {
            wall: begun.wall - hour,
            ..begun
        };
        assert_eq!(
            plan(Some(&restored), None, behind),
            Step::Rest(Duration::from_secs(650))
        );
    }

    #[test]
    fn another_role_and_an_operators_wish_count_at_once() {
        let begun = now();
        let held = held(Since::Issued(begun.wall));
        let at = |shown: Shown| plan(Some(&held), Some(&shown), begun);
        assert_eq!(
            at(shown(Role::Manager, State::Issued)),
            Step::Renew(Reason::Role(NodeRole::Manager))
        );
        assert_eq!(
            at(shown(Role::Worker, State::Rotate)),
            Step::Renew(Reason::Rotate)
        );
        let rest = Step::Rest(Duration::from_secs(650));
        for nothing in [
            shown(Role::Worker, State::Issued),
            shown(Role::Worker, State::Pending),
            shown(Role::Unspecified, State::Failed),
        ] {
            assert_eq!(at(nothing), rest, "{nothing:?}");
        }
    }

    #[test]
    fn a_request_without_an_answer_is_repeated() {
        let begun = now();
        let held = Held {
            awaits_another: true,
            ..held(Since::Issued(begun.wall))
        };
        assert_eq!(plan(Some(&held), None, begun), Step::Renew(Reason::Unanswered));
    }

    #[test]
    fn what_a_replica_shows_late_replaces_no_certificate_that_was_just_received() {
        let begun = now();
        let held = held(Since::Received(begun.monotonic));
        let late = shown(Role::Worker, State::Rotate);
        let at = |seconds| plan(Some(&held), Some(&late), later(begun, seconds));
        assert_eq!(at(0), Step::Rest(SETTLES));
        assert_eq!(at(4), Step::Rest(Duration::from_secs(1)));
        assert_eq!(at(5), Step::Renew(Reason::Rotate));
    }
}
