//! The Identity service: name, capabilities, readiness.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use tonic::{Request, Response, Status};

use super::Plugin;
use crate::csi_plugin::wire::identity_server::Identity;
use crate::csi_plugin::wire::plugin_capability::service::Type as ServiceType;
use crate::csi_plugin::wire::plugin_capability::volume_expansion::Type as ExpansionType;
use crate::csi_plugin::wire::plugin_capability::{Service, Type as PluginType, VolumeExpansion};
use crate::csi_plugin::wire::{self, PluginCapability};
use quorate::csi::Method;

/// The entry of the manifest that tells the identity of the backend.
const BACKEND_KEY: &str = "quorate.dev/backend";

#[tonic::async_trait]
impl Identity for Plugin {
    async fn get_plugin_info(
        &self,
        _: Request<wire::GetPluginInfoRequest>,
    ) -> Result<Response<wire::GetPluginInfoResponse>, Status> {
        self.serve(Method::GetPluginInfo, "", None, None, || {
            Ok(wire::GetPluginInfoResponse {
                name: self.options.driver.clone(),
                vendor_version: self.options.version.clone(),
                manifest: self.manifest(),
            })
        })
        .await
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<wire::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<wire::GetPluginCapabilitiesResponse>, Status> {
        self.serve(Method::GetPluginCapabilities, "", None, None, || {
            Ok(wire::GetPluginCapabilitiesResponse {
                capabilities: self.plugin_capabilities(),
            })
        })
        .await
    }

    async fn probe(&self, _: Request<wire::ProbeRequest>) -> Result<Response<wire::ProbeResponse>, Status> {
        self.serve(Method::Probe, "", None, None, || {
            Ok(wire::ProbeResponse {
                ready: Some(self.ready.load(Ordering::Relaxed)),
            })
        })
        .await
    }
}

impl Plugin {
    fn manifest(&self) -> BTreeMap<String, String> {
        let id = self.options.backend_id.iter();
        id.map(|id| (BACKEND_KEY.to_owned(), id.clone())).collect()
    }

    fn plugin_capabilities(&self) -> Vec<PluginCapability> {
        let offers = &self.options.offers;
        let service = |r#type: ServiceType| {
            PluginType::Service(Service {
                r#type: r#type.into(),
            })
        };
        let expansion = |r#type: ExpansionType| {
            PluginType::VolumeExpansion(VolumeExpansion {
                r#type: r#type.into(),
            })
        };
        let all = [
            (offers.controller, service(ServiceType::ControllerService)),
            (
                !self.options.places.is_empty(),
                service(ServiceType::VolumeAccessibilityConstraints),
            ),
            (
                offers.expand && !offers.expand_offline,
                expansion(ExpansionType::Online),
            ),
            (
                offers.expand && offers.expand_offline,
                expansion(ExpansionType::Offline),
            ),
        ];
        let offered = all.into_iter().filter(|(offered, _)| *offered);
        offered
            .map(|(_, r#type)| PluginCapability { r#type: Some(r#type) })
            .collect()
    }
}
