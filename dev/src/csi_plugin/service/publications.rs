//! Publishing volumes to nodes, and unpublishing them.

use std::collections::BTreeMap;

use tonic::Status;

use super::Plugin;
use super::checks::{broken, capability};
use crate::csi_plugin::backend::Published;
use crate::csi_plugin::wire;
use crate::csi_plugin::wire::volume_capability::access_mode::Mode;

impl Plugin {
    pub(super) fn publish(
        &self,
        request: &wire::ControllerPublishVolumeRequest,
    ) -> Result<wire::ControllerPublishVolumeResponse, Status> {
        let (id, node) = (&request.volume_id, &request.node_id);
        if id.is_empty() || node.is_empty() {
            return Err(Status::invalid_argument("volume_id or node_id is missing"));
        }
        let (_, mode) = capability(request.volume_capability.as_ref())?;
        let volume = self.backend.volume(id).map_err(broken)?;
        let volume = volume.ok_or_else(|| Status::not_found(format!("there is no volume {id}")))?;
        let nodes = self.backend.nodes(id).map_err(broken)?;
        let published = Published {
            read_only: request.readonly,
        };
        match nodes.get(node) {
            Some(found) if *found != published => {
                return Err(Status::already_exists(format!(
                    "{id} is published to {node} with another access"
                )));
            }
            Some(_) => {}
            None => {
                let single = [
                    Mode::SingleNodeWriter,
                    Mode::SingleNodeReaderOnly,
                    Mode::SingleNodeSingleWriter,
                    Mode::SingleNodeMultiWriter,
                ]
                .map(i32::from);
                let single = self.options.single_node || single.contains(&mode);
                if let Some(other) = nodes.keys().next().filter(|_| single) {
                    return Err(Status::failed_precondition(format!(
                        "{id} is published to {other}"
                    )));
                }
                self.backend.publish(id, node, published).map_err(broken)?;
            }
        }
        let path = self.backend.data(id, &volume).display().to_string();
        let mut publish_context = BTreeMap::from([("devicePath".to_owned(), path)]);
        if self.options.large_context > 0 {
            let large = "x".repeat(self.options.large_context);
            publish_context.insert("large".to_owned(), large);
        }
        Ok(wire::ControllerPublishVolumeResponse { publish_context })
    }

    pub(super) fn unpublish(
        &self,
        request: &wire::ControllerUnpublishVolumeRequest,
    ) -> Result<wire::ControllerUnpublishVolumeResponse, Status> {
        let (id, node) = (&request.volume_id, &request.node_id);
        if id.is_empty() {
            return Err(Status::invalid_argument("volume_id is missing"));
        }
        // By the specification, an empty node id means all nodes.
        let nodes = if node.is_empty() {
            self.backend.nodes(id).map_err(broken)?.into_keys().collect()
        } else {
            vec![node.clone()]
        };
        for node in nodes {
            self.backend.unpublish(id, &node).map_err(broken)?;
        }
        Ok(wire::ControllerUnpublishVolumeResponse {})
    }
}
