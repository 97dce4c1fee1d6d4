//! Gauges of the records of certificates.

use jiff::Timestamp;

use super::authority::AuthorityKind;
use super::index::Index;
use super::records::Records;
use crate::metrics::{CertificateMetrics, Days, Metrics, State as StateLabel};
use crate::proto::node_certificate::State;
use crate::term::TermGauges;

/// The gauges of this term.
pub struct Gauges {
    metrics: Metrics,
    /// When the node authority ends, of the last one that could be read.
    authority_end: Option<Timestamp>,
    _end_with_the_term: TermGauges,
}

/// The states of records, as metrics name them.
const STATES: [(&str, Option<State>); 5] = [
    ("pending", Some(State::Pending)),
    ("issued", Some(State::Issued)),
    ("failed", Some(State::Failed)),
    ("rotate", Some(State::Rotate)),
    ("malformed", None),
];

/// The days within which certificates are counted that end, as metrics name them. A certificate of 90 days that an agent replaces has
/// at least 18 left, and one of etcd of 30 days.
const DAYS: [(&str, i64); 4] = [("0", 0), ("1", 1), ("7", 7), ("30", 30)];

/// A day, in seconds.
const DAY: i64 = 24 * 3600;

impl Gauges {
    /// Gauges that read 0 until they are set.
    pub fn new(metrics: &Metrics) -> Self {
        let mut all = vec![
            metrics.etcd_certificates_revoked.clone(),
            metrics.node_authority_seconds.clone(),
        ];
        for kind in AuthorityKind::ALL {
            let CertificateMetrics { states, ending, .. } = of(metrics, kind);
            all.extend(STATES.map(|(state, _)| states.get_or_create(&StateLabel { state }).clone()));
            all.extend(DAYS.map(|(days, _)| ending.get_or_create(&Days { days }).clone()));
        }
        Self {
            _end_with_the_term: TermGauges::new(all),
            authority_end: None,
            metrics: metrics.clone(),
        }
    }

    /// This authority has signed a certificate.
    pub fn issued(&self, kind: AuthorityKind) {
        of(&self.metrics, kind).issued.inc();
    }

    /// Counts the records, once all are known.
    pub fn set(&self, index: &Index, now: Timestamp) {
        if !index.synced().is_complete() {
            return;
        }
        for kind in AuthorityKind::ALL {
            self.set_records(kind, index.records(kind), now);
        }
        let revoked = index.revocation().revoked().len();
        self.metrics.etcd_certificates_revoked.set(value(revoked));
    }

    fn set_records(&self, kind: AuthorityKind, records: &Records, now: Timestamp) {
        let CertificateMetrics { states, ending, .. } = of(&self.metrics, kind);
        for (state, of) in STATES {
            let count = records.states().filter(|found| *found == of).count();
            states.get_or_create(&StateLabel { state }).set(value(count));
        }
        for (days, within) in DAYS {
            let count = ending_within(records.ends(), within, now);
            ending.get_or_create(&Days { days }).set(value(count));
        }
    }

    /// Counts down to the end of the node authority, also past it: `end` is `None` where the authority cannot sign, as in its last day.
    pub fn set_authority(&mut self, end: Option<Timestamp>, now: Timestamp) {
        self.authority_end = end.or(self.authority_end);
        let left = self
            .authority_end
            .map_or(0, |end| end.as_second() - now.as_second());
        self.metrics.node_authority_seconds.set(left);
    }
}

/// The metrics of the certificates that this authority signs.
fn of(metrics: &Metrics, kind: AuthorityKind) -> CertificateMetrics<'_> {
    match kind {
        AuthorityKind::Node => metrics.of_node_certificates(),
        AuthorityKind::Etcd => metrics.of_etcd_certificates(),
    }
}

fn value(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// How many of these ends, in seconds since 1970, lie so many days from now or before.
fn ending_within(ends: impl Iterator<Item = i64>, days: i64, now: Timestamp) -> usize {
    ends.filter(|end| *end <= now.as_second() + days * DAY).count()
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn a_certificate_counts_from_the_days_on_within_which_it_ends() {
        let now: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        let ends = [-24, 12, 7 * 24, 29 * 24, 90 * 24].map(|hours| now.as_second() + hours * 3600);
        let counts = DAYS.map(|(_, days)| ending_within(ends.into_iter(), days, now));
        assert_eq!(counts, [1, 2, 3, 4]);
    }

    #[test]
    fn the_end_of_the_authority_is_counted_down_to_and_past_also_where_it_can_no_longer_sign() {
        let metrics = Metrics::new("1.0.0");
        let mut gauges = Gauges::new(&metrics);
        let now: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        let after = |seconds| now + SignedDuration::from_secs(seconds);
        let left = || metrics.node_authority_seconds.get();
        gauges.set_authority(None, now);
        assert_eq!(left(), 0, "there is none");
        gauges.set_authority(Some(after(3600)), now);
        assert_eq!(left(), 3600);
        gauges.set_authority(None, after(3605));
        assert_eq!(left(), -5, "it has ended");
        gauges.set_authority(Some(after(7200)), after(3605));
        assert_eq!(left(), 3595, "another took its place");
        drop(gauges);
        assert_eq!(left(), 0, "the term is over");
    }
}
