//! The connections at the control port: how many are open, and which of them make way for others.
//!
//! A certificate alone makes no connection one of a node: the node may have been removed, and its holder can open any number. Until a
//! call on it was judged by the record of the node, a connection is one of a stranger.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// How many connections are open at a time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Of nodes.
    pub nodes: usize,
    /// Of one node: that of its session, and others that have yet to notice that they have ended.
    pub of_one_node: usize,
    /// Of strangers.
    pub strangers: usize,
}

impl Limits {
    /// Those of a replica.
    pub const USUAL: Self = Self {
        nodes: 8192,
        of_one_node: 8,
        strangers: 1024,
    };
}

/// How long a connection of a node lasts: longer than any session on it, which ends by itself.
const NODE_LASTS: Duration = Duration::from_secs(2 * 3600);

/// How long one of a stranger lasts: to join and to wait for a certificate takes minutes.
const STRANGER_LASTS: Duration = Duration::from_secs(600);

/// The connections that are open. One too many makes the oldest make way: of strangers for a stranger, of one node for the same node.
pub struct Connections {
    limits: Limits,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    /// The number of the last connection.
    last: u64,
    /// The oldest first.
    strangers: VecDeque<Held>,
    /// By the uid of the node; the oldest first.
    nodes: VecDeque<(Box<str>, Held)>,
}

/// What ends a connection when it is dropped.
struct Held {
    number: u64,
    until: watch::Sender<Instant>,
}

impl Held {
    fn is_open(&self) -> bool {
        !self.until.is_closed()
    }
}

/// The place of a connection among the others. Clones are the same.
#[derive(Clone)]
pub struct Slot(Arc<Numbered>);

struct Numbered {
    connections: Arc<Connections>,
    number: u64,
    is_of_node: AtomicBool,
}

impl Slot {
    /// A call on the connection was judged: it is one of the node of this uid.
    pub fn belongs_to(&self, uid: &str) {
        let Numbered {
            connections, number, ..
        } = &*self.0;
        if !self.0.is_of_node.swap(true, Ordering::Relaxed) {
            connections.move_to_nodes(*number, uid);
        }
    }
}

impl Connections {
    /// No connections yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            open: Mutex::default(),
        }
    }

    /// Takes in the connection of a stranger. It has to end once the future resolves.
    pub fn admit(self: &Arc<Self>) -> (Slot, BoxFuture<'static, ()>) {
        let (until, seen) = watch::channel(Instant::now() + STRANGER_LASTS);
        let number = self.change(|open, limits| {
            open.strangers.retain(Held::is_open);
            if open.strangers.len() >= limits.strangers {
                open.strangers.pop_front();
            }
            open.last += 1;
            let number = open.last;
            open.strangers.push_back(Held { number, until });
            number
        });
        let slot = Numbered {
            connections: Arc::clone(self),
            number,
            is_of_node: AtomicBool::new(false),
        };
        (Slot(Arc::new(slot)), Box::pin(over(seen)))
    }

    fn move_to_nodes(&self, number: u64, uid: &str) {
        self.change(|open, limits| {
            let at = open.strangers.iter().position(|held| held.number == number);
            // Where it has made way meanwhile, there is none.
            let Some(held) = at.and_then(|at| open.strangers.remove(at)) else {
                return;
            };
            open.nodes.retain(|(_, held)| held.is_open());
            let is_own = |(of, _): &(Box<str>, Held)| **of == *uid;
            let own = open.nodes.iter().filter(|node| is_own(node)).count();
            let makes_way = match own >= limits.of_one_node {
                true => open.nodes.iter().position(is_own),
                false => (open.nodes.len() >= limits.nodes).then_some(0),
            };
            if let Some(at) = makes_way {
                open.nodes.remove(at);
            }
            held.until.send_replace(Instant::now() + NODE_LASTS);
            open.nodes.push_back((uid.into(), held));
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut Open, Limits) -> T) -> T {
        // A step that panicked left at most one connection uncounted.
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut open, self.limits)
    }
}

/// Resolves once a connection has made way, or has lasted long enough.
async fn over(mut until: watch::Receiver<Instant>) {
    loop {
        let at = *until.borrow_and_update();
        tokio::select! {
            () = sleep_until(at) => return,
            changed = until.changed() => if changed.is_err() { return },
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const FEW: Limits = Limits {
        nodes: 4,
        of_one_node: 2,
        strangers: 2,
    };

    struct Opened(Slot, BoxFuture<'static, ()>);

    impl Opened {
        fn stranger(connections: &Arc<Connections>) -> Self {
            let (slot, ends) = connections.admit();
            Self(slot, ends)
        }

        fn of(connections: &Arc<Connections>, uid: &str) -> Self {
            let opened = Self::stranger(connections);
            opened.0.belongs_to(uid);
            opened
        }

        fn is_open(&mut self) -> bool {
            (&mut self.1).now_or_never().is_none()
        }
    }

    #[tokio::test]
    async fn strangers_make_way_for_each_other_and_no_node_does_for_them() {
        let connections = Arc::new(Connections::new(FEW));
        let mut node = Opened::of(&connections, "a");
        let mut strangers: Vec<_> = (0..3).map(|_| Opened::stranger(&connections)).collect();
        let open: Vec<_> = strangers.iter_mut().map(Opened::is_open).collect();
        assert_eq!(open, [false, true, true]);
        assert!(node.is_open());
        // One that has ended by itself needs not make way.
        drop(strangers.pop());
        let mut another = Opened::stranger(&connections);
        assert!(strangers[1].is_open() && another.is_open());
    }

    #[tokio::test]
    async fn a_node_that_opens_more_than_its_share_ends_its_own_connections_alone() {
        let connections = Arc::new(Connections::new(FEW));
        let mut other = Opened::of(&connections, "b");
        let mut own: Vec<_> = (0..5).map(|_| Opened::of(&connections, "a")).collect();
        // It is judged again at each call.
        own[4].0.belongs_to("a");
        let open: Vec<_> = own.iter_mut().map(Opened::is_open).collect();
        assert_eq!(open, [false, false, false, true, true]);
        assert!(other.is_open());
        // Among all nodes the oldest makes way.
        let mut c = Opened::of(&connections, "c");
        let mut d = Opened::of(&connections, "d");
        assert!(!other.is_open() && own[3].is_open() && c.is_open() && d.is_open());
    }

    /// Such as that of a node that was removed.
    #[tokio::test]
    async fn a_connection_whose_calls_are_refused_stays_a_strangers() {
        let connections = Arc::new(Connections::new(FEW));
        let mut nodes: Vec<_> = ["a", "b", "c", "d"]
            .map(|uid| Opened::of(&connections, uid))
            .into_iter()
            .collect();
        let _many: Vec<_> = (0..100).map(|_| Opened::stranger(&connections)).collect();
        assert!(nodes.iter_mut().all(Opened::is_open));
    }
}
