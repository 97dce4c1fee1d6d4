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

    /// The objects of a step may be decided on again after a while, longer every time.
    pub fn rest(&mut self, step: &Step) {
        for item in step.items() {
            let delays = self.delays.entry(item.clone()).or_insert_with(Delays::etcd);
            let until = Instant::now() + delays.next_delay();
            self.resting.entry(until).or_default().push(item);
        }
    }

    /// The objects of a step are decided on one by one: any of them may be what was in the way of the others (INV-8).
    pub fn split(&mut self, step: &Step) {
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
