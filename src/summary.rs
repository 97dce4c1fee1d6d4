//! Summaries for people: what a part of a replica knows of its objects, made again a short while after they have changed.
//!
//! A copy of etcd stays with the part that follows it. Readers get a summary of bounded size, and hold up no controller.

use std::collections::{BTreeSet, BinaryHeap};
use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use tokio::sync::watch;

use crate::retry::sleep_until;

/// The least time from one summary to the next. The status page looks twice a second: together, a change shows within one.
const EVERY: Duration = Duration::from_millis(250);

/// To make summaries takes at most one part in this many of the time, however large the copy is.
const SHARE: u32 = 20;

/// The latest summary of one subject. All clones share it.
#[derive(Debug)]
pub struct Latest<T>(Arc<watch::Sender<Option<Summary<T>>>>);

/// A summary, and whether its part still keeps it up to date.
#[derive(Debug)]
pub struct Summary<T> {
    /// What was known.
    pub content: Arc<T>,
    /// When the part that made it ended, by the clock of this machine; `None` while it runs.
    pub ended: Option<SystemTime>,
}

impl<T> Clone for Latest<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Latest<T> {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl<T> Clone for Summary<T> {
    fn clone(&self) -> Self {
        Self {
            content: Arc::clone(&self.content),
            ended: self.ended,
        }
    }
}

impl<T> Latest<T> {
    /// Reads it. Summaries are made only while there is a reader, so it must be there before the parts that make them.
    pub fn reader(&self) -> Reader<T> {
        Reader(self.0.subscribe())
    }

    /// Publishes a summary at once.
    pub fn publish(&self, content: T) {
        self.0.send_replace(Some(Summary {
            content: Arc::new(content),
            ended: None,
        }));
    }

    /// Marks the summary as ended once the guard is dropped. The guard belongs to the part that makes it.
    #[must_use]
    pub fn ends(&self) -> Ends<T> {
        Ends(self.clone())
    }
}

/// Reads the latest summary.
#[derive(Debug)]
pub struct Reader<T>(watch::Receiver<Option<Summary<T>>>);

impl<T> Reader<T> {
    /// The latest summary; `None` before the first.
    pub fn latest(&self) -> Option<Summary<T>> {
        self.0.borrow().clone()
    }
}

/// Marks the latest summary as ended when it is dropped.
#[derive(Debug)]
pub struct Ends<T>(Latest<T>);

impl<T> Drop for Ends<T> {
    fn drop(&mut self) {
        self.0.0.send_modify(|latest| {
            if let Some(latest) = latest {
                latest.ended.get_or_insert_with(SystemTime::now);
            }
        });
    }
}

/// Makes the summaries of one subject, some time after each change. Marks the last one as ended when it is dropped.
#[derive(Debug)]
pub struct Summarizer<T> {
    latest: Latest<T>,
    is_outdated: bool,
    /// The next summary is not made before.
    due: Instant,
    _ends: Ends<T>,
}

impl<T> Summarizer<T> {
    /// Nothing is due before the first change.
    pub fn new(latest: &Latest<T>) -> Self {
        Self {
            latest: latest.clone(),
            is_outdated: false,
            due: Instant::now(),
            _ends: latest.ends(),
        }
    }

    /// Something that the summary says may have changed.
    pub fn note_change(&mut self) {
        self.is_outdated = true;
    }

    /// Resolves once another summary is due: never before a change, and never without a reader. Safe to cancel.
    pub async fn due(&self) {
        let is_wanted = self.is_outdated && self.latest.0.receiver_count() > 0;
        // A timer that is over already would first wait for the runtime.
        if !is_wanted || self.due > Instant::now() {
            sleep_until(is_wanted.then_some(self.due)).await;
        }
    }

    /// Makes a summary and publishes it.
    pub fn publish(&mut self, make: impl FnOnce() -> T) {
        let begun = Instant::now();
        self.latest.publish(make());
        self.is_outdated = false;
        let now = Instant::now();
        self.due = now + EVERY.max((now - begun) * SHARE);
    }
}

/// The first rows of a table, and how many there are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rows<T> {
    /// At most [`ROWS`], in order.
    pub first: Vec<T>,
    /// How many there are, `first` included.
    pub total: usize,
}

/// The most rows of a table: more are no use to a reader, and each costs every viewer of the page.
pub const ROWS: usize = 100;

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Self {
            first: Vec::new(),
            total: 0,
        }
    }
}

impl<T> Rows<T> {
    /// How many there are beside the first.
    pub fn more(&self) -> usize {
        self.total.saturating_sub(self.first.len())
    }

    /// The same table with other rows.
    pub fn map<U>(self, row: impl FnMut(T) -> U) -> Rows<U> {
        Rows {
            first: self.first.into_iter().map(row).collect(),
            total: self.total,
        }
    }
}

impl<T: Ord> Rows<T> {
    /// The least rows of all, in their order. Keeps no more than these in memory.
    pub fn least(all: impl IntoIterator<Item = T>) -> Self {
        let (mut first, mut total) = (BinaryHeap::new(), 0);
        for row in all {
            total += 1;
            first.push(row);
            if first.len() > ROWS {
                first.pop();
            }
        }
        Self {
            first: first.into_sorted_vec(),
            total,
        }
    }
}

/// An object that is marked for deletion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PendingDeletion {
    /// `service`, `network`, `volume`
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// Since when it is marked, in RFC 3339; `None` where the mark has no usable time.
    pub since: Option<String>,
    /// What its deletion waits for, in words.
    pub waits_for: String,
}

/// More names are no use in a sentence.
const NAMED: usize = 3;

/// Names for a sentence: the least few, and how many there are. It holds no more of them, however many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    first: BTreeSet<String>,
    total: usize,
}

impl Names {
    /// Those of an ordered list, of which only the first are read.
    pub fn of_ordered(names: impl ExactSizeIterator<Item = impl Into<String>>) -> Self {
        Self {
            total: names.len(),
            first: names.take(NAMED).map(Into::into).collect(),
        }
    }

    /// Adds a name that is not among them.
    pub fn add(&mut self, name: &str) {
        self.total += 1;
        let is_least = self.first.last().is_none_or(|last| name < last.as_str());
        if self.first.len() < NAMED || is_least {
            self.first.insert(name.to_owned());
        }
        if self.first.len() > NAMED {
            self.first.pop_last();
        }
    }

    /// How many there are.
    pub fn total(&self) -> usize {
        self.total
    }
}

impl<'n> FromIterator<&'n str> for Names {
    fn from_iter<I: IntoIterator<Item = &'n str>>(all: I) -> Self {
        let mut names = Self::default();
        for name in all {
            names.add(name);
        }
        names
    }
}

impl Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, name) in self.first.iter().enumerate() {
            let comma = if nth > 0 { ", " } else { "" };
            write!(f, "{comma}{name}")?;
        }
        match self.total - self.first.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_summary_is_due_after_a_change_and_not_without_a_reader() {
        let latest = Latest::default();
        let mut summarizer = Summarizer::new(&latest);
        let is_due = |summarizer: &Summarizer<u8>| summarizer.due().now_or_never().is_some();
        summarizer.note_change();
        assert!(!is_due(&summarizer), "nothing reads it");
        let reader = latest.reader();
        assert!(is_due(&summarizer) && reader.latest().is_none());
        summarizer.publish(|| 1);
        assert!(!is_due(&summarizer), "nothing has changed");
        summarizer.note_change();
        let is_due_again = is_due(&summarizer);
        let is_late = summarizer.due <= Instant::now();
        assert!(is_late || !is_due_again, "the last one was made a moment ago");
        tokio::time::timeout(20 * EVERY, summarizer.due()).await.unwrap();
        summarizer.publish(|| 2);
        assert_eq!(reader.latest().map(|summary| *summary.content), Some(2));
    }

    #[test]
    fn a_summary_that_takes_long_is_made_seldom() {
        let latest = Latest::default();
        let _reader = latest.reader();
        let mut summarizer = Summarizer::new(&latest);
        let begun = Instant::now();
        summarizer.publish(|| std::thread::sleep(Duration::from_millis(30)));
        assert!(summarizer.due >= begun + Duration::from_millis(600));
    }

    #[test]
    fn the_last_summary_stays_and_is_marked_once_its_part_has_ended() {
        let latest = Latest::default();
        let reader = latest.reader();
        let mut summarizer = Summarizer::new(&latest);
        summarizer.publish(|| "first");
        assert_eq!(reader.latest().unwrap().ended, None);
        drop(summarizer);
        let ended = reader.latest().unwrap();
        assert!(ended.ended.is_some() && *ended.content == "first");
        Summarizer::new(&latest).publish(|| "second");
        // That part has ended, too.
        assert!(reader.latest().unwrap().ended.is_some());
        latest.publish("third");
        assert_eq!(reader.latest().unwrap().ended, None);
    }

    #[test]
    fn of_many_rows_the_least_are_kept_and_all_are_counted() {
        let rows = Rows::least((0..5000).rev());
        assert_eq!((rows.first.len(), rows.total, rows.more()), (ROWS, 5000, 4900));
        assert!(rows.first.iter().copied().eq(0..100));
        let few = Rows::least([3, 1, 2]).map(|row| row * 10);
        assert_eq!((few.first, few.total), (vec![10, 20, 30], 3));
    }

    #[test]
    fn of_many_names_the_least_are_kept_and_all_are_counted() {
        assert_eq!(Names::default().to_string(), "");
        let all: Vec<String> = (0..5000).rev().map(|number| format!("n{number:04}")).collect();
        let names: Names = all.iter().map(String::as_str).collect();
        assert_eq!(names.to_string(), "n0000, n0001, n0002 and 4997 more");
        assert_eq!((names.first.len(), names.total()), (NAMED, 5000));
        let ordered = Names::of_ordered(["a", "b", "c", "d"].into_iter());
        assert_eq!(ordered.to_string(), "a, b, c and 1 more");
        assert_eq!(Names::of_ordered(["a", "b"].into_iter()).to_string(), "a, b");
    }
}
