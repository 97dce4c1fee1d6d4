//! What the viewers of the status page are shown: drawn once for all of them, at most twice a second, and only while there are any.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use futures::Stream;
use futures::stream::unfold;
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::places::{Place, Places};
use crate::page::{Section, Sources, document, sections};

/// The least time from one drawing for the viewers to the next. A document that is asked for is drawn again if the last drawing is
/// older.
const EVERY: Duration = Duration::from_millis(500);

/// A viewer that has nothing new to be sent is sent that the replica lives. The script waits for 25 s.
const ALIVE_EVERY: Duration = Duration::from_secs(10);

/// The event that says so.
const ALIVE: &[u8] = b"event: alive\ndata: 1\n\n";

/// The most viewers at a time: some more than the 200 that watch an upgrade together.
pub(super) const MOST_VIEWERS: usize = 256;

/// A viewer that has taken nothing for this long does not read, and makes way first: each is sent something twice as often.
const TAKES_WITHIN: Duration = ALIVE_EVERY.saturating_mul(2);

/// Draws the page, and sends what has changed.
pub(super) struct Screen {
    sources: Sources,
    drawn: Mutex<Option<Drawn>>,
    updates: watch::Sender<Update>,
    /// Notified when a viewer comes.
    entered: Notify,
    places: Places,
    stop: CancellationToken,
}

/// How the state looked last.
struct Drawn {
    at: Instant,
    sections: Vec<Section>,
    shown: Shown,
}

/// The two documents. A clone shares the bytes.
#[derive(Clone)]
pub(super) struct Shown {
    /// For people.
    pub document: Bytes,
    /// As JSON.
    pub state: Bytes,
}

/// An event for the viewers. A clone shares the bytes.
#[derive(Clone, Default)]
struct Update {
    /// Grows with each change. 0 before the first drawing.
    number: u64,
    /// All sections.
    all: Bytes,
    /// Those that have changed since the update before.
    changed: Bytes,
}

impl Screen {
    pub fn new(sources: Sources) -> Self {
        Self {
            sources,
            drawn: Mutex::new(None),
            updates: watch::Sender::default(),
            entered: Notify::new(),
            places: Places::new(MOST_VIEWERS, TAKES_WITHIN),
            stop: CancellationToken::new(),
        }
    }

    /// Draws for the viewers, while there are any, until stopped.
    pub async fn keep(&self) {
        let drawing = async {
            loop {
                if self.updates.receiver_count() == 0 {
                    self.entered.notified().await;
                }
                self.draw();
                sleep(EVERY).await;
            }
        };
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = drawing => {}
        }
    }

    /// Ends the streams of all viewers.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// The documents as they are now, at most [`EVERY`] old.
    pub fn shown(&self) -> Shown {
        let recent = |drawn: &Drawn| (drawn.at.elapsed() < EVERY).then(|| drawn.shown.clone());
        let recent = self.with(|drawn| drawn.as_ref().and_then(recent));
        recent.unwrap_or_else(|| self.draw())
    }

    /// What a viewer is sent, and what is cancelled once it makes way for another one. The stream ends then, and with the server.
    pub fn watch(&self) -> (impl Stream<Item = Bytes> + Send + use<>, CancellationToken) {
        let place = self.places.take();
        let makes_way = place.makes_way();
        let viewer = Viewer {
            updates: self.updates.subscribe(),
            sent: 0,
            stop: self.stop.clone(),
            makes_way: makes_way.clone(),
            place,
        };
        self.entered.notify_one();
        (unfold(viewer, Viewer::next), makes_way)
    }

    fn draw(&self) -> Shown {
        let state = self.sources.look();
        let sections = sections(&state);
        // The state consists of texts, numbers and lists, which JSON has all.
        let json = serde_json::to_vec(&state).unwrap_or_default();
        self.with(|drawn| {
            let before = drawn.as_ref().map(|drawn| drawn.sections.as_slice());
            let changed: Vec<&Section> = match before {
                Some(before) => differing(&sections, before),
                None => sections.iter().collect(),
            };
            if !changed.is_empty() {
                self.send(&sections, &changed);
            }
            let document = match drawn.as_ref().filter(|_| changed.is_empty()) {
                Some(drawn) => drawn.shown.document.clone(),
                None => document(&state.replica.name, &sections).into(),
            };
            let shown = Shown {
                document,
                state: json.into(),
            };
            *drawn = Some(Drawn {
                at: Instant::now(),
                shown: shown.clone(),
                sections,
            });
            shown
        })
    }

    fn send(&self, all: &[Section], changed: &[&Section]) {
        let all: Vec<&Section> = all.iter().collect();
        self.updates.send_modify(|update| {
            *update = Update {
                number: update.number + 1,
                all: event(&all),
                changed: event(changed),
            };
        });
    }

    fn with<T>(&self, act: impl FnOnce(&mut Option<Drawn>) -> T) -> T {
        // It is replaced as a whole.
        act(&mut self.drawn.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The sections that are not as before. They are the same ones in the same order at every drawing.
fn differing<'s>(now: &'s [Section], before: &[Section]) -> Vec<&'s Section> {
    let pairs = now.iter().zip(before);
    let differing = pairs.filter(|(now, before)| now != before);
    differing.map(|(now, _)| now).collect()
}

/// An event with these sections. JSON has no line breaks within, as the format of events needs it.
fn event(sections: &[&Section]) -> Bytes {
    let pairs = sections.iter().map(|section| json!([section.id, section.html]));
    let pairs = serde_json::Value::from_iter(pairs);
    format!("event: state\ndata: {pairs}\n\n").into()
}

/// One viewer.
struct Viewer {
    updates: watch::Receiver<Update>,
    /// The number of the last update that it was sent.
    sent: u64,
    stop: CancellationToken,
    makes_way: CancellationToken,
    place: Place,
}

impl Viewer {
    /// The next event. A viewer that is slow gets the latest state, and none of those before.
    async fn next(mut self) -> Option<(Bytes, Self)> {
        // It has taken what it was sent before.
        self.place.takes();
        loop {
            let update = self.updates.borrow_and_update().clone();
            if update.number > self.sent {
                let is_next = self.sent > 0 && update.number == self.sent + 1;
                self.sent = update.number;
                return Some((if is_next { update.changed } else { update.all }, self));
            }
            tokio::select! {
                () = self.stop.cancelled() => return None,
                () = self.makes_way.cancelled() => return None,
                // The sender lives as long as the server.
                changed = self.updates.changed() => changed.ok()?,
                () = sleep(ALIVE_EVERY) => return Some((Bytes::from_static(ALIVE), self)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, StreamExt as _};

    use super::*;
    use crate::page::About;
    use crate::replica::ReplicaStatus;
    use crate::volumes::summary::VolumesSummary;

    fn screen(status: &ReplicaStatus) -> Screen {
        let about = About {
            replica: "r1".to_owned(),
            bundle: "builtin 0.1.0".to_owned(),
            kubernetes: false,
            serves_agents: false,
        };
        Screen::new(Sources::new(about, status))
    }

    fn volumes(created: i64) -> VolumesSummary {
        VolumesSummary {
            states: [("created", created)].into(),
            ..VolumesSummary::default()
        }
    }

    /// The ids of the sections of an event.
    fn ids(event: &Bytes) -> Vec<String> {
        let text = std::str::from_utf8(event).unwrap();
        let data = text.strip_prefix("event: state\ndata: ").unwrap();
        let pairs: Vec<(String, String)> = serde_json::from_str(data.trim_end()).unwrap();
        assert!(
            data.ends_with("\n\n") && data.trim_end().lines().count() == 1,
            "{data}"
        );
        pairs.into_iter().map(|(id, _)| id).collect()
    }

    #[tokio::test]
    async fn a_viewer_gets_everything_first_and_then_what_changes() {
        let status = ReplicaStatus::default();
        let screen = screen(&status);
        let mut viewer = Box::pin(screen.watch().0);
        assert!(viewer.next().now_or_never().is_none(), "nothing is drawn yet");
        screen.draw();
        assert_eq!(ids(&viewer.next().await.unwrap()).len(), 8);
        screen.draw();
        assert!(viewer.next().now_or_never().is_none(), "nothing has changed");
        status.summaries.volumes.publish(volumes(1));
        screen.draw();
        assert_eq!(ids(&viewer.next().await.unwrap()), ["volumes"]);
        // One that was slow gets everything.
        for created in 2..4 {
            status.summaries.volumes.publish(volumes(created));
            screen.draw();
        }
        assert_eq!(ids(&viewer.next().await.unwrap()).len(), 8);
        assert!(viewer.next().now_or_never().is_none(), "it is up to date");
        screen.stop();
        assert_eq!(viewer.next().await, None);
    }

    #[tokio::test]
    async fn many_viewers_share_the_bytes_of_an_event() {
        let status = ReplicaStatus::default();
        let screen = screen(&status);
        let viewers = (0..200).map(|_| Box::pin(screen.watch().0));
        let mut viewers: Vec<_> = viewers.collect();
        screen.draw();
        let mut places = std::collections::BTreeSet::new();
        for viewer in &mut viewers {
            places.insert(viewer.next().await.unwrap().as_ptr());
        }
        assert_eq!(places.len(), 1);
    }

    #[tokio::test]
    async fn one_viewer_too_many_ends_the_stream_of_the_first_and_is_sent_everything() {
        let screen = screen(&ReplicaStatus::default());
        let viewers = (0..MOST_VIEWERS).map(|_| Box::pin(screen.watch().0));
        let mut viewers: Vec<_> = viewers.collect();
        screen.draw();
        assert!(viewers[0].next().await.is_some());
        let mut newcomer = Box::pin(screen.watch().0);
        assert_eq!(ids(&newcomer.next().await.unwrap()).len(), 8);
        assert_eq!(viewers[0].next().await, None);
        assert!(viewers[1].next().await.is_some());
    }

    #[tokio::test]
    async fn nothing_is_drawn_without_a_viewer() {
        let screen = screen(&ReplicaStatus::default());
        let mut keeping = Box::pin(screen.keep());
        assert!(keeping.as_mut().now_or_never().is_none());
        assert!(screen.with(|drawn| drawn.is_none()));
        let _viewer = screen.watch();
        assert!(keeping.as_mut().now_or_never().is_none());
        assert!(screen.with(|drawn| drawn.is_some()));
    }

    #[test]
    fn documents_that_are_asked_for_one_after_the_other_are_drawn_once() {
        let status = ReplicaStatus::default();
        let screen = screen(&status);
        let first = screen.shown();
        let at = screen.with(|drawn| drawn.as_ref().expect("it was just drawn").at);
        status.summaries.volumes.publish(volumes(1));
        let second = screen.shown();
        // Unless the machine was too busy for that.
        if at.elapsed() < EVERY {
            assert_eq!(first.state, second.state);
        }
        screen.draw();
        assert_ne!(first.state, screen.shown().state);
    }
}
