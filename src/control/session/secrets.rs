//! The secrets of a view: read for the view that is sent, and kept nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use tokio::time::timeout;
use tracing::debug;

use crate::proto::node_publication::Instruction;
use crate::proto::{NodeView, Secret, VolumeSecret};
use crate::store::object::decode;
use crate::store::{Name, Store};

/// How long all of them may take: no heartbeat of the session is taken meanwhile.
const LIMIT: Duration = Duration::from_secs(2);

/// Secrets that are read at a time.
const AT_ONCE: usize = 16;

/// By name, those that could be read.
type Read = BTreeMap<String, Secret>;

/// Adds the secrets to the publications of a view that need some, each given by its index. Where one is missing, the node is
/// shown that the publication stands, and no more. Returns the publications that lack a secret.
pub async fn fill(store: &Store, view: &mut NodeView, needed: Vec<(usize, Vec<VolumeSecret>)>) -> Vec<usize> {
    let names: BTreeSet<String> = needed
        .iter()
        .flat_map(|(_, entries)| entries.iter().map(|entry| entry.secret.clone()))
        .collect();
    if names.is_empty() {
        return Vec::new();
    }
    let reading = names.into_iter().map(|name| read(store, name));
    let reading = stream::iter(reading).buffer_unordered(AT_ONCE);
    let reading = reading.filter_map(std::future::ready).collect::<Read>();
    let secrets = timeout(LIMIT, reading).await.unwrap_or_default();
    let mut lacking = Vec::new();
    for (at, entries) in needed {
        let Some(publication) = view.publications.get_mut(at) else {
            continue;
        };
        match values(&secrets, &entries) {
            Some(values) => publication.secrets = values,
            None => {
                lacking.push(at);
                publication.set_instruction(Instruction::Unspecified);
                debug!("volume {}: a secret cannot be read", publication.volume);
            }
        }
    }
    lacking
}

async fn read(store: &Store, secret: String) -> Option<(String, Secret)> {
    let name: Name = secret.parse().ok()?;
    let (stored, _) = store.etcd.get(&store.keys.secret(&name)).await.ok()?;
    let read = decode(name.as_str(), &stored?.value).ok()?;
    Some((secret, read))
}

/// The values that a volume names; `None` if one is missing.
fn values(secrets: &Read, entries: &[VolumeSecret]) -> Option<BTreeMap<String, Vec<u8>>> {
    let value = |entry: &VolumeSecret| {
        let value = secrets.get(&entry.secret)?.data.get(&entry.key)?;
        Some((entry.key.clone(), value.clone()))
    };
    entries.iter().map(value).collect()
}
