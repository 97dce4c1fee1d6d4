//! What people are shown of a term: the summary of roles.

use std::sync::Arc;

use jiff::Timestamp;

use crate::roles::blocked::Blocked;
use crate::roles::index::Index;
use crate::roles::membership::Membership;
use crate::roles::summary::{MembersSummary, RolesSummary, members, nodes};
use crate::summary::{Latest, Summarizer};

/// Makes the summary of one term.
pub struct Shown {
    summarizer: Summarizer<RolesSummary>,
    members: Option<MembersSummary>,
}

impl Shown {
    /// Nothing has been found out yet.
    pub fn new(summaries: &Latest<RolesSummary>) -> Self {
        Self {
            summarizer: Summarizer::new(summaries),
            members: None,
        }
    }

    /// The index may have changed.
    pub fn note_change(&mut self) {
        self.summarizer.note_change();
    }

    /// All members have had their time to answer.
    pub fn surveyed(&mut self, membership: &Membership, blocked: &[Blocked], now: Timestamp) {
        self.members = Some(members(membership, blocked, now));
        self.summarizer.note_change();
    }

    /// Resolves once another summary is due. Safe to cancel.
    pub async fn due(&self) {
        self.summarizer.due().await;
    }

    /// Publishes a summary.
    pub fn publish(&mut self, index: &Index) {
        let members = &self.members;
        self.summarizer.publish(|| RolesSummary {
            paused: index.is_paused(),
            members: members.clone(),
            nodes: Arc::new(nodes(index)),
        });
    }
}
