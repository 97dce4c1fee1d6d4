//! One connection to a plugin whose handshake is done, and the calls on it.

use tonic::Code;
use tonic::transport::Channel;

use super::caller::Caller;
use super::capabilities::{Capabilities, Capability};
use super::class::Method;
use super::convert;
use super::endpoint::Endpoint;
use super::error::{CallError, NotReady, presentable};
use super::handshake;
use super::id::{CsiNodeId, VolumeId};
use super::link::{Link, Opened, done_or};
use super::request::{
    Context, CreateVolume, CreatedVolume, ExpandVolume, ExpandedVolume, ListedVolume, PublishVolume,
    ValidateVolume,
};
use super::secret::Secrets;
use super::wire;
use super::wire::controller_client::ControllerClient;

/// Volumes asked for in one page of a list.
const PAGE: i32 = 500;

/// Pages of one list: five million volumes, if every page is full. A plugin whose list goes on after that is taken for one
/// whose list has no end.
const MOST_PAGES: u32 = 10_000;

/// The largest answer accepted, in bytes: a page of volumes with large contexts.
const LARGEST_ANSWER: usize = 16 << 20;

/// A connection to the Controller service after its handshake. It never connects again: a call reaches the process whose
/// [`capabilities`](Self::capabilities) these are, or fails with `Unavailable`.
#[derive(Debug)]
pub struct Session {
    link: Link,
    capabilities: Capabilities,
}

impl Opened for Session {
    async fn open(caller: Caller) -> Result<Self, NotReady> {
        let link = Link::open(caller).await?;
        let capabilities = handshake::capabilities(&link.caller, &link.connection).await?;
        Ok(Self { link, capabilities })
    }

    fn has_ended(&self) -> bool {
        self.link.has_ended()
    }

    fn version(&self) -> &str {
        &self.link.identity.version
    }

    fn offered(&self) -> Vec<&'static str> {
        self.capabilities.iter().map(Capability::name).collect()
    }
}

impl Session {
    /// What the plugin offers.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Whether the plugin offers this.
    pub fn offers(&self, capability: Capability) -> bool {
        self.capabilities.offers(capability)
    }

    /// The vendor's version of the plugin.
    pub fn version(&self) -> &str {
        &self.link.identity.version
    }

    /// The endpoint of the plugin.
    pub fn endpoint(&self) -> &Endpoint {
        self.link.endpoint()
    }

    /// The identity of the plugin's backend, as the plugin reports it; empty if it reports none.
    pub fn backend(&self) -> &str {
        &self.link.identity.backend
    }

    /// Whether the connection has ended. Every further call then fails.
    pub fn has_ended(&self) -> bool {
        self.link.has_ended()
    }

    /// Asks the plugin whether it still answers, within the limit of a handshake. Without an answer, the session ends: every
    /// further call fails, and the next session begins with a handshake.
    pub async fn probe(&self) {
        self.link.probe().await;
    }

    /// Creates a volume, or finds the one that an earlier call created under the same name.
    ///
    /// # Errors
    /// [`CallError`]; without a call where the plugin does not offer to create volumes, or where the volume asks for a
    /// topology, which the plugin does not offer.
    pub async fn create_volume(
        &self,
        create: &CreateVolume,
        secrets: &Secrets,
    ) -> Result<CreatedVolume, CallError> {
        let method = Method::CreateVolume;
        let mut controller = self.controller(method, Capability::CreateDeleteVolume)?;
        if create.topology.is_some() && !self.offers(Capability::AccessibilityConstraints) {
            let text = "the volume asks for a topology, and the plugin does not offer \
                        VOLUME_ACCESSIBILITY_CONSTRAINTS";
            return Err(CallError::new(method, Code::InvalidArgument, text));
        }
        let request = self.link.caller.request(
            method,
            wire::CreateVolumeRequest {
                name: create.name.as_str().to_owned(),
                capacity_range: create.capacity,
                volume_capabilities: vec![create.capability.clone()],
                parameters: create.parameters.clone(),
                secrets: secrets.to_wire(),
                accessibility_requirements: create.topology.clone(),
            },
        );
        let answer = controller.create_volume(request);
        let answer = self.link.call(method, secrets, answer).await?;
        convert::created(answer.volume).ok_or_else(|| {
            CallError::new(
                method,
                Code::Internal,
                "the plugin answered OK without the id of a volume",
            )
        })
    }

    /// The most bytes that a volume like this one could have: those of the requested place that has the most room, if places are
    /// requested. The limit of a call applies to all places together: they have one permit.
    ///
    /// # Errors
    /// [`CallError`]; without a call where the plugin does not offer to tell it.
    pub async fn capacity_for(&self, create: &CreateVolume) -> Result<i64, CallError> {
        self.link
            .caller
            .limit(Method::GetCapacity, self.most_capacity(create))
            .await
    }

    async fn most_capacity(&self, create: &CreateVolume) -> Result<i64, CallError> {
        let method = Method::GetCapacity;
        let mut controller = self.controller(method, Capability::GetCapacity)?;
        let places = create.topology.iter().flat_map(|topology| &topology.requisite);
        let mut places: Vec<_> = places.cloned().map(Some).collect();
        if places.is_empty() {
            places.push(None);
        }
        let required = create.capacity.map_or(0, |range| range.required_bytes);
        let mut most = 0;
        for place in places {
            let request = self.link.caller.request(
                method,
                wire::GetCapacityRequest {
                    volume_capabilities: vec![create.capability.clone()],
                    parameters: create.parameters.clone(),
                    accessible_topology: place,
                },
            );
            let answer = controller.get_capacity(request);
            let answer = self.link.call(method, &Secrets::none(), answer).await?;
            most = most.max(convert::available(&answer));
            if most >= required {
                break;
            }
        }
        Ok(most)
    }

    /// Deletes a volume. A volume that does not exist counts as deleted.
    ///
    /// # Errors
    /// [`CallError`]; without a call where the plugin does not offer to delete volumes.
    pub async fn delete_volume(&self, volume: &VolumeId, secrets: &Secrets) -> Result<(), CallError> {
        let method = Method::DeleteVolume;
        let mut controller = self.controller(method, Capability::CreateDeleteVolume)?;
        let request = self.link.caller.request(
            method,
            wire::DeleteVolumeRequest {
                volume_id: volume.as_str().to_owned(),
                secrets: secrets.to_wire(),
            },
        );
        let answer = controller.delete_volume(request);
        let answer = self.link.call(method, secrets, answer).await;
        done_or(answer)
    }

    /// Checks that a volume exists and can be used in this way.
    ///
    /// # Errors
    /// [`CallError`]; without a call where the plugin has no Controller service.
    pub async fn validate_volume(
        &self,
        validate: &ValidateVolume,
        secrets: &Secrets,
    ) -> Result<(), CallError> {
        let method = Method::ValidateVolumeCapabilities;
        let mut controller = self.controller(method, Capability::ControllerService)?;
        let request = self.link.caller.request(
            method,
            wire::ValidateVolumeCapabilitiesRequest {
                volume_id: validate.volume.as_str().to_owned(),
                volume_context: validate.context.clone(),
                volume_capabilities: vec![validate.capability.clone()],
                parameters: Context::new(),
                secrets: secrets.to_wire(),
            },
        );
        let answer = controller.validate_volume_capabilities(request);
        let answer = self.link.call(method, secrets, answer).await?;
        match answer.confirmed {
            Some(_) => Ok(()),
            None => {
                let said = presentable(&secrets.scrub(&answer.message));
                let text = format!("the volume cannot be used with this access mode: {said}");
                Err(CallError::new(method, Code::InvalidArgument, text))
            }
        }
    }

    /// Publishes a volume to a node. Returns the context that the plugin has for its part on the node.
    ///
    /// # Errors
    /// [`CallError`]; without a call where the plugin does not offer to publish volumes.
    pub async fn publish_volume(
        &self,
        publish: &PublishVolume,
        secrets: &Secrets,
    ) -> Result<Context, CallError> {
        let method = Method::ControllerPublishVolume;
        let mut controller = self.controller(method, Capability::PublishUnpublishVolume)?;
        let request = self.link.caller.request(
            method,
            wire::ControllerPublishVolumeRequest {
                volume_id: publish.volume.as_str().to_owned(),
                node_id: publish.node.as_str().to_owned(),
                volume_capability: Some(publish.capability.clone()),
                readonly: publish.read_only && self.offers(Capability::PublishReadonly),
                secrets: secrets.to_wire(),
                volume_context: publish.context.clone(),
            },
        );
        let answer = controller.controller_publish_volume(request);
        let answer = self.link.call(method, secrets, answer).await?;
        Ok(answer.publish_context)
    }

    /// Unpublishes a volume from one node.
    ///
    /// # Errors
    /// [`CallError`]; without a call where the plugin does not offer to unpublish volumes.
    pub async fn unpublish_volume(
        &self,
        volume: &VolumeId,
        node: &CsiNodeId,
        secrets: &Secrets,
    ) -> Result<(), CallError> {
        let method = Method::ControllerUnpublishVolume;
        let mut controller = self.controller(method, Capability::PublishUnpublishVolume)?;
        let request = self.link.caller.request(
            method,
            wire::ControllerUnpublishVolumeRequest {
                volume_id: volume.as_str().to_owned(),
                node_id: node.as_str().to_owned(),
                secrets: secrets.to_wire(),
            },
        );
        let answer = controller.controller_unpublish_volume(request);
        let answer = self.link.call(method, secrets, answer).await;
        done_or(answer)
    }

    /// Expands a volume.
    ///
    /// # Errors
    /// [`CallError`]; without a call where the plugin does not offer to expand volumes.
    pub async fn expand_volume(
        &self,
        expand: &ExpandVolume,
        secrets: &Secrets,
    ) -> Result<ExpandedVolume, CallError> {
        let method = Method::ControllerExpandVolume;
        let mut controller = self.controller(method, Capability::ExpandVolume)?;
        let request = self.link.caller.request(
            method,
            wire::ControllerExpandVolumeRequest {
                volume_id: expand.volume.as_str().to_owned(),
                capacity_range: expand.capacity,
                secrets: secrets.to_wire(),
                volume_capability: Some(expand.capability.clone()),
            },
        );
        let answer = controller.controller_expand_volume(request);
        let answer = self.link.call(method, secrets, answer).await?;
        Ok(ExpandedVolume {
            capacity: convert::capacity(answer.capacity_bytes),
            node_must_expand: answer.node_expansion_required,
        })
    }

    /// Lists every volume of the plugin. The limit of a call applies to each page.
    ///
    /// # Errors
    /// [`CallError`]; without a call where the plugin does not offer to list volumes.
    pub async fn list_volumes(&self) -> Result<Vec<ListedVolume>, CallError> {
        let method = Method::ListVolumes;
        let mut controller = self.controller(method, Capability::ListVolumes)?;
        let (mut volumes, mut token) = (Vec::new(), String::new());
        for _ in 0..MOST_PAGES {
            let request = self.link.caller.request(
                method,
                wire::ListVolumesRequest {
                    max_entries: PAGE,
                    starting_token: token.clone(),
                },
            );
            let answer = controller.list_volumes(request);
            let answer = self.link.call(method, &Secrets::none(), answer).await?;
            volumes.extend(answer.entries.into_iter().filter_map(convert::listed));
            if answer.next_token.is_empty() {
                return Ok(volumes);
            }
            if answer.next_token == token {
                break;
            }
            token = answer.next_token;
        }
        let text = "the plugin's list of volumes has no end";
        Err(CallError::new(method, Code::Internal, text))
    }

    /// The client for a call. Fails if the plugin does not offer the call.
    fn controller(
        &self,
        method: Method,
        capability: Capability,
    ) -> Result<ControllerClient<Channel>, CallError> {
        let offered = self.offers(capability);
        let channel = self.link.channel(method, offered, capability.name())?;
        Ok(ControllerClient::new(channel).max_decoding_message_size(LARGEST_ANSWER))
    }
}
