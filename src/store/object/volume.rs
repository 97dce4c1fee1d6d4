//! The Volume kind: its documents, and which of its fields may change.

use prost::Message;
use serde_json::Value;

use super::change::{Appliable, Reference, Rejection};
use super::fields::{Fault, Fields};
use super::mark::Marked;
use super::words::word;
use super::{Object, condition, time};
use crate::proto::access_mode::{Block, Kind, Mount, Scope, Sharing};
use crate::proto::volume_spec::{Availability, Driver, ReclaimPolicy, Source};
use crate::proto::{
    AccessMode, Backend, Capacity, Secret, Topology, TopologyRequirement, Volume, VolumeSecret, VolumeSpec,
    VolumeStatus,
};
use crate::store::keys::Name;

mod place;
pub mod quantity;
mod secrets;
mod show;
mod update;

pub use place::{is_reachable_from, place_text, places_text};
pub use quantity::{format_bytes, parse_bytes};
pub use secrets::{gets, is_for_node};
pub use show::to_document;

const AVAILABILITIES: &[(&str, Availability)] = &[
    ("active", Availability::Active),
    ("pause", Availability::Pause),
    ("drain", Availability::Drain),
];

const RECLAIM_POLICIES: &[(&str, ReclaimPolicy)] = &[
    ("delete", ReclaimPolicy::Delete),
    ("retain", ReclaimPolicy::Retain),
];

const SCOPES: &[(&str, Scope)] = &[("singleNode", Scope::SingleNode), ("multiNode", Scope::MultiNode)];

const SHARINGS: &[(&str, Sharing)] = &[
    ("none", Sharing::None),
    ("readOnly", Sharing::ReadOnly),
    ("oneWriter", Sharing::OneWriter),
    ("all", Sharing::All),
];

/// `active`, `pause` or `drain`.
pub fn availability_word(volume: &Volume) -> &'static str {
    let availability = volume
        .spec
        .as_ref()
        .map_or(Availability::Unspecified, VolumeSpec::availability);
    word(AVAILABILITIES, &availability)
}

/// `singleNode` or `multiNode`, and how it is shared there.
pub fn access_words(volume: &Volume) -> (&'static str, &'static str) {
    let mode = volume.spec.as_ref().and_then(|spec| spec.access_mode.as_ref());
    mode.map_or(("", ""), |mode| {
        (word(SCOPES, &mode.scope()), word(SHARINGS, &mode.sharing()))
    })
}

/// The name of the plugin; empty if there is none.
pub fn driver(volume: &Volume) -> &str {
    let driver = volume.spec.as_ref().and_then(|spec| spec.driver.as_ref());
    driver.map_or("", |driver| driver.name.as_str())
}

/// The capacity asked for.
pub fn capacity(volume: &Volume) -> Capacity {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity);
    capacity.unwrap_or_default()
}

/// The least capacity asked for.
pub fn required_bytes(volume: &Volume) -> i64 {
    capacity(volume).required
}

/// The condition of a volume that is larger than what its nodes see of it.
pub const NODE_EXPANSION_PENDING: &str = "NodeExpansionPending";

/// The plugin's id of the volume: its own, or that of the volume that it takes in. Empty if it has none yet.
pub fn backend_id(volume: &Volume) -> &str {
    let own = volume.status.as_ref().map_or("", |status| &status.volume_id);
    let source = volume.spec.as_ref().and_then(|spec| spec.source.as_ref());
    match own {
        "" => source.map_or("", |source| &source.volume_id),
        own => own,
    }
}

/// What can be read of a volume's record, also of one that is faulty otherwise; `None` if nothing says which volume it is: then it
/// may be any (INV-12).
pub fn legible(record: &[u8]) -> Option<Volume> {
    Volume::decode(record)
        .ok()
        .filter(|volume| !volume.uid().is_empty())
}

/// The backend that the volume was made at; `None` if its record does not say.
pub fn made_at(volume: &Volume) -> Option<&Backend> {
    volume.status.as_ref()?.backend.as_ref()
}

/// Whether the backend may hold the volume without a known id: its creation was begun, and the plugin did not refuse it.
pub fn is_attempted(volume: &Volume) -> bool {
    let create = volume.status.as_ref().and_then(|status| status.create.as_ref());
    create.is_some_and(|create| !create.refused)
}

/// Whether the backend may hold the volume: it has an id, or its creation was begun.
pub fn may_exist(volume: &Volume) -> bool {
    let status = volume.status.as_ref();
    status.is_some_and(|status| !status.volume_id.is_empty()) || is_attempted(volume)
}

/// Whether the volume exists at the backend and is taken in instead of created.
pub fn is_taken_in(volume: &Volume) -> bool {
    let source = volume.spec.as_ref().and_then(|spec| spec.source.as_ref());
    source.is_some_and(|source| !source.volume_id.is_empty())
}

/// Whether the volume stays at the backend once its record is deleted: the plugin did not create it, or its record says so.
pub fn is_retained(volume: &Volume) -> bool {
    if volume.status.as_ref().is_some_and(|status| status.r#static) {
        return true;
    }
    let policy = volume.spec.as_ref().map(VolumeSpec::reclaim_policy);
    match policy.unwrap_or(ReclaimPolicy::Unspecified) {
        ReclaimPolicy::Delete => false,
        ReclaimPolicy::Retain => true,
        ReclaimPolicy::Unspecified => is_taken_in(volume),
    }
}

impl Object for Volume {
    kind_with_metadata!("Volume");

    fn is_marked(&self) -> bool {
        self.mark().is_some()
    }

    fn check(&self) -> Result<(), Fault> {
        // The uid is the volume's name at the backend, and the name of its tombstone.
        Fault::check_name("metadata.uid", self.uid())?;
        Fault::check_name("spec.driver.name", driver(self))?;
        for (index, secret) in self.spec.iter().flat_map(|spec| &spec.secrets).enumerate() {
            Fault::check_name(format!("spec.secrets[{index}].secret"), &secret.secret)?;
        }
        let mode = self.spec.as_ref().and_then(|spec| spec.access_mode.as_ref());
        match mode {
            Some(AccessMode { kind: Some(_), .. }) => Ok(()),
            _ => Err(Fault::new("spec.accessMode", "neither mount nor block")),
        }
    }
}

/// What a document says about a volume. A field that is left out of it is `None`.
#[derive(Debug, Default)]
pub struct Manifest {
    driver: Option<Driver>,
    access_mode: Option<AccessMode>,
    capacity: Option<Capacity>,
    secrets: Option<Vec<VolumeSecret>>,
    topology: Option<TopologyRequirement>,
    group: Option<String>,
    availability: Option<Availability>,
    source: Option<Source>,
    reclaim_policy: Option<ReclaimPolicy>,
}

impl Appliable for Volume {
    type Manifest = Manifest;

    // After secrets.
    const LAYER: u8 = 1;

    fn references(&self) -> Vec<Reference> {
        let secrets = self.spec.iter().flat_map(|spec| &spec.secrets);
        let mut references: Vec<Reference> = Vec::new();
        for reference in secrets.filter_map(|secret| Reference::to(Secret::KIND, &secret.secret)) {
            if !references.contains(&reference) {
                references.push(reference);
            }
        }
        references
    }

    fn read(document: &mut Fields<'_, '_>) -> Manifest {
        let spec = document.required("spec", |spec| Manifest {
            driver: spec.required("driver", read_driver),
            access_mode: spec.required("accessMode", read_access_mode),
            capacity: spec.object("capacity", read_capacity),
            secrets: secrets::read(spec),
            topology: spec.object("topology", |topology| TopologyRequirement {
                requisite: read_topologies(topology, "requisite"),
                preferred: read_topologies(topology, "preferred"),
            }),
            group: spec.string("group").map(str::to_owned),
            availability: spec.one_of("availability", AVAILABILITIES),
            source: spec.object("source", read_source),
            reclaim_policy: spec.one_of("reclaimPolicy", RECLAIM_POLICIES),
        });
        // Accepted because `get -o yaml` prints it. A document cannot change it.
        document.object("status", |status| {
            status.string("volumeID");
            status.strings("context");
            status.object("backend", |backend| {
                backend.string("endpoint");
                backend.string("id");
            });
            status.integer("capacityBytes");
            status.integer("nodeExpansionBytes");
            status.raw("detachNodeIDs", "a list of strings");
            for flag in ["createAttempted", "deleteAttempted", "static", "deleting"] {
                status.boolean(flag);
            }
            status.parsed("deletingSince", time::parse);
            read_topologies(status, "topology");
            condition::check(status);
        });
        spec.unwrap_or_default()
    }

    fn create(_name: &str, manifest: &Manifest) -> Result<Self, Rejection> {
        // Not of a document that is applied again: a topology cannot be changed any more.
        let faults = manifest.topology.as_ref().map(place::preferred_elsewhere);
        match faults.filter(|faults| !faults.is_empty()) {
            Some(faults) => Err(Rejection::Faulty(faults)),
            None => Ok(Self {
                metadata: None,
                spec: Some(spec_of(manifest)),
                status: Some(VolumeStatus::default()),
            }),
        }
    }

    fn update(&mut self, name: &str, manifest: &Manifest) -> Result<(), Rejection> {
        let stored = self.spec.clone().unwrap_or_default();
        let given = spec_of(manifest);
        let status = self.status.clone().unwrap_or_default();
        let changed = update::changed_for_good(&stored, &status, &given);
        let mut faults = update::left_out(name, &stored, manifest);
        if changed.is_empty() && faults.is_empty() {
            self.spec = Some(given);
            return Ok(());
        }
        if changed.is_empty() {
            return Err(Rejection::Faulty(faults));
        }
        faults.splice(0..0, changed);
        let paths: Vec<String> = faults.iter().map(ToString::to_string).collect();
        Err(Rejection::Refused {
            rule: "Immutable",
            message: format!(
                "of volume {name}, only labels, availability and a larger capacity may change: {}",
                paths.join("; ")
            ),
        })
    }

    fn same_spec(&self, other: &Self) -> bool {
        self.spec == other.spec
    }
}

fn read_source(source: &mut Fields<'_, '_>) -> Source {
    let volume_id = source.string("volumeID").unwrap_or_default().to_owned();
    source.require("volumeID");
    if volume_id.is_empty() && source.value("volumeID").is_some_and(Value::is_string) {
        source.fault("volumeID", "must not be empty");
    }
    Source {
        volume_id,
        context: source.strings("context").unwrap_or_default(),
    }
}

fn read_driver(driver: &mut Fields<'_, '_>) -> Driver {
    let name = driver.parsed("name", str::parse::<Name>);
    driver.require("name");
    Driver {
        name: name.map(|name| name.to_string()).unwrap_or_default(),
        options: driver.strings("options").unwrap_or_default(),
    }
}

fn read_access_mode(mode: &mut Fields<'_, '_>) -> AccessMode {
    let scope = mode.one_of("scope", SCOPES);
    let sharing = mode.one_of("sharing", SHARINGS);
    for name in ["scope", "sharing"] {
        mode.require(name);
    }
    if (scope, sharing) == (Some(Scope::MultiNode), Some(Sharing::None)) {
        let why = "none is no way to share a volume among several nodes: expected readOnly, oneWriter or all";
        mode.fault("sharing", why);
    }
    let mount = mode.object("mount", |mount| Mount {
        fs_type: mount.string("fsType").unwrap_or_default().to_owned(),
        mount_flags: mount
            .distinct("mountFlags", |flag| Ok::<_, String>(flag.to_owned()))
            .unwrap_or_default(),
    });
    let block = mode.object("block", |_| Block {});
    let kind = match (mount, block) {
        (Some(_), Some(_)) => {
            mode.fault(
                "block",
                "a volume is used by mount or as a block device, not both",
            );
            None
        }
        (Some(mount), None) => Some(Kind::Mount(mount)),
        (None, Some(block)) => Some(Kind::Block(block)),
        (None, None) => {
            if mode.value("mount").is_none() && mode.value("block").is_none() {
                mode.fault("mount", "missing: one of mount: {} and block: {} is needed");
            }
            None
        }
    };
    AccessMode {
        scope: scope.unwrap_or(Scope::Unspecified).into(),
        sharing: sharing.unwrap_or(Sharing::Unspecified).into(),
        kind,
    }
}

fn read_capacity(capacity: &mut Fields<'_, '_>) -> Capacity {
    let mut bytes = |name: &'static str| {
        let value = capacity.raw(name, "a number of bytes, or an amount like 10Gi")?;
        match parse_bytes(value) {
            Ok(bytes) => Some(bytes),
            Err(why) => {
                capacity.fault(name, why);
                None
            }
        }
    };
    let read = Capacity {
        required: bytes("required").unwrap_or_default(),
        limit: bytes("limit").unwrap_or_default(),
    };
    if read.limit != 0 && read.limit < read.required {
        capacity.fault("limit", "less than what is required");
    }
    read
}

fn read_topologies(fields: &mut Fields<'_, '_>, name: &'static str) -> Vec<Topology> {
    let maps = fields.string_maps(name).unwrap_or_default();
    maps.into_iter().map(|segments| Topology { segments }).collect()
}

fn spec_of(manifest: &Manifest) -> VolumeSpec {
    VolumeSpec {
        driver: manifest.driver.clone(),
        access_mode: manifest.access_mode.clone(),
        capacity: manifest
            .capacity
            .filter(|capacity| *capacity != Capacity::default()),
        secrets: manifest.secrets.clone().unwrap_or_default(),
        topology: manifest
            .topology
            .clone()
            .filter(|topology| *topology != TopologyRequirement::default()),
        group: manifest.group.clone().unwrap_or_default(),
        availability: manifest.availability.unwrap_or(Availability::Active).into(),
        source: manifest.source.clone(),
        reclaim_policy: manifest
            .reclaim_policy
            .unwrap_or(ReclaimPolicy::Unspecified)
            .into(),
    }
}

#[cfg(test)]
mod tests;
