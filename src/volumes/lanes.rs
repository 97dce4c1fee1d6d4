//! Lanes: the operations on the volumes of one plugin, by their urgency. What hangs or is slow in one lane delays no other, and
//! each lane makes as many calls at a time as the plugin takes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::operation::Action;
use super::plan::Step;
use crate::store::Name;

/// Operations in flight in a lane beside those that are in a call. They write the records before and after their calls, so
/// that the plugin is never idle while etcd is asked. With more, a volume whose call was decided on would wait behind as many calls
/// of a plugin that hangs.
pub const BESIDE_CALLS: usize = 48;

/// The urgency of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// It makes no call.
    Record,
    /// ControllerUnpublishVolume: a node that failed holds a volume that another one waits for.
    Detach,
    /// ControllerPublishVolume.
    Attach,
    /// DeleteVolume.
    Delete,
    /// CreateVolume and ControllerExpandVolume, which may take minutes.
    Create,
}

impl Lane {
    /// The most urgent first.
    const ALL: [Self; 5] = [
        Self::Record,
        Self::Detach,
        Self::Attach,
        Self::Delete,
        Self::Create,
    ];

    /// The lane of an operation, and the node id of its call if it attaches or detaches.
    pub fn of(action: &Action) -> (Self, Option<&str>) {
        match action {
            Action::SetConditions(_) | Action::RecordStray(_) => (Self::Record, None),
            Action::Compensate(compensation) => match &compensation.publication {
                Some(made) => (Self::Detach, Some(&made.csi_node_id)),
                None => (Self::Delete, None),
            },
            Action::Step(step) => match step {
                Step::Create | Step::TakeIn | Step::Expand => (Self::Create, None),
                Step::Delete => (Self::Delete, None),
                Step::Publish { csi_node_id, .. } => (Self::Attach, Some(csi_node_id)),
                Step::Unpublish { csi_node_id, .. } | Step::UnpublishStray { csi_node_id } => {
                    (Self::Detach, Some(csi_node_id))
                }
                Step::Connect
                | Step::TakeBackend
                | Step::TakeName
                | Step::PublishNothing { .. }
                | Step::Detach { .. }
                | Step::DropStray { .. }
                | Step::EndNodeExpansion { .. }
                | Step::EndPublication { .. }
                | Step::DeleteRecord => (Self::Record, None),
            },
        }
    }
}

/// One lane of a plugin.
#[derive(Debug)]
struct OneLane {
    /// One permit a call.
    permits: Arc<Semaphore>,
    /// Volumes whose next operation waits for room, the longest waiting first.
    queue: VecDeque<Name>,
    /// Operations in flight.
    running: usize,
}

/// The attachments and detachments of one node.
#[derive(Debug, Default)]
struct OneNode {
    /// Volumes that wait to be detached. They go before those that wait to be attached.
    detaching: VecDeque<Name>,
    attaching: VecDeque<Name>,
    running: usize,
}

impl OneNode {
    fn pop(&mut self) -> Option<Name> {
        let first = self.detaching.pop_front();
        first.or_else(|| self.attaching.pop_front())
    }

    fn queued(&self) -> usize {
        self.detaching.len() + self.attaching.len()
    }
}

/// The lanes of a plugin.
#[derive(Debug)]
pub struct Lanes {
    /// Calls at a time in each lane.
    concurrency: usize,
    /// Attachments and detachments at a time of one node; `None` for no limit.
    per_node: Option<usize>,
    lanes: [OneLane; Lane::ALL.len()],
    /// The nodes with operations, by node id.
    nodes: HashMap<String, OneNode>,
}

impl Default for Lanes {
    /// Lanes without room: the plugin's record was not read yet.
    fn default() -> Self {
        Self {
            concurrency: 0,
            per_node: None,
            lanes: Lane::ALL.map(|_| OneLane {
                permits: Arc::new(Semaphore::new(1)),
                queue: VecDeque::new(),
                running: 0,
            }),
            nodes: HashMap::new(),
        }
    }
}

impl Lanes {
    /// Takes over the limits of the plugin. Calls in flight keep their permits, and count, unless the number changes.
    pub fn limit(&mut self, concurrency: usize, per_node: Option<usize>) {
        self.per_node = per_node;
        if concurrency != self.concurrency {
            self.concurrency = concurrency;
            for lane in &mut self.lanes {
                lane.permits = Arc::new(Semaphore::new(concurrency));
            }
        }
    }

    /// One permit a call of this lane.
    pub fn permits(&self, lane: Lane) -> Arc<Semaphore> {
        self.lanes[lane as usize].permits.clone()
    }

    /// Begins an operation on a volume, or has the volume wait for room. True if it may begin.
    pub fn begin_or_queue(&mut self, name: &Name, lane: Lane, node: Option<&str>) -> bool {
        if !self.has_room(lane) {
            self.lanes[lane as usize].queue.push_back(name.clone());
            return false;
        }
        if let Some(node) = node {
            let per_node = self.per_node.unwrap_or(usize::MAX);
            let of_node = self.nodes.entry(node.to_owned()).or_default();
            if of_node.running >= per_node {
                let queue = if lane == Lane::Detach {
                    &mut of_node.detaching
                } else {
                    &mut of_node.attaching
                };
                queue.push_back(name.clone());
                return false;
            }
            of_node.running += 1;
        }
        self.lanes[lane as usize].running += 1;
        true
    }

    /// An operation has ended.
    pub fn end(&mut self, lane: Lane, node: Option<&str>) {
        let lane = &mut self.lanes[lane as usize];
        lane.running = lane.running.saturating_sub(1);
        let Some((id, of_node)) = node.and_then(|id| Some((id, self.nodes.get_mut(id)?))) else {
            return;
        };
        of_node.running = of_node.running.saturating_sub(1);
        if of_node.running == 0 && of_node.queued() == 0 {
            self.nodes.remove(id);
        }
    }

    /// The next volume for which there is room, if any waits: one that waits for `node`, or else of the most urgent lane. Each
    /// is planned again, and may wait again.
    pub fn next(&mut self, node: Option<&str>) -> Option<Name> {
        let per_node = self.per_node.unwrap_or(usize::MAX);
        let of_node = node.and_then(|node| self.nodes.get_mut(node));
        if let Some(of_node) = of_node.filter(|of_node| of_node.running < per_node)
            && let Some(name) = of_node.pop()
        {
            return Some(name);
        }
        let urgent = Lane::ALL.into_iter().filter(|lane| self.has_room(*lane));
        let urgent: Vec<Lane> = urgent.collect();
        urgent
            .into_iter()
            .find_map(|lane| self.lanes[lane as usize].queue.pop_front())
    }

    fn has_room(&self, lane: Lane) -> bool {
        let calls = match lane {
            Lane::Record => 0,
            Lane::Detach | Lane::Attach | Lane::Delete | Lane::Create => self.concurrency,
        };
        self.lanes[lane as usize].running < calls + BESIDE_CALLS
    }

    /// Volumes that wait for room.
    pub fn queued(&self) -> usize {
        let for_lanes: usize = self.lanes.iter().map(|lane| lane.queue.len()).sum();
        let for_nodes: usize = self.nodes.values().map(OneNode::queued).sum();
        for_lanes + for_nodes
    }

    /// Operations in flight.
    pub fn running(&self) -> usize {
        self.lanes.iter().map(|lane| lane.running).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn lanes(concurrency: usize, per_node: Option<usize>) -> Lanes {
        let mut lanes = Lanes::default();
        lanes.limit(concurrency, per_node);
        lanes
    }

    /// As many calls at a time as the record says, also while the record is written again.
    #[test]
    fn calls_in_flight_go_on_counting_until_the_limit_itself_changes() {
        let mut lanes = lanes(2, None);
        let _in_flight = lanes.permits(Lane::Create).try_acquire_owned().unwrap();
        lanes.limit(2, Some(1));
        assert_eq!(lanes.permits(Lane::Create).available_permits(), 1);
        assert_eq!(lanes.permits(Lane::Detach).available_permits(), 2);
        lanes.limit(5, None);
        assert_eq!(lanes.permits(Lane::Create).available_permits(), 5);
    }

    #[test]
    fn a_full_lane_delays_no_other_and_the_most_urgent_is_served_first() {
        let mut lanes = lanes(3, None);
        let most = 3 + BESIDE_CALLS;
        let begun = (0..most + 50)
            .filter(|number| lanes.begin_or_queue(&name(&format!("v{number}")), Lane::Create, None));
        assert_eq!(begun.count(), most);
        assert_eq!((lanes.queued(), lanes.next(None)), (50, None));
        assert!(lanes.begin_or_queue(&name("d"), Lane::Detach, Some("n")));
        lanes.lanes[Lane::Detach as usize].queue.push_back(name("urgent"));
        lanes.end(Lane::Create, None);
        assert_eq!(lanes.next(None), Some(name("urgent")));
        assert_eq!(lanes.next(None), Some(name(&format!("v{most}"))));
        assert_eq!(lanes.running(), most);
    }

    #[test]
    fn a_node_that_is_busy_delays_no_other_node() {
        let mut lanes = lanes(9, Some(1));
        assert!(lanes.begin_or_queue(&name("a"), Lane::Attach, Some("n1")));
        assert!(!lanes.begin_or_queue(&name("b"), Lane::Detach, Some("n1")));
        assert!(lanes.begin_or_queue(&name("c"), Lane::Attach, Some("n2")));
        assert_eq!((lanes.queued(), lanes.next(Some("n1"))), (1, None));
        lanes.end(Lane::Attach, Some("n1"));
        assert_eq!(lanes.next(Some("n1")), Some(name("b")));
        lanes.end(Lane::Attach, Some("n2"));
        assert_eq!(lanes.running(), 0);
    }

    #[test]
    fn a_node_is_detached_from_before_it_gets_what_it_waits_for() {
        let mut lanes = lanes(9, Some(1));
        assert!(lanes.begin_or_queue(&name("a"), Lane::Attach, Some("n1")));
        assert!(!lanes.begin_or_queue(&name("b"), Lane::Attach, Some("n1")));
        assert!(!lanes.begin_or_queue(&name("c"), Lane::Detach, Some("n1")));
        lanes.end(Lane::Attach, Some("n1"));
        assert_eq!(lanes.next(Some("n1")), Some(name("c")));
        assert_eq!(lanes.next(Some("n1")), Some(name("b")));
    }
}
