//! The plugin itself: what it answers to each call.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::time::sleep;
use tonic::{Code, Request, Response, Status};

use super::backend::{Backend, Published, Volume, id_of};
use super::control::Order;
use super::faults::{About, Faults, Happening};
use super::log::{Begun, Log};
use super::server::Options;
use crate::csi::Method;
use crate::csi::wire::controller_server::Controller;
use crate::csi::wire::controller_service_capability::Rpc;
use crate::csi::wire::controller_service_capability::Type as ControllerType;
use crate::csi::wire::controller_service_capability::rpc::Type as RpcType;
use crate::csi::wire::identity_server::Identity;
use crate::csi::wire::plugin_capability::service::Type as ServiceType;
use crate::csi::wire::plugin_capability::volume_expansion::Type as ExpansionType;
use crate::csi::wire::plugin_capability::{Service, Type as PluginType, VolumeExpansion};
use crate::csi::wire::volume_capability::AccessType;
use crate::csi::wire::volume_capability::access_mode::Mode;
use crate::csi::wire::{self, PluginCapability};

/// What a volume gets where nobody says how large it is to be.
const USUAL_CAPACITY: u64 = 1 << 30;

/// What this backend can do at most.
const MOST_CAPACITY: u64 = 1 << 40;

/// Volumes in a page of the list, whoever asks for more.
const PAGE: usize = 1_000;

type Keyed = BTreeMap<String, String>;

/// A running plugin.
#[derive(Debug)]
pub(super) struct Plugin {
    options: Options,
    backend: Backend,
    log: Log,
    faults: Faults,
    ready: AtomicBool,
    expected: Mutex<Keyed>,
    /// Volumes that a call is about now: another one is turned away, as real plugins do.
    busy: Mutex<BTreeSet<String>>,
}

impl Plugin {
    pub fn open(options: Options) -> io::Result<Self> {
        Ok(Self {
            backend: Backend::open(&options.backend)?,
            log: Log::open(&options.log)?,
            faults: Faults::default(),
            ready: AtomicBool::new(!options.not_ready),
            expected: Mutex::default(),
            busy: Mutex::default(),
            options,
        })
    }

    /// Does what it is told over the control socket.
    pub fn obey(&self, order: Order) -> Result<(), String> {
        match order {
            Order::Fault(fault) => {
                fault.check()?;
                self.faults.add(fault);
            }
            Order::Clear => self.faults.clear(),
            Order::Ready(ready) => self.ready.store(ready, Ordering::Relaxed),
            Order::ExpectSecrets(secrets) => {
                *self.expected.lock().unwrap_or_else(PoisonError::into_inner) = secrets;
            }
            Order::Attach { volume, node } => {
                let published = Published { read_only: false };
                let done = self.backend.publish(&volume, &node, published);
                done.map_err(|error| error.to_string())?;
            }
            Order::Detach { volume, node } => {
                let done = self.backend.unpublish(&volume, &node);
                done.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// One call: written down, under the faults in force.
    async fn serve<T>(
        &self,
        method: Method,
        volume: &str,
        node: Option<&str>,
        secrets: Option<&Keyed>,
        act: impl FnOnce() -> Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        let no_secrets = Keyed::new();
        let keys = secrets.unwrap_or(&no_secrets).keys().cloned().collect();
        let entry = self.log.begin(Begun {
            method: method.name().to_owned(),
            volume: volume.to_owned(),
            node: node.map(str::to_owned),
            secrets: keys,
        });
        let about = About {
            method: method.name(),
            volume,
            node,
        };
        let result = self.under_faults(about, secrets, act).await;
        entry.end(result.as_ref().map_or_else(Status::code, |_| Code::Ok));
        result.map(Response::new)
    }

    async fn under_faults<T>(
        &self,
        about: About<'_>,
        secrets: Option<&Keyed>,
        act: impl FnOnce() -> Result<T, Status>,
    ) -> Result<T, Status> {
        let _busy = self.take(about.volume)?;
        let no_secrets = Keyed::new();
        let given = secrets.unwrap_or(&no_secrets);
        let (delay, happens) = self.faults.strike(about);
        if !about.volume.is_empty() {
            sleep(self.options.latency).await;
        }
        sleep(delay).await;
        match &happens {
            Some(Happening::Fails(answer)) => return Err(answer.status(given)),
            Some(Happening::Hangs) => pending().await,
            Some(Happening::Crashes) => std::process::abort(),
            _ => {}
        }
        if secrets.is_some() {
            self.check_secrets(given)?;
        }
        let result = act();
        match &happens {
            Some(Happening::FailsAfter(answer)) => Err(answer.status(given)),
            Some(Happening::LosesReply) => pending().await,
            Some(Happening::CrashesAfter) => std::process::abort(),
            _ => result,
        }
    }

    fn take<'a>(&'a self, volume: &'a str) -> Result<Option<Busy<'a>>, Status> {
        if volume.is_empty() {
            return Ok(None);
        }
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if busy.insert(volume.to_owned()) {
            Ok(Some(Busy { plugin: self, volume }))
        } else {
            Err(Status::aborted("another call for this volume is under way"))
        }
    }

    /// Says what it was given, as careless plugins do.
    fn check_secrets(&self, given: &Keyed) -> Result<(), Status> {
        let expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, value) in expected.iter() {
            match given.get(key) {
                None => return Err(Status::unauthenticated(format!("the secret {key} is missing"))),
                Some(other) if other != value => {
                    return Err(Status::unauthenticated(format!(
                        "the backend refused {key} {other:?}"
                    )));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn create(&self, request: &wire::CreateVolumeRequest) -> Result<wire::CreateVolumeResponse, Status> {
        if request.name.is_empty() {
            return Err(Status::invalid_argument("name is missing"));
        }
        let (block, mode) = capability(request.volume_capabilities.first())?;
        let id = id_of(&request.name);
        let (least, most) = ends(request.capacity_range.as_ref())?;
        if let Some(found) = self.backend.volume(&id).map_err(broken)? {
            let same = found.parameters == request.parameters && found.block == block && found.mode == mode;
            if !same || found.capacity < least || found.capacity > most {
                return Err(Status::already_exists(format!(
                    "{id} is there with other properties"
                )));
            }
            return Ok(self.created(&id, found));
        }
        let capacity = if least == 0 {
            USUAL_CAPACITY.min(most)
        } else {
            least
        };
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

    /// The first place asked for that this plugin serves.
    fn place(&self, wanted: Option<&wire::TopologyRequirement>) -> Result<Option<Keyed>, Status> {
        let places = &self.options.places;
        let Some(wanted) = wanted else {
            return Ok(places.first().cloned());
        };
        let mut asked = wanted.preferred.iter().chain(&wanted.requisite);
        match asked.find(|topology| places.contains(&topology.segments)) {
            Some(topology) => Ok(Some(topology.segments.clone())),
            None => Err(Status::resource_exhausted(
                "no place that was asked for is served here",
            )),
        }
    }

    fn delete(&self, id: &str) -> Result<wire::DeleteVolumeResponse, Status> {
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

    fn publish(
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
                    "{id} is published to {node} in another way"
                )));
            }
            Some(_) => {}
            None => {
                let single = [Mode::SingleNodeWriter, Mode::SingleNodeReaderOnly].map(i32::from);
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
        Ok(wire::ControllerPublishVolumeResponse {
            publish_context: BTreeMap::from([("devicePath".to_owned(), path)]),
        })
    }

    fn unpublish(
        &self,
        request: &wire::ControllerUnpublishVolumeRequest,
    ) -> Result<wire::ControllerUnpublishVolumeResponse, Status> {
        let (id, node) = (&request.volume_id, &request.node_id);
        if id.is_empty() {
            return Err(Status::invalid_argument("volume_id is missing"));
        }
        // As the specification has it: from no node in particular is from all of them.
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

    fn expand(
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

    /// In the order of the ids; the token is the last id of the page before.
    fn list(&self, request: &wire::ListVolumesRequest) -> Result<wire::ListVolumesResponse, Status> {
        let ids = self.backend.ids().map_err(broken)?;
        let after = &request.starting_token;
        if !after.is_empty() && !ids.contains(after) {
            return Err(Status::aborted(format!(
                "{after} is not there any more: begin again"
            )));
        }
        let wanted = usize::try_from(request.max_entries).unwrap_or(0);
        let page = if wanted == 0 { PAGE } else { wanted.min(PAGE) };
        let mut rest = ids.into_iter().filter(|id| id > after);
        let mut answer = wire::ListVolumesResponse::default();
        let mut last = String::new();
        for id in rest.by_ref().take(page) {
            // One that went meanwhile is not in the list.
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

    fn controller_capabilities(&self) -> Vec<wire::ControllerServiceCapability> {
        let offers = &self.options.offers;
        let all = [
            (offers.create, RpcType::CreateDeleteVolume),
            (offers.publish, RpcType::PublishUnpublishVolume),
            (offers.publish, RpcType::PublishReadonly),
            (offers.expand, RpcType::ExpandVolume),
            (offers.list || offers.list_nodes, RpcType::ListVolumes),
            (offers.list_nodes, RpcType::ListVolumesPublishedNodes),
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

/// A volume that a call is about, until it goes.
struct Busy<'a> {
    plugin: &'a Plugin,
    volume: &'a str,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut busy = self.plugin.busy.lock().unwrap_or_else(PoisonError::into_inner);
        busy.remove(self.volume);
    }
}

/// Whether a block device is asked for, and the number of the access mode.
fn capability(capability: Option<&wire::VolumeCapability>) -> Result<(bool, i32), Status> {
    let missing = || Status::invalid_argument("a volume capability is missing");
    let capability = capability.ok_or_else(missing)?;
    let access = capability.access_type.as_ref().ok_or_else(missing)?;
    let mode = capability.access_mode.as_ref().map_or(0, |mode| mode.mode);
    if mode == i32::from(Mode::Unknown) {
        return Err(missing());
    }
    Ok((matches!(access, AccessType::Block(_)), mode))
}

/// Least and most, in bytes.
fn ends(range: Option<&wire::CapacityRange>) -> Result<(u64, u64), Status> {
    let range = range.copied().unwrap_or_default();
    let negative = || Status::invalid_argument("a capacity cannot be negative");
    let least = u64::try_from(range.required_bytes).map_err(|_| negative())?;
    let most = u64::try_from(range.limit_bytes).map_err(|_| negative())?;
    let most = if most == 0 {
        MOST_CAPACITY
    } else {
        most.min(MOST_CAPACITY)
    };
    if least > most {
        return Err(Status::out_of_range(format!(
            "{least} bytes are more than {most}"
        )));
    }
    Ok((least, most))
}

fn wire_bytes(bytes: u64) -> i64 {
    // At most MOST_CAPACITY.
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn broken(error: io::Error) -> Status {
    Status::internal(format!("the backend's directory: {error}"))
}

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
                manifest: BTreeMap::new(),
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

#[tonic::async_trait]
impl Controller for Plugin {
    async fn create_volume(
        &self,
        request: Request<wire::CreateVolumeRequest>,
    ) -> Result<Response<wire::CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = id_of(&request.name);
        self.serve(Method::CreateVolume, &id, None, Some(&request.secrets), || {
            self.create(&request)
        })
        .await
    }

    async fn delete_volume(
        &self,
        request: Request<wire::DeleteVolumeRequest>,
    ) -> Result<Response<wire::DeleteVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = &request.volume_id;
        self.serve(Method::DeleteVolume, id, None, Some(&request.secrets), || {
            self.delete(id)
        })
        .await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<wire::ControllerPublishVolumeRequest>,
    ) -> Result<Response<wire::ControllerPublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let (method, node) = (Method::ControllerPublishVolume, Some(request.node_id.as_str()));
        self.serve(method, &request.volume_id, node, Some(&request.secrets), || {
            self.publish(&request)
        })
        .await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<wire::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<wire::ControllerUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let (method, node) = (Method::ControllerUnpublishVolume, Some(request.node_id.as_str()));
        self.serve(method, &request.volume_id, node, Some(&request.secrets), || {
            self.unpublish(&request)
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
        let request = request.into_inner();
        let method = Method::ControllerExpandVolume;
        self.serve(method, &request.volume_id, None, Some(&request.secrets), || {
            self.expand(&request)
        })
        .await
    }
}
