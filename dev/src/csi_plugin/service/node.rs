//! The Node service: every call goes through the log and the faults, then to the paths of this machine.

use std::io;
use std::path::{Path, PathBuf};

use tonic::{Request, Response, Status};

use super::Plugin;
use super::checks::{broken, capability, ends, wire_bytes};
use crate::csi_plugin::node::{Data, Node as Paths};
use crate::csi_plugin::options::NodeOptions;
use crate::csi_plugin::wire;
use crate::csi_plugin::wire::node_server::Node;
use crate::csi_plugin::wire::node_service_capability::Rpc;
use crate::csi_plugin::wire::node_service_capability::Type as NodeType;
use crate::csi_plugin::wire::node_service_capability::rpc::Type as RpcType;
use quorate::csi::Method;

#[tonic::async_trait]
impl Node for Plugin {
    async fn node_stage_volume(
        &self,
        request: Request<wire::NodeStageVolumeRequest>,
    ) -> Result<Response<wire::NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let (method, node) = (Method::NodeStageVolume, self.node_id());
        self.serve(method, &request.volume_id, node, Some(&request.secrets), || {
            self.stage(&request)
        })
        .await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<wire::NodeUnstageVolumeRequest>,
    ) -> Result<Response<wire::NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let (method, node) = (Method::NodeUnstageVolume, self.node_id());
        self.serve(method, &request.volume_id, node, None, || {
            let staging = absolute(&request.staging_target_path, "staging_target_path")?;
            self.paths()?.unstage(&staging).map_err(failed)?;
            Ok(wire::NodeUnstageVolumeResponse {})
        })
        .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<wire::NodePublishVolumeRequest>,
    ) -> Result<Response<wire::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let (method, node) = (Method::NodePublishVolume, self.node_id());
        self.serve(method, &request.volume_id, node, Some(&request.secrets), || {
            self.publish_on_node(&request)
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<wire::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<wire::NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let (method, node) = (Method::NodeUnpublishVolume, self.node_id());
        self.serve(method, &request.volume_id, node, None, || {
            let target = absolute(&request.target_path, "target_path")?;
            self.paths()?.unpublish(&target).map_err(failed)?;
            Ok(wire::NodeUnpublishVolumeResponse {})
        })
        .await
    }

    async fn node_expand_volume(
        &self,
        request: Request<wire::NodeExpandVolumeRequest>,
    ) -> Result<Response<wire::NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let (method, node) = (Method::NodeExpandVolume, self.node_id());
        self.serve(method, &request.volume_id, node, Some(&request.secrets), || {
            self.expand_on_node(&request)
        })
        .await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<wire::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<wire::NodeGetCapabilitiesResponse>, Status> {
        self.serve(Method::NodeGetCapabilities, "", None, None, || {
            Ok(wire::NodeGetCapabilitiesResponse {
                capabilities: self.node_capabilities()?,
            })
        })
        .await
    }

    async fn node_get_info(
        &self,
        _: Request<wire::NodeGetInfoRequest>,
    ) -> Result<Response<wire::NodeGetInfoResponse>, Status> {
        self.serve(Method::NodeGetInfo, "", None, None, || {
            let node = self.node()?;
            let topology = Some(wire::Topology {
                segments: node.topology.clone(),
            });
            Ok(wire::NodeGetInfoResponse {
                node_id: node.id.clone(),
                max_volumes_per_node: 0,
                accessible_topology: topology.filter(|topology| !topology.segments.is_empty()),
            })
        })
        .await
    }
}

impl Plugin {
    fn node(&self) -> Result<&NodeOptions, Status> {
        // Without it, the service is not served.
        let node = self.options.node.as_ref();
        node.ok_or_else(|| Status::unimplemented("there is no Node service"))
    }

    fn node_id(&self) -> Option<&str> {
        self.options.node.as_ref().map(|node| node.id.as_str())
    }

    fn paths(&self) -> Result<Paths, Status> {
        Ok(match self.node()?.mounts {
            true => Paths::Mounts,
            false => Paths::Links,
        })
    }

    fn stage(&self, request: &wire::NodeStageVolumeRequest) -> Result<wire::NodeStageVolumeResponse, Status> {
        let staging = absolute(&request.staging_target_path, "staging_target_path")?;
        if !staging.is_dir() {
            return Err(Status::failed_precondition("the staging directory is missing"));
        }
        let data = self.data(&request.volume_id, request.volume_capability.as_ref())?;
        self.paths()?.stage(&data, &staging).map_err(failed)?;
        Ok(wire::NodeStageVolumeResponse {})
    }

    fn publish_on_node(
        &self,
        request: &wire::NodePublishVolumeRequest,
    ) -> Result<wire::NodePublishVolumeResponse, Status> {
        let target = absolute(&request.target_path, "target_path")?;
        if !target.parent().is_some_and(Path::is_dir) {
            return Err(Status::failed_precondition("the parent of the target is missing"));
        }
        let data = self.data(&request.volume_id, request.volume_capability.as_ref())?;
        let (node, paths) = (self.node()?, self.paths()?);
        let staging = match node.stages {
            true => Some(absolute(&request.staging_target_path, "staging_target_path")?),
            false => None,
        };
        if let Some(staging) = &staging
            && !paths.is_staged(&data, staging).map_err(failed)?
        {
            return Err(Status::failed_precondition("the volume is not staged"));
        }
        let published = paths.publish(&data, staging.as_deref(), &target, request.readonly);
        published.map_err(failed)?;
        Ok(wire::NodePublishVolumeResponse {})
    }

    fn expand_on_node(
        &self,
        request: &wire::NodeExpandVolumeRequest,
    ) -> Result<wire::NodeExpandVolumeResponse, Status> {
        let id = &request.volume_id;
        absolute(&request.volume_path, "volume_path")?;
        let (least, _) = ends(request.capacity_range.as_ref())?;
        let volume = self.backend.volume(id).map_err(broken)?;
        let volume = volume.ok_or_else(|| Status::not_found(format!("there is no volume {id}")))?;
        if least > volume.capacity {
            return Err(Status::out_of_range(format!("{id} is smaller than that")));
        }
        Ok(wire::NodeExpandVolumeResponse {
            capacity_bytes: wire_bytes(volume.capacity),
        })
    }

    /// The data of a volume that is published to this node.
    fn data(&self, id: &str, asked: Option<&wire::VolumeCapability>) -> Result<Data, Status> {
        let (block, _) = capability(asked)?;
        let volume = self.backend.volume(id).map_err(broken)?;
        let volume = volume.ok_or_else(|| Status::not_found(format!("there is no volume {id}")))?;
        if volume.block != block {
            return Err(Status::invalid_argument(format!(
                "{id} was created for another use"
            )));
        }
        let node = self.node_id().unwrap_or_default();
        if self.options.offers.publish && !self.backend.nodes(id).map_err(broken)?.contains_key(node) {
            return Err(Status::failed_precondition(format!(
                "{id} is not published to {node}"
            )));
        }
        Ok(Data {
            path: self.backend.data(id, &volume),
            block,
        })
    }

    fn node_capabilities(&self) -> Result<Vec<wire::NodeServiceCapability>, Status> {
        let node = self.node()?;
        let all = [
            (node.stages, RpcType::StageUnstageVolume),
            (node.expands, RpcType::ExpandVolume),
            (
                self.options.offers.exact_access_modes,
                RpcType::SingleNodeMultiWriter,
            ),
        ];
        let offered = all.into_iter().filter(|(offered, _)| *offered);
        let offered = offered.map(|(_, r#type)| wire::NodeServiceCapability {
            r#type: Some(NodeType::Rpc(Rpc {
                r#type: r#type.into(),
            })),
        });
        Ok(offered.collect())
    }
}

fn absolute(path: &str, field: &str) -> Result<PathBuf, Status> {
    let path = Path::new(path);
    match path.is_absolute() {
        true => Ok(path.to_owned()),
        false => Err(Status::invalid_argument(format!("{field} is no absolute path"))),
    }
}

fn failed(error: io::Error) -> Status {
    Status::internal(format!("on this node: {error}"))
}
