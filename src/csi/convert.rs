//! Conversion of the answers on the wire. What the specification forbids ends here.

use super::id::{CsiNodeId, Empty, VolumeId};
use super::request::{CreatedVolume, ListedVolume, NodeInfo};
use super::wire;

/// 0, for unknown, if the plugin answers a negative number.
pub fn capacity(bytes: i64) -> i64 {
    bytes.max(0)
}

/// The volume in an answer. `None` if it is missing or its id is empty; the specification allows neither.
pub fn created(volume: Option<wire::Volume>) -> Option<CreatedVolume> {
    let volume = volume?;
    let places = volume.accessible_topology.into_iter();
    Some(CreatedVolume {
        id: VolumeId::new(volume.volume_id).ok()?,
        capacity: capacity(volume.capacity_bytes),
        context: volume.volume_context,
        accessible_from: places.map(|place| place.segments).collect(),
    })
}

/// A volume in a list. `None` if it has no id: no call can name it.
pub fn listed(entry: wire::list_volumes_response::Entry) -> Option<ListedVolume> {
    let volume = created(entry.volume)?;
    let nodes = entry.status.unwrap_or_default().published_node_ids.into_iter();
    Some(ListedVolume {
        id: volume.id,
        capacity: volume.capacity,
        published_to: nodes.filter_map(|node| CsiNodeId::new(node).ok()).collect(),
    })
}

/// The most bytes that a volume could have by an answer to GetCapacity.
pub fn available(answer: &wire::GetCapacityResponse) -> i64 {
    let largest = answer.maximum_volume_size.filter(|largest| *largest > 0);
    let available = capacity(answer.available_capacity);
    largest.map_or(available, |largest| available.min(largest))
}

/// The node in an answer. An error if its id is empty, which the specification does not allow (INV-6).
pub fn node_info(answer: wire::NodeGetInfoResponse) -> Result<NodeInfo, Empty> {
    Ok(NodeInfo {
        id: CsiNodeId::new(answer.node_id)?,
        topology: answer.accessible_topology.unwrap_or_default().segments,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_an_id_is_none() {
        let answer = |id: &str| wire::NodeGetInfoResponse {
            node_id: id.to_owned(),
            ..wire::NodeGetInfoResponse::default()
        };
        assert!(node_info(answer("")).is_err());
        let known = node_info(answer("n1")).unwrap();
        assert_eq!((known.id.as_str(), known.topology.len()), ("n1", 0));
    }

    #[test]
    fn a_capacity_that_cannot_be_is_unknown() {
        assert_eq!((capacity(0), capacity(-5), capacity(7)), (0, 0, 7));
    }

    #[test]
    fn the_capacity_for_a_volume_is_what_is_available_up_to_the_largest_one() {
        for (available, largest, expected) in
            [(7, None, 7), (7, Some(5), 5), (7, Some(0), 7), (-1, Some(5), 0)]
        {
            let answer = wire::GetCapacityResponse {
                available_capacity: available,
                maximum_volume_size: largest,
            };
            assert_eq!(super::available(&answer), expected, "{available} {largest:?}");
        }
    }

    #[test]
    fn an_answer_without_an_id_is_no_volume() {
        assert_eq!(created(None), None);
        assert_eq!(created(Some(wire::Volume::default())), None);
        let entry = wire::list_volumes_response::Entry {
            volume: Some(wire::Volume {
                volume_id: "v".to_owned(),
                ..wire::Volume::default()
            }),
            status: Some(wire::list_volumes_response::VolumeStatus {
                published_node_ids: vec!["n1".to_owned(), String::new()],
            }),
        };
        let listed = listed(entry).unwrap();
        assert_eq!(listed.published_to, [CsiNodeId::new("n1").unwrap()]);
    }
}
