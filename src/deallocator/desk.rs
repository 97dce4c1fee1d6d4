//! What is under way, done or rests, so that nothing is tried twice at once or over and over (INV-9).

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use super::index::{Index, Item};
use super::plan::{Busy, Step};
use crate::retry::Delays;

/// The bookkeeping of one term.
#[derive(Default)]
pub struct Desk {
    busy: Busy,
    /// Deleted, but maybe still in the index: the watch has not brought it yet.
    done: Vec<Step>,
    /// When what failed may be tried again.
    resting: BTreeMap<Instant, Vec<Item>>,
    delays: HashMap<Item, Delays>,
}

impl Desk {
    /// What is not to be decided on now.
    pub fn busy(&self) -> &Busy {
        &self.busy
    }

    /// A step is under way.
    pub fn take(&mut self, step: &Step) {
        self.busy.taken.extend(step.items());
    }

    /// A step has been taken.
    pub fn done(&mut self, step: Step) {
        match step {
            Step::Delete(_) => self.done.push(step),
            // Not before the watch had time to bring it. A task that is an orphan again by then is looked at again.
            Step::Orphan(_) => self.rest(&step),
        }
    }

    /// Forgets what the index no longer holds as it was: what comes under the same name later is something else.
    pub fn forget_done(&mut self, index: &Index) {
        let Self { busy, delays, .. } = self;
        self.done.retain_mut(|step| {
            let Step::Delete(batch) = step else {
                return false;
            };
            let mut forget = |item: Item, there: bool| {
                if !there {
                    busy.taken.remove(&item);
                    busy.alone.remove(&item);
                    delays.remove(&item);
                }
                there
            };
            batch.services.retain(|name, revision| {
                forget(Item::Service(name.clone()), index.holds_service(name, *revision))
            });
            batch.networks.retain(|name, revision| {
                forget(Item::Network(name.clone()), index.holds_network(name, *revision))
            });
            !batch.services.is_empty() || !batch.networks.is_empty()
        });
    }

    /// Something changed since a step was decided.
    pub fn refused(&mut self, step: &Step) {
        match step.is_single() {
            true => self.rest(step),
            false => self.split(step),
        }
    }

    /// etcd did not take a step. One that it never takes may be too large for it: its parts may not be.
    pub fn failed(&mut self, step: &Step, retryable: bool) {
        match retryable {
            true => self.rest(step),
            false => self.refused(step),
        }
    }

    /// The objects of a step may be decided on again after a while, longer every time; all at once, so that what goes
    /// together still does.
    fn rest(&mut self, step: &Step) {
        let items = step.items();
        let delays = items.iter().map(|item| {
            self.delays
                .entry(item.clone())
                .or_insert_with(Delays::etcd)
                .next_delay()
        });
        let until = Instant::now() + delays.max().unwrap_or_default();
        self.resting.entry(until).or_default().extend(items);
    }

    /// The objects of a step are decided on one by one: any of them may be what was in the way of the others (INV-8).
    fn split(&mut self, step: &Step) {
        for item in step.items() {
            self.busy.taken.remove(&item);
            self.busy.alone.insert(item);
        }
    }

    /// Resolves when something has rested long enough. Safe to cancel.
    pub async fn rested(&mut self, index: &Index) {
        let Some((until, _)) = self.resting.first_key_value() else {
            return std::future::pending().await;
        };
        tokio::time::sleep_until((*until).into()).await;
        for item in self.resting.pop_first().into_iter().flat_map(|(_, items)| items) {
            if !index.is_due(&item) {
                self.delays.remove(&item);
                self.busy.alone.remove(&item);
            }
            self.busy.taken.remove(&item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deallocator::plan::Batch;
    use crate::etcd::Revision;
    use crate::store::Keys;

    fn step(services: usize, networks: usize) -> Step {
        let names = |prefix: &str, count: usize| {
            let names = (0..count).map(|number| format!("{prefix}{number}"));
            let dated = names.map(|name| (name.parse().unwrap(), Revision(1)));
            dated.collect()
        };
        Step::Delete(Batch {
            services: names("s", services),
            networks: names("n", networks),
        })
    }

    fn counts(desk: &Desk) -> (usize, usize) {
        (desk.busy().taken.len(), desk.busy().alone.len())
    }

    #[test]
    fn what_is_refused_together_is_tried_one_by_one_at_once_and_what_is_refused_alone_rests() {
        let mut desk = Desk::default();
        desk.take(&step(2, 1));
        desk.refused(&step(2, 1));
        assert_eq!(counts(&desk), (0, 3));
        // A service with its networks is one: they go together.
        desk.take(&step(1, 1));
        desk.refused(&step(1, 1));
        assert_eq!(counts(&desk), (2, 3));
    }

    #[test]
    fn what_fails_stays_together_unless_etcd_will_never_take_it() {
        let mut desk = Desk::default();
        desk.take(&step(2, 1));
        desk.failed(&step(2, 1), true);
        assert_eq!(counts(&desk), (3, 0));
        let mut desk = Desk::default();
        desk.take(&step(2, 1));
        desk.failed(&step(2, 1), false);
        assert_eq!(counts(&desk), (0, 3));
    }

    #[tokio::test]
    async fn what_failed_together_rests_and_is_tried_again_together() {
        let index = Index::new(Keys::new("/q".parse().unwrap()));
        let mut desk = Desk::default();
        let step = step(20, 20);
        desk.take(&step);
        desk.failed(&step, true);
        let begun = Instant::now();
        desk.rested(&index).await;
        assert_eq!(counts(&desk), (0, 0));
        // Three quarters of the first delay of `Delays::etcd` (INV-9).
        assert!(begun.elapsed().as_millis() >= 75, "{:?}", begun.elapsed());
    }
}
