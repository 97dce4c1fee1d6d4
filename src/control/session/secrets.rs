//! The secrets of a view: read for the view that is sent, and kept nowhere.

use std::collections::BTreeMap;

use tracing::debug;

use crate::proto::node_publication::Instruction;
use crate::proto::{NodeView, Secret, VolumeSecret};
use crate::store::object::decode;
use crate::store::{Name, Store};

/// Adds the secrets to the publications of a view that need some, each given by its index. Where one is missing, the node is
/// shown that the publication stands, and no more. Returns how many publications lack a secret.
pub async fn fill(store: &Store, view: &mut NodeView, needed: Vec<(usize, Vec<VolumeSecret>)>) -> usize {
    let mut lacking = 0;
    for (at, entries) in needed {
        let values = read(store, &entries).await;
        let Some(publication) = view.publications.get_mut(at) else {
            continue;
        };
        match values {
            Some(values) => publication.secrets = values,
            None => {
                lacking += 1;
                publication.set_instruction(Instruction::Unspecified);
                debug!("volume {}: a secret cannot be read", publication.volume);
            }
        }
    }
    lacking
}

/// The values that a volume names; `None` if one does not exist or cannot be read now.
async fn read(store: &Store, entries: &[VolumeSecret]) -> Option<BTreeMap<String, Vec<u8>>> {
    let mut values = BTreeMap::new();
    for entry in entries {
        let name: Name = entry.secret.parse().ok()?;
        let (stored, _) = store.etcd.get(&store.keys.secret(&name)).await.ok()?;
        let secret: Secret = decode(name.as_str(), &stored?.value).ok()?;
        values.insert(entry.key.clone(), secret.data.get(&entry.key)?.clone());
    }
    Some(values)
}
