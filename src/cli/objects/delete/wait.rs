//! After the mark: what holds the objects back, told once or until they are gone.

use std::time::Duration;

use super::EndsLater;
use crate::cli::exit::{Exit, Failure};
use crate::cli::objects::pending;
use crate::cli::objects::view::{LiveView, View};
use crate::cli::output::{Reader, print};
use crate::etcd::{KeyRange, Revision};
use crate::store::{Id, Store};

/// Between two lines about what still holds objects back: thousands of tasks may end at once.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Marked objects of one kind.
pub struct Ending<'a> {
    /// Where they lie.
    pub store: &'a Store,
    /// `service`
    pub kind: &'a str,
    /// How they end.
    pub ends_later: &'a dyn EndsLater,
    /// Which.
    pub ids: &'a [&'a Id],
}

impl Ending<'_> {
    fn ranges(&self) -> Vec<KeyRange> {
        let mut ranges: Vec<KeyRange> = Vec::new();
        for range in self
            .ids
            .iter()
            .flat_map(|id| self.ends_later.ranges(&self.store.keys, id))
        {
            if !ranges.contains(&range) {
                ranges.push(range);
            }
        }
        ranges
    }

    fn line(&self, view: &View, id: &Id) -> String {
        match &self.ends_later.blockers(view, id)[..] {
            [] => format!("{}/{id}: nothing holds it back", self.kind),
            held @ [_] => format!("{}/{id}: held back by {}", self.kind, held[0]),
            many => format!(
                "{}/{id}: held back by {} objects: {}",
                self.kind,
                many.len(),
                pending::cell(many)
            ),
        }
    }

    /// Tells what holds each of them back at this moment.
    ///
    /// # Errors
    /// A failure if etcd did not answer.
    pub async fn tell(&self) -> Result<(), Failure> {
        let view = View::read(self.store, &self.ranges()).await?;
        for id in self.ids {
            if self.ends_later.came_to_be(&view, id).is_some() {
                let _: Reader = print(&format!("  {}\n", self.line(&view, id)))?;
            }
        }
        Ok(())
    }

    /// Waits until all of them are gone, telling what holds them back when that changes.
    ///
    /// # Errors
    /// 2 if the time is over.
    pub async fn wait(&self, limit: Option<Duration>) -> Result<(), Failure> {
        let mut following = Following {
            live: LiveView::new(&self.store.etcd, self.store.keys.clone(), self.ranges()),
            marked: Vec::new(),
            told: Vec::new(),
        };
        let limit_over = async {
            match limit {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            gone = self.store.etcd.following(self.follow(&mut following)) => return gone,
            () = limit_over => {}
        }
        let left = following.marked.iter().map(|(id, _)| *id);
        let lines: Vec<String> = left.map(|id| self.line(&following.live.view, id)).collect();
        let what = match lines.is_empty() {
            true => "etcd did not answer".to_owned(),
            false => lines.join("\n  "),
        };
        let failure = Failure::new(
            Exit::TimedOut,
            format!("not gone after {:?}\n  {what}", limit.unwrap_or_default()),
        );
        Err(failure
            .hint("nothing is taken back: what is left goes once nothing holds it back and a replica leads"))
    }

    async fn follow<'s>(&'s self, following: &mut Following<'s>) -> Result<(), Failure> {
        let created = |view: &View, id: &Id| self.ends_later.came_to_be(view, id);
        following.live.changes().await;
        let view = &following.live.view;
        // By the time that it came to be: an object of the same name that is created later is another one.
        let marked = self
            .ids
            .iter()
            .map(|id| (*id, created(view, id).unwrap_or(Revision::ABSENT)));
        following.marked = marked.collect();
        let mut tick = tokio::time::interval(TELL_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            let view = &following.live.view;
            let mut gone = Vec::new();
            following.marked.retain(|(id, since)| {
                let there = created(view, id) == Some(*since);
                if !there {
                    gone.push(*id);
                }
                there
            });
            for id in gone {
                let _: Reader = print(&format!("{}/{id} {}\n", self.kind, self.ends_later.ended()))?;
            }
            if following.marked.is_empty() {
                return Ok(());
            }
            tokio::select! {
                _ = following.live.changes() => {}
                _ = tick.tick() => {
                    let lines: Vec<String> =
                        following.marked.iter().map(|(id, _)| self.line(&following.live.view, id)).collect();
                    for line in lines.iter().filter(|line| !following.told.contains(line)) {
                        eprintln!("{line}");
                    }
                    following.told = lines;
                }
            }
        }
    }
}

/// What a wait knows; outside of it, so that what it saw last can be told when the time is over.
struct Following<'s> {
    live: LiveView,
    marked: Vec<(&'s Id, Revision)>,
    told: Vec<String>,
}
