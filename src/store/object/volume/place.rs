//! Where a volume is, and may be: the topology of CSI.

use std::collections::BTreeMap;

use crate::proto::{Topology, TopologyRequirement, Volume};
use crate::store::object::fields::Fault;

/// Whether a node in this place can reach the volume. A node that reports no place, and a volume whose plugin names none, say
/// nothing against it.
pub fn is_reachable_from(volume: &Volume, place: &BTreeMap<String, String>) -> bool {
    let places = volume.status.as_ref().map_or(&[][..], |status| &status.topology);
    let contains = |wanted: &Topology| {
        let mut segments = wanted.segments.iter();
        segments.all(|(key, value)| place.get(key) == Some(value))
    };
    place.is_empty() || places.is_empty() || places.iter().any(contains)
}

/// The places that can reach the volume, as `zone=a or zone=b`.
pub fn places_text(volume: &Volume) -> String {
    let places = volume.status.as_ref().map_or(&[][..], |status| &status.topology);
    let texts = places.iter().map(|place| place_text(&place.segments));
    texts.collect::<Vec<_>>().join(" or ")
}

/// A place, as `zone=a,rack=1`.
pub fn place_text(place: &BTreeMap<String, String>) -> String {
    let segments = place.iter().map(|(key, value)| format!("{key}={value}"));
    segments.collect::<Vec<_>>().join(",")
}

/// The preferred places that are none of the required ones. CSI demands that each is, exactly as it is written there, wherever any is
/// required; a plugin may refuse anything else, or ignore what it prefers.
pub(super) fn preferred_elsewhere(asked: &TopologyRequirement) -> Vec<Fault> {
    let is_elsewhere = |place: &Topology| !asked.requisite.is_empty() && !asked.requisite.contains(place);
    let preferred = asked.preferred.iter().enumerate();
    let elsewhere = preferred.filter(|(_, place)| is_elsewhere(place));
    let faults = elsewhere.map(|(index, place)| {
        let message = format!(
            "{} is none of the places in requisite: add it there, or leave it out here",
            place_text(&place.segments)
        );
        Fault::new(format!("spec.topology.preferred[{index}]"), message)
    });
    faults.collect()
}
