//! The secrets of a view: read for the view that is sent, and kept nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::mem::take;
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use tokio::time::sleep;
use tracing::debug;

use crate::proto::node_publication::Instruction;
use crate::proto::volume_secret::Call;
use crate::proto::{NodePublication, NodeView, SecretData, VolumeSecret};
use crate::secrets::{Reader, Unavailable};
use crate::store::Store;
use crate::store::object::volume::gets;
use crate::wipe::wipe;

/// How long all of them may take: no heartbeat of the session is taken meanwhile.
const LIMIT: Duration = Duration::from_secs(2);

/// Secrets that are read at a time.
const AT_ONCE: usize = 16;

/// By name, those that could be read.
type Read = BTreeMap<String, SecretData>;

/// The secrets of a call, by their keys.
type Values = BTreeMap<String, Vec<u8>>;

/// A view until it is sent. The secrets of one that is dropped are overwritten.
pub struct Unsent(NodeView);

impl Unsent {
    pub const fn new(view: NodeView) -> Self {
        Self(view)
    }

    /// The view, for its message.
    pub fn sent(mut self) -> NodeView {
        take(&mut self.0)
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        self.0.publications.iter_mut().for_each(take_back);
    }
}

/// What could not be added to a view.
#[derive(Default)]
pub struct Lacks {
    /// The publications that lack a secret, by their index.
    pub publications: Vec<usize>,
    /// Why secrets could not be read that exist, in words: another replica may read them.
    pub why: Vec<String>,
}

/// Adds the secrets to the publications of a view that need some, each given by its index. Where one is missing, the node is
/// shown that the publication stands, and no more.
pub async fn fill(
    reader: &Reader,
    store: &Store,
    Unsent(view): &mut Unsent,
    needed: Vec<(usize, Vec<VolumeSecret>)>,
) -> Lacks {
    let names: BTreeSet<String> = needed
        .iter()
        .flat_map(|(_, entries)| entries.iter().map(|entry| entry.secret.clone()))
        .collect();
    if names.is_empty() {
        return Lacks::default();
    }
    let reading = names.into_iter().map(|name| read(reader, store, name));
    let reading = stream::iter(reading).buffer_unordered(AT_ONCE);
    // What Kubernetes is slow to answer keeps no other secret from the node.
    let reading = reading.take_until(sleep(LIMIT));
    let read: BTreeMap<String, Result<SecretData, Unavailable>> = reading.collect().await;
    let (mut secrets, mut lacks) = (Read::new(), Lacks::default());
    for (name, read) in read {
        match read {
            Ok(values) => drop(secrets.insert(name, values)),
            Err(unavailable) => {
                let why = unavailable.about(&name);
                debug!("{why}");
                if unavailable.is_of_the_reader() {
                    lacks.why.push(why);
                }
            }
        }
    }
    for (at, entries) in needed {
        let Some(publication) = view.publications.get_mut(at) else {
            continue;
        };
        if add(&secrets, &entries, publication).is_none() {
            take_back(publication);
            lacks.publications.push(at);
            publication.set_instruction(Instruction::Unspecified);
            debug!("volume {}: a secret cannot be read", publication.volume);
        }
    }
    lacks
}

/// Equal for equal values of the secrets in a view. It is keyed at random for this process: a session keeps nothing else of them.
pub fn digest(key: &RandomState, Unsent(view): &Unsent) -> u64 {
    let of_publication = |publication: &NodePublication| {
        let NodePublication {
            secrets,
            stage_secrets,
            publish_secrets,
            expand_secrets,
            ..
        } = publication;
        key.hash_one([secrets, stage_secrets, publish_secrets, expand_secrets])
    };
    let digests: Vec<u64> = view.publications.iter().map(of_publication).collect();
    key.hash_one(digests)
}

async fn read(reader: &Reader, store: &Store, secret: String) -> (String, Result<SecretData, Unavailable>) {
    let read = reader.read(store, &secret).await;
    (secret, read)
}

/// Adds the values that a volume names, each for the calls that get it; `None` if one is missing.
fn add(secrets: &Read, entries: &[VolumeSecret], publication: &mut NodePublication) -> Option<()> {
    for entry in entries {
        let value = secrets.get(&entry.secret)?.data.get(&entry.key)?;
        let given: Vec<&mut Values> = match entry.calls.is_empty() {
            true => vec![&mut publication.secrets],
            false => [
                (Call::NodeStage, &mut publication.stage_secrets),
                (Call::NodePublish, &mut publication.publish_secrets),
                (Call::NodeExpand, &mut publication.expand_secrets),
            ]
            .into_iter()
            .filter(|(call, _)| gets(entry, *call))
            .map(|(_, values)| values)
            .collect(),
        };
        for values in given {
            values.insert(entry.key.clone(), value.clone());
        }
    }
    Some(())
}

fn take_back(publication: &mut NodePublication) {
    let NodePublication {
        secrets,
        stage_secrets,
        publish_secrets,
        expand_secrets,
        ..
    } = publication;
    for values in [secrets, stage_secrets, publish_secrets, expand_secrets] {
        values.values_mut().for_each(wipe);
        values.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, secret: &str, calls: &[Call]) -> VolumeSecret {
        VolumeSecret {
            key: key.to_owned(),
            secret: secret.to_owned(),
            calls: calls.iter().map(|call| i32::from(*call)).collect(),
        }
    }

    fn read(name: &str, value: &str) -> (String, SecretData) {
        let secret = SecretData {
            data: [("token".to_owned(), value.as_bytes().to_vec())].into(),
        };
        (name.to_owned(), secret)
    }

    fn values(value: &str) -> Values {
        [("token".to_owned(), value.as_bytes().to_vec())].into()
    }

    #[test]
    fn a_call_of_a_node_gets_the_values_that_are_for_it_and_none_where_one_is_missing() {
        let secrets: Read = [read("stage", "s"), read("publish", "p")].into();
        let mut entries = vec![
            entry("token", "stage", &[Call::NodeStage, Call::NodeExpand]),
            entry("token", "publish", &[Call::NodePublish, Call::Create]),
        ];
        let mut shown = NodePublication::default();
        assert!(add(&secrets, &entries, &mut shown).is_some());
        let of_calls = |shown: &NodePublication| {
            [
                shown.secrets.clone(),
                shown.stage_secrets.clone(),
                shown.publish_secrets.clone(),
                shown.expand_secrets.clone(),
            ]
        };
        let expected = [Values::new(), values("s"), values("p"), values("s")];
        assert!(of_calls(&shown) == expected);
        let (key, view) = (RandomState::new(), |publication: &NodePublication| {
            Unsent::new(NodeView {
                publications: vec![publication.clone()],
                ..NodeView::default()
            })
        });
        let before = digest(&key, &view(&shown));
        shown.expand_secrets = values("other");
        assert_ne!(digest(&key, &view(&shown)), before, "a new value is sent");
        let sent = view(&shown).sent();
        assert!(
            sent.publications == [shown.clone()],
            "it is sent with its secrets"
        );
        entries.push(entry("token", "absent", &[]));
        assert!(add(&secrets, &entries, &mut shown).is_none());
        take_back(&mut shown);
        assert!(of_calls(&shown).iter().all(Values::is_empty));
    }
}
