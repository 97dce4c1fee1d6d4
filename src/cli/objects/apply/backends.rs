//! A Plugin that is applied with another endpoint leaves the volumes behind that were made at the former one.

use super::input::Manifest;
use crate::cli::exit::Failure;
use crate::etcd::KeyValue;
use crate::proto::{Plugin, Volume};
use crate::store::Store;
use crate::store::object::change::Step;
use crate::store::object::{Object, decode, plugin, volume};

/// A warning that names the volumes to which the leader calls the plugin no more, if there are any. A plugin that tells the
/// identity of its backend is trusted to tell the same at its new endpoint: what it tells is seen by the leader alone.
///
/// # Errors
/// 1 if etcd did not answer.
pub async fn left_behind(
    store: &Store,
    manifest: &Manifest,
    stored: Option<&KeyValue>,
    step: &Step,
) -> Result<Option<String>, Failure> {
    let (Step::Configure(after), Some(stored)) = (step, stored) else {
        return Ok(None);
    };
    if manifest.kind.words.kind != Plugin::KIND {
        return Ok(None);
    }
    let name = manifest.name.name.as_str();
    let read = |value: &[u8]| decode::<Plugin>(name, value).ok();
    let Some((before, after)) = read(&stored.value).zip(read(after)) else {
        return Ok(None);
    };
    if plugin::endpoint(&before) == plugin::endpoint(&after) {
        return Ok(None);
    }
    let (volumes, _) = store.etcd.list(&store.keys.volumes()).await?;
    let is_left_behind = |kv: &&KeyValue| {
        let id = store.keys.parse_volume(&kv.key).unwrap_or_default();
        let Ok(volume) = decode::<Volume>(id, &kv.value) else {
            return false;
        };
        let backend = volume.status.as_ref().and_then(|status| status.backend.as_ref());
        let tells = backend.is_some_and(|backend| !backend.id.is_empty());
        volume::driver(&volume) == name && !tells && !plugin::is_backend_of(&after, "", backend)
    };
    let count = volumes.iter().filter(is_left_behind).count();
    let former = plugin::endpoint(&before);
    Ok((count > 0).then(|| {
        let volumes = if count == 1 { "1 volume was" } else { &format!("{count} volumes were") };
        format!(
            "plugin/{name}: {volumes} made at another endpoint; no call for them goes to this one, unless the plugin's \
             sameBackendAs lists theirs (the last one was {former})"
        )
    }))
}
