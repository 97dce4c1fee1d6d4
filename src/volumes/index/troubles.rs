//! What the conditions in the records say is wrong, counted for the metrics as the records change. Pure.

use std::collections::BTreeMap;

use crate::proto::{Condition, Volume};
use crate::store::object::condition;
use crate::volumes::record::{self, DRIFTED};

/// The longest reason that is counted by itself: the leader's own are words of at most half of that.
const LONGEST_REASON: usize = 64;

/// The reason under which those are counted that are no word.
const OTHER: &str = "Other";

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// Something wanted of a volume cannot be done.
    BlockedVolume,
    /// Something wanted of a publication cannot be done.
    BlockedPublication,
    /// The plugin has a volume published otherwise than the records say.
    DriftedVolume,
}

/// A condition that a record holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    trouble: Trouble,
    reason: Box<str>,
    /// Seconds since the Unix epoch, by the clock of the leader that wrote it.
    since: i64,
}

impl Said {
    /// Whether something cannot be done.
    pub(super) fn is_blocked(&self) -> bool {
        match self.trouble {
            Trouble::BlockedVolume | Trouble::BlockedPublication => true,
            Trouble::DriftedVolume => false,
        }
    }
}

/// How many records have one condition for one reason.
#[derive(Debug, Default)]
struct Count {
    all: usize,
    /// By the second since when they have it.
    since: BTreeMap<i64, usize>,
}

/// The conditions of all records, counted.
#[derive(Debug, Default)]
pub struct Troubles(BTreeMap<(Trouble, Box<str>), Count>);

impl Troubles {
    /// A record that held these conditions holds those now.
    pub(super) fn replace(&mut self, before: &[Said], now: &[Said]) {
        for said in before {
            let key = (said.trouble, said.reason.clone());
            if let Some(count) = self.0.get_mut(&key) {
                count.all -= 1;
                let since = count.since.entry(said.since).or_default();
                *since -= 1;
                if *since == 0 {
                    count.since.remove(&said.since);
                }
                if count.all == 0 {
                    self.0.remove(&key);
                }
            }
        }
        for said in now {
            let count = self.0.entry((said.trouble, said.reason.clone())).or_default();
            count.all += 1;
            *count.since.entry(said.since).or_default() += 1;
        }
    }

    /// How many records have a trouble for each reason. Only reasons that some have.
    pub fn counts(&self) -> impl Iterator<Item = (Trouble, &str, usize)> {
        let counts = self.0.iter();
        counts.map(|((trouble, reason), count)| (*trouble, &**reason, count.all))
    }

    /// The longest that a record has had this trouble: since when, in seconds since the Unix epoch. `None` without one.
    pub fn oldest(&self, trouble: Trouble) -> Option<i64> {
        let of_trouble = self.0.iter().filter(|((other, _), _)| *other == trouble);
        let oldest = of_trouble.filter_map(|(_, count)| count.since.keys().next().copied());
        oldest.min()
    }
}

/// What a readable record of a volume says.
pub(super) fn of_volume(volume: &Volume) -> Box<[Said]> {
    let conditions = volume
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    let blocked = blocked(Trouble::BlockedVolume, conditions);
    let drifted = condition::find(conditions, DRIFTED);
    let drifted = drifted.map(|condition| said(Trouble::DriftedVolume, condition));
    blocked.into_iter().chain(drifted).collect()
}

/// What the conditions of a publication say.
pub(super) fn of_publication(conditions: &[Condition]) -> Box<[Said]> {
    blocked(Trouble::BlockedPublication, conditions)
        .into_iter()
        .collect()
}

fn blocked(trouble: Trouble, conditions: &[Condition]) -> Option<Said> {
    record::blocked(conditions).map(|condition| said(trouble, condition))
}

fn said(trouble: Trouble, condition: &Condition) -> Said {
    // It becomes a label. The leader writes words alone, and nothing keeps others from writing a text.
    let is_word = |reason: &str| {
        let letters = reason.bytes().all(|byte| byte.is_ascii_alphanumeric());
        letters && (1..=LONGEST_REASON).contains(&reason.len())
    };
    let reason = Some(condition.reason.as_str()).filter(|reason| is_word(reason));
    Said {
        trouble,
        reason: reason.unwrap_or(OTHER).into(),
        since: condition.last_transition_time.map_or(0, |at| at.seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::VolumeStatus;
    use crate::proto::condition::Status;

    fn condition(r#type: &str, reason: &str, since: i64) -> Condition {
        Condition {
            r#type: r#type.to_owned(),
            status: Status::True.into(),
            reason: reason.to_owned(),
            last_transition_time: Some(prost_types::Timestamp {
                seconds: since,
                nanos: 0,
            }),
            ..Condition::default()
        }
    }

    fn volume(conditions: Vec<Condition>) -> Box<[Said]> {
        of_volume(&Volume {
            status: Some(VolumeStatus {
                conditions,
                ..VolumeStatus::default()
            }),
            ..Volume::default()
        })
    }

    #[test]
    fn conditions_are_counted_by_reason_and_the_oldest_goes_with_its_record() {
        let mut troubles = Troubles::default();
        let early = volume(vec![condition("Blocked", "Internal", 10)]);
        let late = volume(vec![
            condition("Drifted", "NotRecorded", 30),
            condition("Blocked", "Internal", 20),
        ]);
        let publication = of_publication(&[condition("Blocked", "NodePaused", 40)]);
        troubles.replace(&[], &early);
        troubles.replace(&[], &late);
        troubles.replace(&[], &publication);
        let counts = |troubles: &Troubles| -> Vec<(Trouble, String, usize)> {
            let counts = troubles.counts();
            counts
                .map(|(trouble, reason, count)| (trouble, reason.to_owned(), count))
                .collect()
        };
        assert_eq!(
            counts(&troubles),
            [
                (Trouble::BlockedVolume, "Internal".to_owned(), 2),
                (Trouble::BlockedPublication, "NodePaused".to_owned(), 1),
                (Trouble::DriftedVolume, "NotRecorded".to_owned(), 1),
            ]
        );
        assert_eq!(troubles.oldest(Trouble::BlockedVolume), Some(10));
        // It is blocked for another reason, and another is gone.
        troubles.replace(&early, &volume(vec![condition("Blocked", "NotFound", 10)]));
        troubles.replace(&publication, &[]);
        assert_eq!(troubles.oldest(Trouble::BlockedVolume), Some(10));
        troubles.replace(&volume(vec![condition("Blocked", "NotFound", 10)]), &[]);
        assert_eq!(troubles.oldest(Trouble::BlockedVolume), Some(20));
        troubles.replace(&late, &[]);
        assert_eq!(counts(&troubles), []);
        assert_eq!(troubles.oldest(Trouble::BlockedVolume), None);
    }

    #[test]
    fn a_reason_that_is_no_word_makes_no_series_of_its_own() {
        for reason in ["", "volume data-17 is gone", &"A".repeat(65)] {
            let said = volume(vec![condition("Blocked", reason, 1)]);
            assert_eq!(&*said[0].reason, "Other", "{reason}");
        }
        let mut over = condition("Blocked", "Internal", 1);
        over.set_status(Status::False);
        assert_eq!(volume(vec![over]), Box::default());
    }
}
