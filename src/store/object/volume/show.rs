//! The document of a volume.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{AVAILABILITIES, SCOPES, SHARINGS, format_bytes, word};
use crate::etcd::Revision;
use crate::proto::access_mode::{Block, Kind};
use crate::proto::{Topology, Volume, VolumeStatus};
use crate::store::object::mark::Marked;
use crate::store::object::{Object, condition, document, time};

/// The document of a volume.
pub fn to_document(volume: &Volume, mod_revision: Revision) -> Value {
    let spec = volume.spec.clone().unwrap_or_default();
    let status = volume.status.clone().unwrap_or_default();
    let mut shown = Map::new();
    let driver = spec.driver.clone().unwrap_or_default();
    let mut driver_shown = json!({"name": driver.name});
    if !driver.options.is_empty() {
        driver_shown["options"] = json!(driver.options);
    }
    shown.insert("driver".to_owned(), driver_shown);
    let mode = spec.access_mode.clone().unwrap_or_default();
    let mut mode_shown =
        json!({"scope": word(SCOPES, mode.scope()), "sharing": word(SHARINGS, mode.sharing())});
    match mode.kind {
        Some(Kind::Mount(mount)) => {
            let mut mount_shown = Map::new();
            if !mount.fs_type.is_empty() {
                mount_shown.insert("fsType".to_owned(), json!(mount.fs_type));
            }
            if !mount.mount_flags.is_empty() {
                mount_shown.insert("mountFlags".to_owned(), json!(mount.mount_flags));
            }
            mode_shown["mount"] = Value::Object(mount_shown);
        }
        Some(Kind::Block(Block {})) => mode_shown["block"] = json!({}),
        None => {}
    }
    shown.insert("accessMode".to_owned(), mode_shown);
    if let Some(capacity) = spec.capacity {
        let bounds = [("required", capacity.required), ("limit", capacity.limit)];
        let bounds = bounds.into_iter().filter(|(_, bytes)| *bytes != 0);
        let bounds: BTreeMap<&str, String> =
            bounds.map(|(name, bytes)| (name, format_bytes(bytes))).collect();
        shown.insert("capacity".to_owned(), json!(bounds));
    }
    if !spec.secrets.is_empty() {
        let secrets = spec.secrets.iter();
        let secrets = secrets.map(|entry| json!({"key": entry.key, "secret": entry.secret}));
        shown.insert("secrets".to_owned(), secrets.collect());
    }
    if let Some(topology) = &spec.topology {
        let lists = [
            ("requisite", &topology.requisite),
            ("preferred", &topology.preferred),
        ];
        let lists = lists.into_iter().filter(|(_, list)| !list.is_empty());
        let lists: BTreeMap<&str, Value> = lists.map(|(name, list)| (name, topologies(list))).collect();
        shown.insert("topology".to_owned(), json!(lists));
    }
    if !spec.group.is_empty() {
        shown.insert("group".to_owned(), json!(spec.group));
    }
    let availability = word(AVAILABILITIES, spec.availability());
    if !availability.is_empty() {
        shown.insert("availability".to_owned(), json!(availability));
    }
    let parts = [("spec", shown), ("status", status_document(volume, &status))];
    let parts = parts
        .into_iter()
        .map(|(name, fields)| (name.to_owned(), Value::Object(fields)));
    document(
        Volume::KIND,
        volume.metadata.as_ref(),
        mod_revision,
        parts.collect(),
    )
}

fn status_document(volume: &Volume, status: &VolumeStatus) -> Map<String, Value> {
    let mut shown = Map::new();
    let mut show = |name: &str, value: Value| shown.insert(name.to_owned(), value);
    show("volumeID", json!(status.volume_id));
    show("capacityBytes", json!(status.capacity_bytes));
    show("createAttempted", json!(status.create.is_some()));
    if status.r#static {
        show("static", json!(true));
    }
    if !status.context.is_empty() {
        show("context", json!(status.context));
    }
    if !status.topology.is_empty() {
        show("topology", topologies(&status.topology));
    }
    show("deleting", json!(volume.is_marked()));
    if let Some(since) = time::from_proto(volume.mark()) {
        show("deletingSince", json!(time::rfc3339(since)));
    }
    if status.delete_attempted {
        show("deleteAttempted", json!(true));
    }
    if !status.conditions.is_empty() {
        show("conditions", condition::documents(&status.conditions));
    }
    shown
}

fn topologies(list: &[Topology]) -> Value {
    list.iter().map(|topology| json!(topology.segments)).collect()
}
