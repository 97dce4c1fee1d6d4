//! The Controller service: every call goes through the log and the faults, then to the backend.

use tonic::{Request, Response, Status};

use super::checks::wire_bytes;
use super::{Plugin, caller};
use crate::csi_plugin::backend::id_of;
use crate::csi_plugin::wire;
use crate::csi_plugin::wire::controller_server::Controller;
use crate::csi_plugin::wire::controller_service_capability::Rpc;
use crate::csi_plugin::wire::controller_service_capability::Type as ControllerType;
use crate::csi_plugin::wire::controller_service_capability::rpc::Type as RpcType;
use quorate::csi::Method;

#[tonic::async_trait]
impl Controller for Plugin {
    async fn create_volume(
        &self,
        request: Request<wire::CreateVolumeRequest>,
    ) -> Result<Response<wire::CreateVolumeResponse>, Status> {
        let (caller, request) = (caller(&request), request.into_inner());
        let id = id_of(&request.name);
        self.serve_for(
            caller,
            Method::CreateVolume,
            &id,
            None,
            Some(&request.secrets),
            || self.create(&request),
        )
        .await
    }

    async fn delete_volume(
        &self,
        request: Request<wire::DeleteVolumeRequest>,
    ) -> Result<Response<wire::DeleteVolumeResponse>, Status> {
        let (caller, request) = (caller(&request), request.into_inner());
        let id = &request.volume_id;
        self.serve_for(
            caller,
            Method::DeleteVolume,
            id,
            None,
            Some(&request.secrets),
            || self.delete(id),
        )
        .await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<wire::ControllerPublishVolumeRequest>,
    ) -> Result<Response<wire::ControllerPublishVolumeResponse>, Status> {
        let (caller, request) = (caller(&request), request.into_inner());
        let (method, node) = (Method::ControllerPublishVolume, Some(request.node_id.as_str()));
        self.serve_for(
            caller,
            method,
            &request.volume_id,
            node,
            Some(&request.secrets),
            || self.publish(&request),
        )
        .await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<wire::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<wire::ControllerUnpublishVolumeResponse>, Status> {
        let (caller, request) = (caller(&request), request.into_inner());
        let (method, node) = (Method::ControllerUnpublishVolume, Some(request.node_id.as_str()));
        self.serve_for(
            caller,
            method,
            &request.volume_id,
            node,
            Some(&request.secrets),
            || self.unpublish(&request),
        )
        .await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<wire::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<wire::ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        let method = Method::ValidateVolumeCapabilities;
        self.serve(method, &request.volume_id, None, Some(&request.secrets), || {
            self.validate(&request)
        })
        .await
    }

    async fn list_volumes(
        &self,
        request: Request<wire::ListVolumesRequest>,
    ) -> Result<Response<wire::ListVolumesResponse>, Status> {
        let request = request.into_inner();
        self.serve(Method::ListVolumes, "", None, None, || self.list(&request))
            .await
    }

    async fn get_capacity(
        &self,
        _: Request<wire::GetCapacityRequest>,
    ) -> Result<Response<wire::GetCapacityResponse>, Status> {
        self.serve(Method::GetCapacity, "", None, None, || {
            Ok(wire::GetCapacityResponse {
                available_capacity: wire_bytes(self.room()?),
                maximum_volume_size: None,
            })
        })
        .await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<wire::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<wire::ControllerGetCapabilitiesResponse>, Status> {
        self.serve(Method::ControllerGetCapabilities, "", None, None, || {
            Ok(wire::ControllerGetCapabilitiesResponse {
                capabilities: self.controller_capabilities(),
            })
        })
        .await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<wire::ControllerExpandVolumeRequest>,
    ) -> Result<Response<wire::ControllerExpandVolumeResponse>, Status> {
        let (caller, request) = (caller(&request), request.into_inner());
        let method = Method::ControllerExpandVolume;
        self.serve_for(
            caller,
            method,
            &request.volume_id,
            None,
            Some(&request.secrets),
            || self.expand(&request),
        )
        .await
    }
}

impl Plugin {
    fn controller_capabilities(&self) -> Vec<wire::ControllerServiceCapability> {
        let offers = &self.options.offers;
        let all = [
            (offers.create, RpcType::CreateDeleteVolume),
            (offers.publish, RpcType::PublishUnpublishVolume),
            (offers.publish, RpcType::PublishReadonly),
            (offers.exact_access_modes, RpcType::SingleNodeMultiWriter),
            (offers.expand, RpcType::ExpandVolume),
            (offers.list || offers.list_nodes, RpcType::ListVolumes),
            (offers.list_nodes, RpcType::ListVolumesPublishedNodes),
            (self.options.room.is_some(), RpcType::GetCapacity),
        ];
        let offered = all.into_iter().filter(|(offered, _)| *offered);
        offered
            .map(|(_, r#type)| wire::ControllerServiceCapability {
                r#type: Some(ControllerType::Rpc(Rpc {
                    r#type: r#type.into(),
                })),
            })
            .collect()
    }
}
