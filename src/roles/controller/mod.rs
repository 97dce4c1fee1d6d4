//! Observe, plan, act, under one term.
//!
//! Two kinds of work run side by side. Nodes without a member change their roles many at a time (`upkeep`). Membership
//! changes one step at a time: a `survey` asks all members at once, the plan is made again with each answer, and the
//! first step that it allows is taken; then the next survey begins. While nothing is pending, members are surveyed only
//! now and then, for the metrics.

mod actions;
mod conditions;
mod execute;
mod outage;
mod phase;
mod probes;
mod report;
mod restarts;
mod schedule;
mod shown;
mod sightings;
mod state;
mod survey;
mod unread;
mod upkeep;

use std::time::Duration;

use self::state::TermState;
use super::plan::Limits;
use super::summary::RolesSummary;
use crate::etcd::Fence;
use crate::store::writer::{Writer, writer};
use crate::store::{Follower, Store};
use crate::summary::Latest;
use crate::term::{NodeWrites, Notices};

/// Waits and limits.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The limits of the plan.
    pub limits: Limits,
    /// How long a member may take to prove that it is healthy.
    pub member_timeout: Duration,
    /// How long a connection to a peer URL may take.
    pub dial_timeout: Duration,
    /// The longest time between two attempts while something is pending.
    pub retry: Duration,
    /// The time between surveys while nothing is pending.
    pub resync: Duration,
    /// How long a learner may take to start and to catch up before it is reported as blocked.
    pub patience: Duration,
    /// How long the ended join of a node that is gone is kept for a command that still waits for its outcome.
    pub keep_joins: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            member_timeout: Duration::from_secs(2),
            dial_timeout: Duration::from_secs(2),
            retry: Duration::from_secs(5),
            resync: Duration::from_secs(30),
            patience: Duration::from_secs(5),
            keep_joins: Duration::from_secs(3600),
        }
    }
}

/// What a leader needs to follow the desired roles.
pub struct RoleController {
    /// The store that holds the objects.
    pub store: Store,
    /// The fence of the term.
    pub fence: Fence,
    /// Receives what is published as Kubernetes Events.
    pub notices: Notices,
    /// Whether nodes may be written now.
    pub node_writes: NodeWrites,
    /// Waits and limits.
    pub settings: Settings,
    /// Gets what is known of members and roles, for people.
    pub summaries: Latest<RolesSummary>,
}

impl RoleController {
    /// Follows the desired roles until leadership is lost.
    pub async fn run(self) {
        let (writer, writing) = writer(&self.store.etcd, &self.fence);
        tokio::select! {
            () = self.follow_roles(writer) => {}
            () = writing => {}
        }
    }

    async fn follow_roles(&self, writer: Writer) {
        let mut follower = Follower::new(&self.store.etcd, self.store.keys.roles());
        let mut state = TermState::new(self, writer);
        loop {
            state.advance();
            tokio::select! {
                update = follower.next() => state.take_in(update),
                event = state.next() => {
                    if state.on_event(event).is_err() {
                        return;
                    }
                }
            }
        }
    }
}
