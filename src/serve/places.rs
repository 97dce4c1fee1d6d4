//! The places of viewers: so many and no more. Where all are taken, one viewer makes way for the next.
//!
//! None is refused: a few clients that open streams and read none would else shut everyone out for as long as a stream lasts. A browser
//! whose viewer made way comes back by itself within seconds, and is sent the whole page then. So with more viewers than places each sees
//! the page, if not every update of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

/// The places.
pub(super) struct Places {
    most: usize,
    /// A viewer that reads takes something at least as often. One that has not is the first to make way.
    takes_within: Duration,
    taken: Arc<Mutex<Taken>>,
}

/// The viewers that are there, in the order in which they came.
#[derive(Default)]
struct Taken {
    next: u64,
    viewers: BTreeMap<u64, Seated>,
}

struct Seated {
    /// When it last took what it was sent, or came.
    took: Instant,
    makes_way: CancellationToken,
}

/// The place of one viewer, which it gives back when it is dropped.
pub(super) struct Place {
    number: u64,
    makes_way: CancellationToken,
    taken: Arc<Mutex<Taken>>,
}

impl Places {
    pub fn new(most: usize, takes_within: Duration) -> Self {
        Self {
            most,
            takes_within,
            taken: Arc::default(),
        }
    }

    /// Takes in a viewer. If it is one too many, another one makes way.
    pub fn take(&self) -> Place {
        let mut taken = lock(&self.taken);
        while taken.viewers.len() >= self.most
            && let Some(last) = taken.first_to_go(self.takes_within)
            && let Some(seated) = taken.viewers.remove(&last)
        {
            seated.makes_way.cancel();
        }
        let number = taken.next;
        taken.next += 1;
        let makes_way = CancellationToken::new();
        taken.viewers.insert(
            number,
            Seated {
                took: Instant::now(),
                makes_way: makes_way.clone(),
            },
        );
        Place {
            number,
            makes_way,
            taken: Arc::clone(&self.taken),
        }
    }
}

impl Taken {
    /// The one that has taken nothing for the longest, if that is long; else the one that came first.
    fn first_to_go(&self, takes_within: Duration) -> Option<u64> {
        let silent = |seated: &&Seated| seated.took.elapsed() > takes_within;
        let viewers = || self.viewers.iter();
        let longest = viewers().filter(|(_, seated)| silent(seated));
        let longest = longest.min_by_key(|(_, seated)| seated.took);
        let (number, _) = longest.or_else(|| viewers().next())?;
        Some(*number)
    }
}

impl Place {
    /// The viewer takes what it is sent.
    pub fn takes(&self) {
        if let Some(seated) = lock(&self.taken).viewers.get_mut(&self.number) {
            seated.took = Instant::now();
        }
    }

    /// Cancelled once this viewer makes way for another one.
    pub fn makes_way(&self) -> CancellationToken {
        self.makes_way.clone()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.taken).viewers.remove(&self.number);
    }
}

fn lock(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    // Each change of it is one step.
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn make_way(places: &[Place]) -> Vec<bool> {
        places
            .iter()
            .map(|place| place.makes_way.is_cancelled())
            .collect()
    }

    #[test]
    fn one_viewer_too_many_makes_the_first_one_make_way() {
        let places = Places::new(2, LONG);
        let mut viewers = vec![places.take(), places.take()];
        assert_eq!(make_way(&viewers), [false, false]);
        viewers.push(places.take());
        assert_eq!(make_way(&viewers), [true, false, false]);
        viewers.push(places.take());
        assert_eq!(make_way(&viewers), [true, true, false, false]);
        assert_eq!(lock(&places.taken).viewers.len(), 2);
    }

    #[test]
    fn a_viewer_that_leaves_gives_its_place_back_and_one_that_made_way_no_second_one() {
        let places = Places::new(2, LONG);
        let (first, second) = (places.take(), places.take());
        let third = places.take();
        drop(first);
        assert_eq!(lock(&places.taken).viewers.len(), 2);
        drop(second);
        let fourth = places.take();
        assert_eq!(make_way(&[third, fourth]), [false, false]);
        assert!(lock(&places.taken).viewers.is_empty(), "all have left");
    }

    #[test]
    fn of_those_that_take_nothing_the_longest_silent_one_is_the_first_to_make_way() {
        let places = Places::new(3, Duration::ZERO);
        let viewers = [places.take(), places.take(), places.take()];
        for reads in [0, 2] {
            viewers[reads].takes();
        }
        let _newcomer = places.take();
        assert_eq!(make_way(&viewers), [false, true, false]);
    }
}
