//! Places for the calls of a plugin: so many are in flight at once.
//!
//! A volume waits for its place without a call: what the call would be is planned once the place is there, from what is seen then. A
//! call that was planned before could be one of an hour ago (INV-6), and would keep its secrets for so long.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::plan::Step;

/// Calls in flight in each lane of a plugin, as many as the controllers have in one lane.
const CALLS: usize = 16;

/// The calls of a plugin that share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lane {
    /// Those that take volumes into use.
    Use,
    /// Those that give volumes back: no volume waits for that behind calls that hang.
    Back,
}

impl Lane {
    /// The lane of a step; `None` for one that calls no plugin.
    pub fn of(step: Step) -> Option<Self> {
        match step {
            Step::Stage | Step::Publish | Step::Expand { .. } => Some(Self::Use),
            Step::Unpublish | Step::Unstage => Some(Self::Back),
            Step::Link | Step::ConfirmExpanded { .. } | Step::Unlink | Step::ConfirmUnpublished => None,
        }
    }
}

/// A place for one call, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    plugin: String,
    lane: Lane,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    /// Whether it is one of this lane of this plugin.
    pub fn is_of(&self, plugin: &str, lane: Lane) -> bool {
        (self.plugin.as_str(), self.lane) == (plugin, lane)
    }
}

/// The places of all plugins, and the volumes that wait for one.
#[derive(Default)]
pub(super) struct Places {
    lanes: BTreeMap<(String, Lane), Arc<Semaphore>>,
    waiting: BTreeSet<(String, Lane)>,
    coming: FuturesUnordered<BoxFuture<'static, (String, Place)>>,
}

impl Places {
    /// A place for a call about this volume. `None` where all are taken: [`next`](Self::next) then returns one in the volume's turn.
    pub fn take(&mut self, volume: &str, plugin: &str, lane: Lane) -> Option<Place> {
        let key = (plugin.to_owned(), lane);
        let places = self.lanes.entry(key);
        let places = places.or_insert_with(|| Arc::new(Semaphore::new(CALLS))).clone();
        let place = |permit| Place {
            plugin: plugin.to_owned(),
            lane,
            _permit: permit,
        };
        if let Ok(permit) = places.clone().try_acquire_owned() {
            return Some(place(permit));
        }
        if self.waiting.insert((volume.to_owned(), lane)) {
            let (volume, plugin) = (volume.to_owned(), plugin.to_owned());
            let comes = async move {
                let Ok(permit) = places.acquire_owned().await else {
                    // The semaphore is never closed.
                    return std::future::pending().await;
                };
                let place = Place {
                    plugin,
                    lane,
                    _permit: permit,
                };
                (volume, place)
            };
            self.coming.push(Box::pin(comes));
        }
        None
    }

    /// The next place that comes, and the volume that has waited for it longest; `None` if no volume waits. Safe to cancel.
    pub async fn next(&mut self) -> Option<(String, Place)> {
        let (volume, place) = self.coming.next().await?;
        self.waiting.remove(&(volume.clone(), place.lane));
        Some((volume, place))
    }
}

#[cfg(test)]
mod tests {
    use futures::poll;

    use super::*;

    #[tokio::test]
    async fn volumes_get_places_in_their_turn_and_each_lane_of_each_plugin_has_its_own() {
        let mut places = Places::default();
        let mut taken: Vec<_> = (0..CALLS)
            .map(|number| places.take(&number.to_string(), "p", Lane::Use).unwrap())
            .collect();
        assert!(places.next().await.is_none(), "no volume waits");
        for volume in ["a", "b", "a"] {
            assert!(places.take(volume, "p", Lane::Use).is_none());
        }
        let other = places.take("a", "q", Lane::Use).unwrap();
        assert!(other.is_of("q", Lane::Use) && !other.is_of("q", Lane::Back) && !other.is_of("p", Lane::Use));
        places.take("a", "p", Lane::Back).unwrap();
        assert!(poll!(std::pin::pin!(places.next())).is_pending());
        for expected in ["a", "b"] {
            taken.pop();
            let (volume, place) = places.next().await.unwrap();
            assert_eq!(volume, expected);
            assert!(place.is_of("p", Lane::Use));
            taken.push(place);
        }
        assert!(places.next().await.is_none(), "each waits once");
        assert!(places.take("a", "p", Lane::Use).is_none(), "and again");
        drop(taken);
        assert_eq!(places.next().await.unwrap().0, "a");
    }
}
