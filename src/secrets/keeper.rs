//! What the leader does for Secrets: it publishes the key with which commands encrypt, and counts what can be read and what cannot.

use std::collections::BTreeMap;
use std::sync::Arc;

use tracing::warn;

use super::key::Keyring;
use super::publisher::Publisher;
use super::seal::{Closed, open};
use crate::etcd::{Event, Fence, KeyValue};
use crate::kube::events::{Notice, Severity};
use crate::metrics::{Metrics, State as StateLabel};
use crate::proto::Secret;
use crate::store::object::decode;
use crate::store::object::secret::{Form, form};
use crate::store::{Follower, Keys, Store, Update};
use crate::term::{Notices, TermGauges, TermOver};
use crate::wipe::wipe;

/// Secrets that one report names; of more it says how many there are.
const NAMED: usize = 5;

/// The Secrets of one term.
pub struct Keeper {
    /// etcd, and the keys of the records.
    pub store: Store,
    /// The term.
    pub fence: Fence,
    /// The keys of this replica.
    pub keyring: Arc<Keyring>,
    /// Publishes Kubernetes Events.
    pub notices: Notices,
}

impl Keeper {
    /// Keeps the published key and the gauges until leadership is lost.
    pub async fn run(self) {
        let window = self.fence.window().clone();
        tokio::select! {
            // First: nothing is published outside the window (INV-1).
            biased;
            () = window.closed() => {}
            _ = self.keep() => {}
        }
    }

    /// Returns only once the term is over.
    async fn keep(&self) -> TermOver {
        let publisher = Publisher::new(&self.store, &self.fence, &self.keyring, &self.notices);
        // Neither waits for the other: what cannot be published is no reason to count nothing.
        tokio::select! {
            over = publisher.keep() => over,
            over = self.survey() => over,
        }
    }

    /// Counts what can be read and what cannot. It ends with the future alone.
    async fn survey(&self) -> TermOver {
        let Store { etcd, keys } = &self.store;
        let mut secrets = Follower::new(etcd, keys.secrets());
        let mut survey = Survey::new(etcd.metrics());
        loop {
            survey.take_in(secrets.next().await, keys, &self.keyring, &self.notices);
        }
    }
}

/// What a Secret is like here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Encrypted,
    Plain,
    Kubernetes,
    Unreadable,
}

impl State {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Encrypted, "encrypted"),
        (Self::Plain, "plain"),
        (Self::Kubernetes, "kubernetes"),
        (Self::Unreadable, "unreadable"),
    ];
}

/// The state of every Secret, and why some cannot be read.
struct Survey {
    metrics: Metrics,
    known: BTreeMap<String, State>,
    /// The sentence about each that cannot be read.
    unreadable: BTreeMap<String, String>,
    /// Those that a list has shown, while it is not complete.
    listing: Option<BTreeMap<String, State>>,
    is_complete: bool,
    reported: Vec<String>,
    _end_with_the_term: TermGauges,
}

impl Survey {
    fn new(metrics: &Metrics) -> Self {
        let gauges =
            State::ALL.map(|(_, state)| metrics.secrets.get_or_create(&StateLabel { state }).clone());
        Self {
            metrics: metrics.clone(),
            known: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            listing: None,
            is_complete: false,
            reported: Vec::new(),
            _end_with_the_term: TermGauges::new(gauges),
        }
    }

    fn take_in(&mut self, update: Update, keys: &Keys, keyring: &Keyring, notices: &Notices) {
        match update {
            Update::Page { first, keys: page } => {
                if first || self.listing.is_none() {
                    self.listing = Some(BTreeMap::new());
                }
                for kv in page {
                    if let Some((name, state)) = self.look(kv, keys, keyring) {
                        self.listing.get_or_insert_default().insert(name, state);
                    }
                }
                return;
            }
            Update::Listed(_) => {
                self.known = self.listing.take().unwrap_or_default();
                let known = &self.known;
                self.unreadable.retain(|name, _| known.contains_key(name));
                self.is_complete = true;
            }
            Update::Events(events) => {
                for event in events {
                    self.on_event(event, keys, keyring);
                }
            }
        }
        if self.is_complete {
            self.show(notices);
        }
    }

    fn on_event(&mut self, event: Event, keys: &Keys, keyring: &Keyring) {
        match event {
            Event::Put(kv) => {
                if let Some((name, state)) = self.look(kv, keys, keyring) {
                    self.known.insert(name, state);
                }
            }
            Event::Delete { key, .. } => {
                if let Some(name) = keys.parse_secret(&key) {
                    self.known.remove(name);
                    self.unreadable.remove(name);
                }
            }
        }
    }

    /// The name and the state of a Secret. Nothing is kept of its values.
    fn look(&mut self, mut kv: KeyValue, keys: &Keys, keyring: &Keyring) -> Option<(String, State)> {
        let name = keys.parse_secret(&kv.key)?.to_owned();
        let looked = look(&name, &kv, keyring);
        wipe(&mut kv.value);
        let state = match looked {
            Ok(state) => {
                self.unreadable.remove(&name);
                state
            }
            Err(why) => {
                self.unreadable
                    .insert(name.clone(), format!("secret {name}: {why}"));
                State::Unreadable
            }
        };
        Some((name, state))
    }

    fn show(&mut self, notices: &Notices) {
        for (wanted, state) in State::ALL {
            let count = self.known.values().filter(|state| **state == wanted).count();
            let gauge = self.metrics.secrets.get_or_create(&StateLabel { state });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let sentences: Vec<String> = self.unreadable.values().cloned().collect();
        if sentences == self.reported {
            return;
        }
        if !sentences.is_empty() {
            let note = few(&sentences);
            warn!("{note}");
            notices.send(Notice {
                severity: Severity::Warning,
                reason: "SecretUnreadable",
                action: "Secrets",
                note,
            });
        }
        self.reported = sentences;
    }
}

/// What a stored Secret is like, or why it cannot be read.
fn look(name: &str, kv: &KeyValue, keyring: &Keyring) -> Result<State, String> {
    let secret = decode::<Secret>(name, &kv.value).map_err(|malformed| malformed.to_string())?;
    match form(&secret) {
        Form::Plain => Ok(State::Plain),
        Form::Kubernetes(_) => Ok(State::Kubernetes),
        Form::Sealed(sealed) => {
            let opened: Result<_, Closed> = open(keyring, &kv.key, sealed);
            opened
                .map(|_| State::Encrypted)
                .map_err(|closed| closed.to_string())
        }
    }
}

/// Some of these sentences, and how many more there are.
pub fn few(sentences: &[String]) -> String {
    let shown = sentences
        .iter()
        .take(NAMED)
        .cloned()
        .collect::<Vec<_>>()
        .join("; ");
    match sentences.len().checked_sub(NAMED) {
        Some(more @ 1..) => format!("{shown}; and {more} more"),
        _ => shown,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use prost::Message as _;

    use super::super::key::tests::keyring;
    use super::super::seal::seal;
    use super::*;
    use crate::etcd::Revision;
    use crate::proto::{KubernetesSecret, Metadata};

    fn keys() -> Keys {
        Keys::new("/quorate".parse().unwrap())
    }

    fn stored(name: &str, change: impl FnOnce(&mut Secret, &[u8]), at: i64) -> KeyValue {
        let key = keys().secret(&name.parse().unwrap());
        let mut secret = Secret {
            metadata: Some(Metadata::new(name, "u", Timestamp::UNIX_EPOCH)),
            data: BTreeMap::new(),
            sealed: None,
            kubernetes: None,
        };
        change(&mut secret, &key);
        KeyValue::written_at(key, secret.encode_to_vec(), at)
    }

    fn sealed(name: &str, key: u8, at: i64) -> KeyValue {
        let seal_it = |secret: &mut Secret, etcd_key: &[u8]| {
            let keys = keyring(&[key]);
            let recipient = keys.first().unwrap().recipient();
            secret.sealed = Some(seal(recipient, etcd_key, &BTreeMap::new()).unwrap());
        };
        stored(name, seal_it, at)
    }

    #[test]
    fn a_lost_key_is_reported_once_with_its_id_and_every_secret_is_counted() {
        let metrics = Metrics::new("1.2.3");
        let (mut survey, ring) = (Survey::new(&metrics), keyring(&[1]));
        let (notices, mut noted) = Notices::channel(8);
        let count = |state| metrics.secrets.get_or_create(&StateLabel { state }).get();
        let named = |secret: &mut Secret, _: &[u8]| secret.kubernetes = Some(KubernetesSecret::default());
        let page = vec![
            stored("k", named, 2),
            sealed("lost", 2, 3),
            sealed("mine", 1, 4),
            stored("plain", |_, _| {}, 5),
        ];
        survey.take_in(
            Update::Page {
                first: true,
                keys: page,
            },
            &keys(),
            &ring,
            &notices,
        );
        assert_eq!(count("plain"), 0, "the list is not complete");
        survey.take_in(Update::Listed(Revision(9)), &keys(), &ring, &notices);
        let states = ["encrypted", "plain", "kubernetes", "unreadable"];
        assert_eq!(states.map(count), [1, 1, 1, 1]);
        let note = noted.try_recv().unwrap().note;
        let id = keyring(&[2]).first().unwrap().id().to_string();
        assert!(note.contains("secret lost") && note.contains(&id), "{note}");
        survey.take_in(Update::Events(Vec::new()), &keys(), &ring, &notices);
        assert!(noted.try_recv().is_err(), "it is reported once");
        let mended = Update::Events(vec![Event::Put(sealed("lost", 1, 10))]);
        survey.take_in(mended, &keys(), &ring, &notices);
        assert_eq!(states.map(count), [2, 1, 1, 0]);
        drop(survey);
        assert_eq!(states.map(count), [0, 0, 0, 0]);
    }

    #[test]
    fn a_moved_value_counts_as_unreadable() {
        let mut moved = sealed("a", 1, 3);
        moved.key = keys().secret(&"b".parse().unwrap());
        let why = look("a", &moved, &keyring(&[1])).unwrap_err();
        assert!(why.contains("not authentic"), "{why}");
    }

    #[test]
    fn a_report_names_a_few_and_counts_the_rest() {
        let sentences: Vec<String> = (1..=7).map(|n| n.to_string()).collect();
        assert_eq!(few(&sentences), "1; 2; 3; 4; 5; and 2 more");
        assert_eq!(few(&sentences[..5]), "1; 2; 3; 4; 5");
    }
}
