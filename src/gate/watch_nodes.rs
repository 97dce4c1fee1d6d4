//! watch-nodes: one watch over `/nodes/`, summed up after every change.

use prost::Message as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::plan::Own;
use super::releases::{Releases, Reported, Tally};
use crate::etcd::KeyValue;
use crate::proto;
use crate::release::{Release, Version};
use crate::store::keys::NodeKey;
use crate::store::{Cache, Keys, Store};

/// Publishes the releases that run, until cancelled. `None` stands there until the first list is complete.
pub async fn watch_nodes(
    store: &Store,
    own: &Own,
    published: watch::Sender<Option<Releases>>,
    stop: CancellationToken,
) {
    let keys = store.keys.clone();
    let decoding = keys.clone();
    let mut cache = Cache::new(&store.etcd, keys.nodes(), move |kv| reported(&decoding, kv));
    let mut tally = Tally::new(own.version.release, own.min_apiserver);
    loop {
        let changed = cache.next(|change| {
            let (NodeKey::Node(name) | NodeKey::Registration(name)) = keys.parse_node(change.key) else {
                return;
            };
            tally.change(name, change.before.as_ref(), change.after);
        });
        tokio::select! {
            () = stop.cancelled() => return,
            () = changed => {}
        }
        if cache.is_complete() {
            let sum = tally.sum(cache.revision());
            published.send_if_modified(|current| {
                let changed = current.as_ref() != Some(&sum);
                *current = Some(sum);
                changed
            });
        }
    }
}

/// What a key says of a release. Whatever does not parse may be a controller of any release (INV-8).
fn reported(keys: &Keys, kv: &KeyValue) -> Reported {
    let parsed = match keys.parse_node(&kv.key) {
        NodeKey::Node(name) => node_release(name, &kv.value),
        NodeKey::Registration(_) => registered_release(&kv.value).map(Some),
        NodeKey::Other => Ok(None),
    };
    match parsed {
        Ok(Some(release)) => Reported::Release(release),
        Ok(None) => Reported::Nothing,
        Err(reason) => {
            warn!(
                "{} cannot be parsed and holds back every restriction: {reason}",
                kv.key.escape_ascii()
            );
            Reported::Unreadable
        }
    }
}

fn node_release(name: &str, value: &[u8]) -> Result<Option<Release>, String> {
    let node = proto::Node::decode(value).map_err(|error| error.to_string())?;
    let metadata = node.metadata.ok_or("metadata is missing")?;
    if metadata.name != name {
        return Err(format!("metadata.name is \"{}\", unlike the key", metadata.name));
    }
    let Some(status) = node.status.filter(|status| status.controller) else {
        return Ok(None);
    };
    let Some(release) = status.release else {
        return Ok(None);
    };
    Release::from_proto(Some(&release))
        .map(Some)
        .map_err(|error| error.to_string())
}

fn registered_release(value: &[u8]) -> Result<Release, String> {
    let registration = proto::Registration::decode(value).map_err(|error| error.to_string())?;
    let version = Version::from_proto(registration.version.as_ref()).map_err(|error| error.to_string())?;
    Ok(version.release)
}
