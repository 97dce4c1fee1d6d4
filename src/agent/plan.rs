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
    Received {
        /// When.
        at: Instant,
        /// How old it was by then.
        age: Duration,
    },
    /// An earlier process received it. It was issued then; the wall clock alone knows how long ago that was.
    Issued(Timestamp),
}

impl Since {
    /// For a certificate that arrives now. It may have been issued long before: while the agent did not run, or reached no server.
    /// The wall clock says when. However wrong that is, the certificate is no older than its key: `made` is when this process made the
    /// key, `None` where an earlier process did.
    pub fn received(issued: Timestamp, made: Option<Instant>, now: Now) -> Self {
        let most = made.map_or(Duration::MAX, |at| now.monotonic.saturating_duration_since(at));
        Self::Received {
            at: now.monotonic,
            age: now.since(issued).min(most),
        }
    }

    /// How long ago the certificate was issued. By a wall clock that is behind: just now.
    pub fn age(self, now: Now) -> Duration {
        match self {
            Self::Received { at, age } => age.saturating_add(now.monotonic.saturating_duration_since(at)),
            Self::Issued(at) => now.since(at),
        }
    }

    /// How long ago this process received it; `None` if an earlier one did.
    pub fn received_for(self, now: Now) -> Option<Duration> {
        match self {
            Self::Received { at, .. } => Some(now.monotonic.saturating_duration_since(at)),
            Self::Issued(_) => None,
        }
    }
}

impl Now {
    /// How long ago this was by the wall clock; zero where it is yet to come.
    fn since(self, moment: Timestamp) -> Duration {
        self.wall.duration_since(moment).try_into().unwrap_or_default()
    }
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
    /// Whether the server that was asked last takes it for one that has ended. Servers decide by their clock what it opens: a
    /// machine whose clock is behind at the start of the agent believes in the certificate for longer than they do.
    pub is_refused_as_ended: bool,
}

/// What servers make of this very certificate, as far as they were asked.
#[derive(Clone, Copy, Debug, Default)]
pub enum Seen {
    /// None has said anything yet.
    #[default]
    Nothing,
    /// The last session shows this.
    Shown(Shown),
    /// The last server says that its time is over.
    Ended,
}

impl Seen {
    /// What the session shows.
    pub fn shown(&self) -> Option<&Shown> {
        match self {
            Self::Shown(shown) => Some(shown),
            Self::Nothing | Self::Ended => None,
        }
    }
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
    /// The certificate has ended, or the last server says so: it opens nothing.
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
        self.since.age(now)
    }

    /// How long ago this process received it. One that an earlier process received has settled.
    fn settling(&self, now: Now) -> Duration {
        self.since.received_for(now).unwrap_or(SETTLES)
    }

    /// How long it is valid from now on.
    pub fn left(&self, now: Now) -> Duration {
        match self.is_refused_as_ended {
            true => Duration::ZERO,
            false => self.life.saturating_sub(self.age(now)),
        }
    }

    /// Whether it stays in use although another one is there, which is valid from `begin` on: by the clock of this node that is yet to
    /// come, and this one is valid still. So a leader whose clock is ahead takes no node out of the cluster.
    pub fn outlasts(&self, begin: Timestamp, now: Now) -> bool {
        now.wall < begin && !self.left(now).is_zero()
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
    match SETTLES.saturating_sub(held.settling(now)) {
        Duration::ZERO => Step::Renew(reason),
        unsettled => Step::Rest(due.min(unsettled)),
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
pub(super) mod tests;
