//! Observe, plan, act, under one term.
//!
//! Two kinds of work run beside each other. Nodes without a member change their roles in batches ([`nodes`]). Membership
//! changes one step at a time: a [`look`] asks every member at once, the plan is asked with each answer that comes in,
//! and the first step that it allows is taken; then everything is looked at anew. Nothing is asked while nothing is
//! pending, but for a look now and then, so that the metrics say how the members fare.

mod act;
mod dial;
mod look;
mod nodes;
mod pace;
mod phase;
mod prepare;
mod report;
mod upkeep;
mod work;

use std::time::Duration;

use self::work::Work;
use super::plan::Limits;
use crate::etcd::Fence;
use crate::store::{Follower, Store};
use crate::term::Notices;

/// Waits and limits.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What the plan goes by.
    pub limits: Limits,
    /// For a member to prove that it is healthy.
    pub member_timeout: Duration,
    /// For a peer URL to be reached.
    pub dial_timeout: Duration,
    /// The longest between two tries while something is pending.
    pub retry: Duration,
    /// Between looks while nothing is.
    pub resync: Duration,
    /// How long a learner may take to start and to catch up before that is called a hindrance.
    pub patience: Duration,
    /// How long the ended join of a node that is gone is kept: whoever asked for it may still be about to look.
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
    /// Where the objects lie.
    pub store: Store,
    /// The term.
    pub fence: Fence,
    /// Where changes and hindrances are reported.
    pub notices: Notices,
    /// Waits and limits.
    pub settings: Settings,
}

impl RoleController {
    /// Follows the desired roles until leadership is lost.
    pub async fn run(self) {
        let mut follower = Follower::new(&self.store.etcd, self.store.keys.roles());
        let mut work = Work::new(&self);
        loop {
            work.advance();
            tokio::select! {
                update = follower.next() => work.take_in(update),
                event = work.next() => {
                    if work.came(event).is_err() {
                        return;
                    }
                }
            }
        }
    }
}
