//! What a controller reports to operators as Kubernetes Events.

use tokio::sync::mpsc;

use crate::etcd::Fence;
use crate::kube::events::{Events, Notice};

/// How many notices may wait to be published.
const WAITING: usize = 64;

/// Accepts notices of the controllers of a term. The default one publishes nothing.
#[derive(Clone, Debug, Default)]
pub struct Notices(Option<mpsc::Sender<Notice>>);

impl Notices {
    /// Notices, and the future that publishes them within the window of the term (INV-3), one after the other. It never
    /// ends by itself.
    pub fn publishing(events: Events, fence: Fence) -> (Self, impl Future<Output = ()> + Send) {
        let (notices, waiting) = Self::channel(WAITING);
        (notices, publish(events, fence, waiting))
    }

    /// Notices for a receiver of one's own, of which this many may wait.
    pub fn channel(waiting: usize) -> (Self, mpsc::Receiver<Notice>) {
        let (sender, receiver) = mpsc::channel(waiting);
        (Self(Some(sender)), receiver)
    }

    /// Reports without waiting. A notice that finds no room is dropped: its caller has logged it as well.
    pub fn send(&self, notice: Notice) {
        if let Some(notices) = &self.0 {
            let _ = notices.try_send(notice);
        }
    }
}

async fn publish(mut events: Events, fence: Fence, mut waiting: mpsc::Receiver<Notice>) {
    while let Some(notice) = waiting.recv().await {
        tokio::select! {
            biased;
            () = fence.window().closed() => break,
            () = events.publish(&notice) => {}
        }
    }
    // A task of a term that ends, ends the term.
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::events::Severity;

    fn notice(note: &str) -> Notice {
        Notice {
            severity: Severity::Normal,
            reason: "Tested",
            action: "Test",
            note: note.to_owned(),
        }
    }

    #[test]
    fn a_notice_that_finds_no_room_is_dropped_at_once() {
        let (notices, mut receiver) = Notices::channel(2);
        for note in ["a", "b", "c"] {
            notices.send(notice(note));
        }
        let received: Vec<String> = std::iter::from_fn(|| receiver.try_recv().ok())
            .map(|notice| notice.note)
            .collect();
        assert_eq!(received, ["a", "b"]);
        drop(receiver);
        notices.send(notice("d"));
        Notices::default().send(notice("e"));
    }
}
