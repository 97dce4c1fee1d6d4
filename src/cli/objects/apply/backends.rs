//! A Plugin that is applied with another endpoint leaves the volumes behind that were made at the former one.

use super::input::Manifest;
use crate::cli::exit::Failure;
use crate::etcd::KeyValue;
use crate::proto::{Backend, Plugin, Volume};
use crate::store::Store;
use crate::store::object::change::Step;
use crate::store::object::{Object, decode, plugin, volume};

/// Warnings about the volumes for which the leader calls the plugin no more, and those for which it calls a backend that may
/// be another, if there are any. A plugin that tells the identity of its backend is trusted to tell the same at its new
/// endpoint: what it tells is seen by the leader alone.
///
/// # Errors
/// 1 if etcd did not answer.
pub async fn left_behind(
    store: &Store,
    manifest: &Manifest,
    stored: Option<&KeyValue>,
    step: &Step,
) -> Result<Vec<String>, Failure> {
    let (Step::Configure(after), Some(stored)) = (step, stored) else {
        return Ok(Vec::new());
    };
    if manifest.kind.words.kind != Plugin::KIND {
        return Ok(Vec::new());
    }
    let name = manifest.name.name.as_str();
    let read = |value: &[u8]| decode::<Plugin>(name, value).ok();
    let Some((before, after)) = read(&stored.value).zip(read(after)) else {
        return Ok(Vec::new());
    };
    if plugin::endpoint(&before) == plugin::endpoint(&after) {
        return Ok(Vec::new());
    }
    let (volumes, _) = store.etcd.list(&store.keys.volumes()).await?;
    let former = plugin::endpoint(&before);
    let by_then = Backend {
        endpoint: former.to_owned(),
        ..Backend::default()
    };
    let (mut left_behind, mut unknown) = (0, 0);
    for kv in volumes {
        let id = store.keys.parse_volume(&kv.key).unwrap_or_default();
        let Ok(volume) = decode::<Volume>(id, &kv.value) else {
            continue;
        };
        let status = volume.status.clone().unwrap_or_default();
        let is_there = volume::may_exist(&volume);
        // The record of a volume that an earlier release made names no backend until the leader adds it.
        let made_at = status.backend.as_ref();
        let count = if made_at.is_some() {
            &mut left_behind
        } else {
            &mut unknown
        };
        let tells = made_at.is_some_and(|backend| !backend.id.is_empty());
        let is_same = tells || plugin::is_backend_of(&after, "", Some(made_at.unwrap_or(&by_then)));
        *count += u64::from(volume::driver(&volume) == name && is_there && !is_same);
    }
    let were = |count: u64| match count {
        1 => "1 volume was".to_owned(),
        many => format!("{many} volumes were"),
    };
    let mut warnings = Vec::new();
    if left_behind > 0 {
        warnings.push(format!(
            "plugin/{name}: {} made at another endpoint; no call for them goes to this one, unless the plugin's \
             sameBackendAs lists theirs (the last one was {former})",
            were(left_behind)
        ));
    }
    if unknown > 0 {
        warnings.push(format!(
            "plugin/{name}: {} made by an earlier release, and their records do not say where; calls for them go to this \
             endpoint: set it back to {former} at once if it is another backend",
            were(unknown)
        ));
    }
    Ok(warnings)
}
