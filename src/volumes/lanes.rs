//! Lanes: the operations on the volumes of one plugin, by their urgency. What hangs or is slow in one lane delays no other, and
//! each lane makes as many calls at a time as the plugin takes.

use std::collections::{BTreeMap, HashMap};
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

/// Where a volume waits for room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    lane: Lane,
    /// The node id that it waits for; `None` where it waits for its lane.
    node: Option<String>,
    /// Which of the places that were given it is. The first is served first.
    turn: u64,
}

/// Volumes whose next operations wait, by their turns.
type Queue = BTreeMap<u64, Name>;

/// One lane of a plugin.
#[derive(Debug)]
struct OneLane {
    /// One permit a call.
    permits: Arc<Semaphore>,
    /// Volumes that wait for room in it.
    queue: Queue,
    /// Operations in flight.
    running: usize,
}

/// The attachments and detachments of one node.
#[derive(Debug, Default)]
struct OneNode {
    /// Volumes that wait to be detached. They go before those that wait to be attached.
    detaching: Queue,
    attaching: Queue,
    running: usize,
}

impl OneNode {
    fn pop(&mut self) -> Option<Name> {
        let first = self.detaching.pop_first();
        let first = first.or_else(|| self.attaching.pop_first());
        first.map(|(_, name)| name)
    }

    fn queue(&mut self, lane: Lane) -> &mut Queue {
        match lane {
            Lane::Detach => &mut self.detaching,
            Lane::Record | Lane::Attach | Lane::Delete | Lane::Create => &mut self.attaching,
        }
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
    /// Places that were given so far.
    turns: u64,
}

impl Default for Lanes {
    /// Lanes without room: the plugin's record was not read yet.
    fn default() -> Self {
        Self {
            concurrency: 0,
            per_node: None,
            lanes: Lane::ALL.map(|_| OneLane {
                permits: Arc::new(Semaphore::new(1)),
                queue: Queue::new(),
                running: 0,
            }),
            nodes: HashMap::new(),
            turns: 0,
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

    /// Begins an operation on a volume, or has the volume wait for room: then its place is returned. A volume that has left a place
    /// and waits for the same as before takes that place again.
    pub fn begin_or_queue(
        &mut self,
        name: &Name,
        lane: Lane,
        node: Option<&str>,
        left: Option<Place>,
    ) -> Result<(), Place> {
        if !self.has_room(lane) {
            let place = self.place(lane, None, left);
            let queue = &mut self.lanes[lane as usize].queue;
            queue.insert(place.turn, name.clone());
            return Err(place);
        }
        if let Some(node) = node {
            let per_node = self.per_node.unwrap_or(usize::MAX);
            let of_node = self.nodes.entry(node.to_owned()).or_default();
            if of_node.running >= per_node {
                let place = self.place(lane, Some(node), left);
                let of_node = self.nodes.entry(node.to_owned()).or_default();
                of_node.queue(lane).insert(place.turn, name.clone());
                return Err(place);
            }
            of_node.running += 1;
        }
        self.lanes[lane as usize].running += 1;
        Ok(())
    }

    /// The place that was left, if it is the same, or else a new one.
    fn place(&mut self, lane: Lane, node: Option<&str>, left: Option<Place>) -> Place {
        let is_same = |left: &Place| left.lane == lane && left.node.as_deref() == node;
        left.filter(is_same).unwrap_or_else(|| {
            self.turns += 1;
            Place {
                lane,
                node: node.map(str::to_owned),
                turn: self.turns,
            }
        })
    }

    /// The volume at this place no longer waits there, if it still does.
    pub fn leave(&mut self, place: &Place) {
        let queue = match &place.node {
            None => Some(&mut self.lanes[place.lane as usize].queue),
            Some(node) => self.nodes.get_mut(node).map(|of_node| of_node.queue(place.lane)),
        };
        if let Some(queue) = queue {
            queue.remove(&place.turn);
        }
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
        let first = urgent
            .into_iter()
            .find_map(|lane| self.lanes[lane as usize].queue.pop_first());
        first.map(|(_, name)| name)
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

    fn begins(lanes: &mut Lanes, volume: &str, lane: Lane, node: Option<&str>) -> bool {
        lanes.begin_or_queue(&name(volume), lane, node, None).is_ok()
    }

    /// The place of a volume that waits for the node n1.
    fn wait(lanes: &mut Lanes, volume: &str, lane: Lane, left: Option<Place>) -> Place {
        let begun = lanes.begin_or_queue(&name(volume), lane, Some("n1"), left);
        begun.unwrap_err()
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
        let begun =
            (0..most + 50).filter(|number| begins(&mut lanes, &format!("v{number}"), Lane::Create, None));
        assert_eq!(begun.count(), most);
        assert_eq!((lanes.queued(), lanes.next(None)), (50, None));
        assert!(begins(&mut lanes, "d", Lane::Detach, Some("n")));
        lanes.lanes[Lane::Detach as usize].queue.insert(0, name("urgent"));
        lanes.end(Lane::Create, None);
        assert_eq!(lanes.next(None), Some(name("urgent")));
        assert_eq!(lanes.next(None), Some(name(&format!("v{most}"))));
        assert_eq!(lanes.running(), most);
    }

    #[test]
    fn a_node_that_is_busy_delays_no_other_node() {
        let mut lanes = lanes(9, Some(1));
        assert!(begins(&mut lanes, "a", Lane::Attach, Some("n1")));
        assert!(!begins(&mut lanes, "b", Lane::Detach, Some("n1")));
        assert!(begins(&mut lanes, "c", Lane::Attach, Some("n2")));
        assert_eq!((lanes.queued(), lanes.next(Some("n1"))), (1, None));
        lanes.end(Lane::Attach, Some("n1"));
        assert_eq!(lanes.next(Some("n1")), Some(name("b")));
        lanes.end(Lane::Attach, Some("n2"));
        assert_eq!(lanes.running(), 0);
    }

    #[test]
    fn a_node_is_detached_from_before_it_gets_what_it_waits_for() {
        let mut lanes = lanes(9, Some(1));
        assert!(begins(&mut lanes, "a", Lane::Attach, Some("n1")));
        assert!(!begins(&mut lanes, "b", Lane::Attach, Some("n1")));
        assert!(!begins(&mut lanes, "c", Lane::Detach, Some("n1")));
        lanes.end(Lane::Attach, Some("n1"));
        assert_eq!(lanes.next(Some("n1")), Some(name("c")));
        assert_eq!(lanes.next(Some("n1")), Some(name("b")));
    }

    /// It may be woken often while it waits.
    #[test]
    fn a_volume_that_leaves_its_place_keeps_its_turn_if_it_waits_for_the_same_again() {
        let mut lanes = lanes(9, Some(1));
        assert!(begins(&mut lanes, "a", Lane::Attach, Some("n1")));
        let (of_b, of_c) = (
            wait(&mut lanes, "b", Lane::Attach, None),
            wait(&mut lanes, "c", Lane::Attach, None),
        );
        lanes.leave(&of_b);
        assert_eq!(lanes.queued(), 1);
        assert_eq!(wait(&mut lanes, "b", Lane::Attach, Some(of_b.clone())), of_b);
        let later = wait(&mut lanes, "d", Lane::Detach, Some(of_c.clone()));
        assert!(later.turn > of_c.turn, "it is another place");
        lanes.leave(&of_b);
        lanes.end(Lane::Attach, Some("n1"));
        for next in [Some(name("d")), Some(name("c")), None] {
            assert_eq!(lanes.next(Some("n1")), next);
        }
        lanes.leave(&of_c);
        assert_eq!(lanes.queued(), 0);
    }
}
