//! What a controller reports to operators as Kubernetes Events.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use crate::etcd::Fence;
use crate::etcd::session::Window;
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
        (notices, publish(events, fence.window().clone(), waiting))
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

/// Notices of what a replica does whether or not it leads, such as to answer agents. The term under way publishes them; without one they
/// are dropped, since a replica that does not lead writes nothing to Kubernetes (INV-3). All clones share one state.
#[derive(Clone, Debug, Default)]
pub struct LeaderNotices(Arc<watch::Sender<Notices>>);

impl LeaderNotices {
    /// A term has begun, which publishes what is sent from now on.
    pub fn term_began(&self, notices: Notices) {
        self.0.send_replace(notices);
    }

    /// Reports without waiting. Its caller has logged it as well.
    pub fn send(&self, notice: Notice) {
        self.0.borrow().send(notice);
    }
}

async fn publish(mut events: Events, window: Window, mut waiting: mpsc::Receiver<Notice>) {
    while let Some(notice) = waiting.recv().await {
        tokio::select! {
            biased;
            () = window.closed() => break,
            () = events.publish(&notice) => {}
        }
    }
    drop(waiting);
    // A task of a term that ends, ends the term.
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::kube::KubeClient;
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

    /// Events for an API server that accepts connections and never answers.
    async fn unanswered(server: &tokio::net::TcpListener) -> Events {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("kubeconfig");
        let address = server.local_addr().unwrap();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n\
             clusters: [{{name: a, cluster: {{server: 'http://{address}'}}}}]\nusers: [{{name: a, user: {{}}}}]\n"
        );
        std::fs::write(&file, text).unwrap();
        Events::new(KubeClient::connect(Some(&file)).await.unwrap(), None, "a")
    }

    #[tokio::test]
    async fn no_notice_is_published_outside_the_window_of_its_term_inv_3() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        for closed_before in [true, false] {
            let window = Window::open_until(Instant::now() + Duration::from_secs(3600));
            let (sender, waiting) = mpsc::channel(2);
            for note in ["a", "b"] {
                sender.try_send(notice(note)).unwrap();
            }
            let publishing = publish(unanswered(&server).await, window.clone(), waiting);
            let watching = async {
                let connection = match closed_before {
                    true => None,
                    false => Some(server.accept().await.unwrap()),
                };
                window.close();
                // Publishing one notice alone would take 3 s.
                tokio::time::timeout(Duration::from_secs(2), sender.closed())
                    .await
                    .unwrap();
                drop(connection);
            };
            if closed_before {
                window.close();
            }
            tokio::select! {
                () = publishing => unreachable!("it never ends by itself"),
                () = watching => {}
            }
        }
        let more = tokio::time::timeout(Duration::ZERO, server.accept()).await;
        assert!(more.is_err(), "each window had one request at most");
    }

    #[test]
    fn what_outlives_a_term_reports_to_the_term_under_way_and_to_none_else() {
        let all = LeaderNotices::default();
        let clone = all.clone();
        clone.send(notice("before the first term"));
        let (first, mut of_first) = Notices::channel(2);
        all.term_began(first);
        clone.send(notice("first"));
        assert_eq!(of_first.try_recv().unwrap().note, "first");
        drop(of_first);
        clone.send(notice("between two terms"));
        let (second, mut of_second) = Notices::channel(2);
        all.term_began(second);
        clone.send(notice("second"));
        assert_eq!(of_second.try_recv().unwrap().note, "second");
        assert!(of_second.try_recv().is_err());
    }
}
