//! The document of a volume.

use serde_json::{Value, json};

use super::{AVAILABILITIES, RECLAIM_POLICIES, SCOPES, SHARINGS, format_bytes, secrets};
use crate::etcd::Revision;
use crate::proto::access_mode::{Block, Kind};
use crate::proto::{AccessMode, Topology, Volume};
use crate::store::object::document::{document, given, present};
use crate::store::object::mark::Marked;
use crate::store::object::words::word;
use crate::store::object::{Object, condition, time};

/// The document of a volume.
pub fn to_document(volume: &Volume, mod_revision: Revision) -> Value {
    let spec = volume.spec.clone().unwrap_or_default();
    let driver = spec.driver.clone().unwrap_or_default();
    let entries = spec.secrets.iter();
    let secrets: Vec<Value> = entries.map(secrets::document).collect();
    let bytes = |bytes: i64| given(&bytes).map(|_| format_bytes(bytes));
    let shown = json!({
        "driver": present(json!({"name": driver.name, "options": given(&driver.options)})),
        "accessMode": access_document(&spec.access_mode.clone().unwrap_or_default()),
        "capacity": spec.capacity.map(|capacity| {
            present(json!({"required": bytes(capacity.required), "limit": bytes(capacity.limit)}))
        }),
        "secrets": given(&secrets),
        "topology": spec.topology.as_ref().map(|topology| {
            let (requisite, preferred) = (&topology.requisite, &topology.preferred);
            present(json!({"requisite": topologies(requisite), "preferred": topologies(preferred)}))
        }),
        "group": given(&spec.group),
        "source": spec.source.as_ref().map(|source| {
            present(json!({"volumeID": source.volume_id, "context": given(&source.context)}))
        }),
        "reclaimPolicy": given(&word(RECLAIM_POLICIES, &spec.reclaim_policy())),
        "availability": given(&word(AVAILABILITIES, &spec.availability())),
    });
    let parts = json!({"spec": present(shown), "status": status_document(volume)});
    document(Volume::KIND, volume.metadata.as_ref(), mod_revision, parts)
}

fn access_document(mode: &AccessMode) -> Value {
    let (mount, block) = match &mode.kind {
        Some(Kind::Mount(mount)) => {
            let (fs_type, flags) = (given(&mount.fs_type), given(&mount.mount_flags));
            (
                Some(present(json!({"fsType": fs_type, "mountFlags": flags}))),
                None,
            )
        }
        Some(Kind::Block(Block {})) => (None, Some(json!({}))),
        None => (None, None),
    };
    present(json!({
        "scope": word(SCOPES, &mode.scope()), "sharing": word(SHARINGS, &mode.sharing()),
        "mount": mount, "block": block,
    }))
}

fn status_document(volume: &Volume) -> Value {
    let status = volume.status.clone().unwrap_or_default();
    present(json!({
        "volumeID": status.volume_id,
        "backend": status.backend.map(|backend| {
            present(json!({"endpoint": backend.endpoint, "id": given(&backend.id)}))
        }),
        "capacityBytes": status.capacity_bytes,
        "createAttempted": status.create.is_some(),
        "static": given(&status.r#static),
        "context": given(&status.context),
        "topology": topologies(&status.topology),
        "nodeExpansionBytes": given(&status.node_expansion_bytes),
        "detachNodeIDs": given(&status.detach_node_ids),
        "deleting": volume.is_marked(),
        "deletingSince": time::document(volume.mark()),
        "deleteAttempted": given(&status.delete_attempted),
        "conditions": condition::documents(&status.conditions),
    }))
}

fn topologies(list: &[Topology]) -> Option<Value> {
    (!list.is_empty()).then(|| list.iter().map(|topology| json!(topology.segments)).collect())
}
