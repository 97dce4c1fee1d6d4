//! Creating, finding, expanding, listing and deleting volumes.

use std::collections::BTreeMap;

use tonic::Status;

use super::checks::{broken, capability, ends, wire_bytes};
use super::{Keyed, Plugin};
use crate::csi_plugin::backend::{Volume, id_of};
use crate::csi_plugin::wire;

/// The capacity of a volume whose request names none, in bytes.
const USUAL_CAPACITY: u64 = 1 << 30;

/// The most volumes in a page of the list.
const PAGE: usize = 1_000;

impl Plugin {
    pub(super) fn create(
        &self,
        request: &wire::CreateVolumeRequest,
    ) -> Result<wire::CreateVolumeResponse, Status> {
        if request.name.is_empty() {
            return Err(Status::invalid_argument("name is missing"));
        }
        let (block, mode) = capability(request.volume_capabilities.first())?;
        let id = id_of(&request.name);
        let (least, most) = ends(request.capacity_range.as_ref())?;
        if let Some(found) = self.backend.volume(&id).map_err(broken)? {
            let same = found.parameters == request.parameters && found.block == block && found.mode == mode;
            let fits = self.options.capacity.is_some() || (least..=most).contains(&found.capacity);
            if !same || !fits {
                return Err(Status::already_exists(format!(
                    "{id} exists with other properties"
                )));
            }
            return Ok(self.created(&id, found));
        }
        let usual = if least == 0 {
            USUAL_CAPACITY.min(most)
        } else {
            least
        };
        let capacity = self.options.capacity.unwrap_or(usual);
        if capacity > self.room()? {
            return Err(Status::resource_exhausted("there is no room for it"));
        }
        let volume = Volume {
            name: request.name.clone(),
            capacity,
            block,
            mode,
            parameters: request.parameters.clone(),
            place: self.place(request.accessibility_requirements.as_ref())?,
        };
        self.backend.create(&id, &volume).map_err(broken)?;
        Ok(self.created(&id, volume))
    }

    /// The bytes that no volume has.
    pub(super) fn room(&self) -> Result<u64, Status> {
        let Some(mut room) = self.options.room else {
            return Ok(i64::MAX.unsigned_abs());
        };
        for id in self.backend.ids().map_err(broken)? {
            let volume = self.backend.volume(&id).map_err(broken)?;
            room = room.saturating_sub(volume.map_or(0, |volume| volume.capacity));
        }
        Ok(room)
    }

    fn created(&self, id: &str, volume: Volume) -> wire::CreateVolumeResponse {
        wire::CreateVolumeResponse {
            volume: Some(self.described(id, volume)),
        }
    }

    fn described(&self, id: &str, volume: Volume) -> wire::Volume {
        let path = self.backend.data(id, &volume).display().to_string();
        let place = volume.place.map(|segments| wire::Topology { segments });
        wire::Volume {
            capacity_bytes: wire_bytes(volume.capacity),
            volume_id: id.to_owned(),
            volume_context: BTreeMap::from([("path".to_owned(), path)]),
            accessible_topology: place.into_iter().collect(),
        }
    }

    /// The first requested topology that this plugin serves.
    fn place(&self, wanted: Option<&wire::TopologyRequirement>) -> Result<Option<Keyed>, Status> {
        let places = &self.options.places;
        let Some(wanted) = wanted else {
            return Ok(places.first().cloned());
        };
        let mut asked = wanted.preferred.iter().chain(&wanted.requisite);
        match asked.find(|topology| places.contains(&topology.segments)) {
            Some(topology) => Ok(Some(topology.segments.clone())),
            None => Err(Status::resource_exhausted(
                "this plugin serves no requested topology",
            )),
        }
    }

    /// A volume can be used in the way that it was created for.
    pub(super) fn validate(
        &self,
        request: &wire::ValidateVolumeCapabilitiesRequest,
    ) -> Result<wire::ValidateVolumeCapabilitiesResponse, Status> {
        let id = &request.volume_id;
        let (block, mode) = capability(request.volume_capabilities.first())?;
        let volume = self.backend.volume(id).map_err(broken)?;
        let volume = volume.ok_or_else(|| Status::not_found(format!("there is no volume {id}")))?;
        let mut answer = wire::ValidateVolumeCapabilitiesResponse::default();
        if (volume.block, volume.mode) == (block, mode) {
            answer.confirmed = Some(wire::validate_volume_capabilities_response::Confirmed {
                volume_capabilities: request.volume_capabilities.clone(),
                ..Default::default()
            });
        } else {
            answer.message = format!("{id} was created for another use");
        }
        Ok(answer)
    }

    pub(super) fn delete(&self, id: &str) -> Result<wire::DeleteVolumeResponse, Status> {
        if id.is_empty() {
            return Err(Status::invalid_argument("volume_id is missing"));
        }
        let nodes = self.backend.nodes(id).map_err(broken)?;
        if let Some(node) = nodes.keys().next() {
            return Err(Status::failed_precondition(format!(
                "{id} is published to {node}"
            )));
        }
        self.backend.delete(id).map_err(broken)?;
        Ok(wire::DeleteVolumeResponse {})
    }

    pub(super) fn expand(
        &self,
        request: &wire::ControllerExpandVolumeRequest,
    ) -> Result<wire::ControllerExpandVolumeResponse, Status> {
        let id = &request.volume_id;
        let (least, most) = ends(request.capacity_range.as_ref())?;
        let volume = self.backend.volume(id).map_err(broken)?;
        let volume = volume.ok_or_else(|| Status::not_found(format!("there is no volume {id}")))?;
        if self.options.offers.expand_offline && !self.backend.nodes(id).map_err(broken)?.is_empty() {
            return Err(Status::failed_precondition(format!("{id} is published")));
        }
        if volume.capacity > most {
            return Err(Status::out_of_range(format!("{id} is larger already")));
        }
        let capacity = volume.capacity.max(least);
        let node_expansion_required = !volume.block;
        if capacity != volume.capacity {
            self.backend.resize(id, volume, capacity).map_err(broken)?;
        }
        Ok(wire::ControllerExpandVolumeResponse {
            capacity_bytes: wire_bytes(capacity),
            node_expansion_required,
        })
    }

    /// A page of the list, sorted by id. The token is the last id of the previous page.
    pub(super) fn list(
        &self,
        request: &wire::ListVolumesRequest,
    ) -> Result<wire::ListVolumesResponse, Status> {
        let ids = self.backend.ids().map_err(broken)?;
        let after = &request.starting_token;
        if !after.is_empty() && !ids.contains(after) {
            return Err(Status::aborted(format!(
                "{after} is deleted: list from the start"
            )));
        }
        let wanted = usize::try_from(request.max_entries).unwrap_or(0);
        let page = if wanted == 0 { PAGE } else { wanted.min(PAGE) };
        let mut rest = ids.into_iter().filter(|id| id > after);
        let mut answer = wire::ListVolumesResponse::default();
        let mut last = String::new();
        for id in rest.by_ref().take(page) {
            // Skips a volume that was deleted meanwhile.
            let Some(volume) = self.backend.volume(&id).map_err(broken)? else {
                continue;
            };
            let status = if self.options.offers.list_nodes {
                let nodes = self.backend.nodes(&id).map_err(broken)?;
                Some(wire::list_volumes_response::VolumeStatus {
                    published_node_ids: nodes.into_keys().collect(),
                })
            } else {
                None
            };
            answer.entries.push(wire::list_volumes_response::Entry {
                volume: Some(self.described(&id, volume)),
                status,
            });
            last = id;
        }
        if rest.next().is_some() {
            answer.next_token = last;
        }
        Ok(answer)
    }
}
