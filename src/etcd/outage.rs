//! Follows whether etcd has a quorum, and reports when it is lost and when it has returned.

use std::time::{Duration, Instant, SystemTime};

use futures::future::join_all;
use tokio::sync::watch;
use tracing::{info, warn};

use super::connect::Etcd;
use super::error::Class;
use super::probe::Probed;
use super::quorum::{LastAnswer, Outage, Unserved};
use crate::clock;

/// How long a voter may take to say that it runs.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

impl Etcd {
    /// Takes note of a check of the endpoints that began at `begun`, and of those that serve the store of this process.
    pub(super) fn note_quorum(&self, begun: Instant, serving: &[String], answers: &[Probed]) {
        // One that refuses for another reason says nothing about the quorum.
        let refuses =
            |probed: &Probed| matches!(&probed.answer, Err(error) if error.class != Class::Unavailable);
        let is_served = !serving.is_empty() || answers.iter().any(refuses);
        self.0.quorum.checked(begun, is_served);
    }

    /// The last answer that proves that this process reached a quorum: of a check of the endpoints, or of a lease's renewal. Needs
    /// [`Etcd::follow_endpoints`].
    pub fn last_answer(&self) -> Option<LastAnswer> {
        self.0.quorum.last_answer()
    }

    /// Whether etcd does not answer this process now: the last check of the endpoints found none that serves, or a check is overdue.
    pub fn is_cut_off(&self) -> bool {
        let config = self.config();
        let overdue = config.endpoint_interval + config.request_timeout;
        let age = |last: LastAnswer| clock::now().saturating_duration_since(last.sent);
        self.0.quorum.unserved.borrow().is_some() || self.last_answer().is_none_or(|last| age(last) > overdue)
    }

    /// The last time without a quorum that this process has seen the end of. Needs [`Etcd::follow_quorum`].
    pub fn last_outage(&self) -> watch::Receiver<Option<Outage>> {
        self.0.quorum.ended.subscribe()
    }

    /// Whether this process has not reported the outage yet. Takes note that it does: no record may be there to store it, and the
    /// next term of the process finds it again.
    pub fn is_first_report(&self, outage: &Outage) -> bool {
        self.0.quorum.is_first_report(outage)
    }

    /// Follows whether etcd has a quorum, for the log and the metric, while [`Etcd::follow_endpoints`] checks the endpoints.
    /// Never ends.
    pub async fn follow_quorum(&self) {
        let lost = &self.metrics().etcd_quorum_lost;
        let mut unserved = self.0.quorum.unserved.subscribe();
        loop {
            let since = {
                let is_lost = |unserved: &Option<Unserved>| unserved.is_some_and(Unserved::is_lost);
                // The sender lives as long as this connection.
                let Ok(found) = unserved.wait_for(is_lost).await else {
                    return;
                };
                found.map_or_else(Instant::now, |found| found.since)
            };
            lost.set(1);
            let seen = self.voters_that_answer().await;
            warn!("QuorumLost: no linearizable read through etcd is answered; {seen} (quorate recover plan)");
            let served = unserved.wait_for(Option::is_none).await.is_ok();
            lost.set(0);
            if !served {
                return;
            }
            let until = SystemTime::now();
            let since = until.checked_sub(since.elapsed()).unwrap_or(until);
            info!("etcd has a quorum again");
            self.0
                .quorum
                .ended
                .send_replace(Some(Outage { since, until, seen }));
        }
    }

    /// How many voters answer without the others, in words.
    async fn voters_that_answer(&self) -> String {
        let Ok(list) = self.any_list(ANSWER_LIMIT).await else {
            return "no member answers this replica".to_owned();
        };
        let voters: Vec<_> = list.voters().collect();
        let asked = voters.iter().map(|voter| self.own_list_of(voter, ANSWER_LIMIT));
        let answers = join_all(asked).await.into_iter().filter(Result::is_ok).count();
        let (voters, needed) = (voters.len(), voters.len() / 2 + 1);
        format!("of {voters} voters {answers} answered this replica, and {needed} are needed")
    }
}
