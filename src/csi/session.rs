//! One connection to a plugin that has said what it is and what it can do, and the calls on it.

use tonic::Code;

use super::caller::Caller;
use super::capabilities::{Capabilities, Capability};
use super::class::{Class, Method};
use super::connection::Connection;
use super::convert;
use super::error::{CallError, NotReady, presentable};
use super::id::{CsiNodeId, VolumeId};
use super::request::{
    Context, CreateVolume, CreatedVolume, ExpandVolume, ExpandedVolume, ListedVolume, PublishVolume,
};
use super::secret::Secrets;
use super::wire;
use super::wire::controller_client::ControllerClient;
use super::wire::identity_client::IdentityClient;

/// Volumes in one page of a list.
const PAGE: i32 = 500;

/// Pages of one list: five million volumes of a plugin that fills them. One that says for ever that there is more is not
/// believed.
const MOST_PAGES: u32 = 10_000;

/// The largest answer taken: a page of volumes with large contexts.
const LARGEST_ANSWER: usize = 16 << 20;

/// A probed connection. Calls on it go to the very process whose [`capabilities`](Self::capabilities) it holds, or
/// fail with `Unavailable`: it never connects again.
#[derive(Debug)]
pub struct Session {
    caller: Caller,
    connection: Connection,
    capabilities: Capabilities,
    version: String,
    number: u64,
}

impl Session {
    /// Connects and asks everything that must be known. Dropped in between, nothing has happened.
    pub(super) async fn open(caller: Caller, number: u64) -> Result<Self, NotReady> {
        let connection =
            Connection::open(&caller.endpoint)
                .await
                .map_err(|message| NotReady::Unreachable {
                    endpoint: caller.endpoint.clone(),
                    message,
                })?;
        let mut identity = IdentityClient::new(connection.channel.clone());
        let handshake = |failure| NotReady::Handshake {
            endpoint: caller.endpoint.clone(),
            failure,
        };

        let question = caller.request(wire::ProbeRequest {});
        let probe = caller
            .call_without_secrets(Method::Probe, identity.probe(question))
            .await
            .map_err(handshake)?;
        if probe.ready == Some(false) {
            return Err(NotReady::Starting {
                endpoint: caller.endpoint,
            });
        }

        let question = caller.request(wire::GetPluginInfoRequest {});
        let info = caller
            .call_without_secrets(Method::GetPluginInfo, identity.get_plugin_info(question))
            .await
            .map_err(handshake)?;
        // A socket that was mixed up must not be given another driver's volumes. Objects here have names in lower
        // case, and drivers need not.
        if !info.name.eq_ignore_ascii_case(&caller.driver) {
            return Err(NotReady::OtherDriver {
                answered: presentable(&info.name),
                expected: caller.driver.to_string(),
                endpoint: caller.endpoint,
            });
        }

        let question = caller.request(wire::GetPluginCapabilitiesRequest {});
        let answer = caller
            .call_without_secrets(
                Method::GetPluginCapabilities,
                identity.get_plugin_capabilities(question),
            )
            .await
            .map_err(handshake)?;
        let mut capabilities = Capabilities::of_plugin(&answer.capabilities);
        if capabilities.offers(Capability::ControllerService) {
            let question = caller.request(wire::ControllerGetCapabilitiesRequest {});
            let mut controller = ControllerClient::new(connection.channel.clone());
            let answer = caller
                .call_without_secrets(
                    Method::ControllerGetCapabilities,
                    controller.controller_get_capabilities(question),
                )
                .await
                .map_err(handshake)?;
            capabilities = capabilities.with_controller(&answer.capabilities);
        }
        Ok(Self {
            caller,
            connection,
            capabilities,
            version: presentable(&info.vendor_version),
            number,
        })
    }

    /// What the plugin can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Whether the plugin can do this.
    pub fn offers(&self, capability: Capability) -> bool {
        self.capabilities.offers(capability)
    }

    /// The vendor's version of the plugin.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Counts the sessions of one [`Plugin`](super::Plugin): another number is another connection, perhaps to another
    /// version of the plugin.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether its connection has ended, so that every further call fails.
    pub fn has_ended(&self) -> bool {
        self.connection.ended.is_cancelled()
    }

    /// Waits for the end of its connection.
    pub async fn ended(&self) {
        self.connection.ended.cancelled().await;
    }

    /// Makes a volume, or finds the one that an earlier call under the same name made.
    ///
    /// # Errors
    /// [`CallError`]; without a call where the plugin does not offer to create volumes, or where the volume asks for a
    /// topology that means nothing to the plugin.
    pub async fn create_volume(
        &self,
        create: &CreateVolume,
        secrets: &Secrets,
    ) -> Result<CreatedVolume, CallError> {
        let method = Method::CreateVolume;
        self.require(method, Capability::CreateDeleteVolume)?;
        let topology = convert::topology(&create.topology);
        if topology.is_some() && !self.offers(Capability::AccessibilityConstraints) {
            let text = "the volume asks for a topology, and the plugin does not offer \
                        VOLUME_ACCESSIBILITY_CONSTRAINTS";
            return Err(CallError::new(method, Code::InvalidArgument, text));
        }
        let request = self.caller.request(wire::CreateVolumeRequest {
            name: create.name.as_str().to_owned(),
            capacity_range: convert::range(create.capacity),
            volume_capabilities: vec![(&create.capability).into()],
            parameters: create.parameters.clone(),
            secrets: secrets.to_wire(),
            accessibility_requirements: topology,
        });
        let answer = self
            .caller
            .call(method, secrets, self.controller().create_volume(request))
            .await?;
        convert::created(answer.volume).ok_or_else(|| {
            CallError::new(
                method,
                Code::Internal,
                "the plugin answered OK without the id of a volume",
            )
        })
    }

    /// Deletes a volume. One that is not there is deleted.
    ///
    /// # Errors
    /// [`CallError`]; without a call where the plugin does not offer to delete volumes.
    pub async fn delete_volume(&self, volume: &VolumeId, secrets: &Secrets) -> Result<(), CallError> {
        let method = Method::DeleteVolume;
        self.require(method, Capability::CreateDeleteVolume)?;
        let request = self.caller.request(wire::DeleteVolumeRequest {
            volume_id: volume.as_str().to_owned(),
            secrets: secrets.to_wire(),
        });
        let answer = self
            .caller
            .call(method, secrets, self.controller().delete_volume(request))
            .await;
        done_or(answer.map(|_| ()))
    }

    /// Publishes a volume to a node; what it answers is for the node's part of the plugin.
    ///
    /// # Errors
    /// [`CallError`]; without a call where the plugin does not offer to publish volumes.
    pub async fn publish_volume(
        &self,
        publish: &PublishVolume,
        secrets: &Secrets,
    ) -> Result<Context, CallError> {
        let method = Method::ControllerPublishVolume;
        self.require(method, Capability::PublishUnpublishVolume)?;
        let request = self.caller.request(wire::ControllerPublishVolumeRequest {
            volume_id: publish.volume.as_str().to_owned(),
            node_id: publish.node.as_str().to_owned(),
            volume_capability: Some((&publish.capability).into()),
            readonly: publish.read_only && self.offers(Capability::PublishReadonly),
            secrets: secrets.to_wire(),
            volume_context: publish.context.clone(),
        });
        let answer = self
            .caller
            .call(
                method,
                secrets,
                self.controller().controller_publish_volume(request),
            )
            .await?;
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
        self.require(method, Capability::PublishUnpublishVolume)?;
        let request = self.caller.request(wire::ControllerUnpublishVolumeRequest {
            volume_id: volume.as_str().to_owned(),
            node_id: node.as_str().to_owned(),
            secrets: secrets.to_wire(),
        });
        let answer = self
            .caller
            .call(
                method,
                secrets,
                self.controller().controller_unpublish_volume(request),
            )
            .await;
        done_or(answer.map(|_| ()))
    }

    /// Makes a volume larger.
    ///
    /// # Errors
    /// [`CallError`]; without a call where the plugin does not offer to expand volumes.
    pub async fn expand_volume(
        &self,
        expand: &ExpandVolume,
        secrets: &Secrets,
    ) -> Result<ExpandedVolume, CallError> {
        let method = Method::ControllerExpandVolume;
        self.require(method, Capability::ExpandVolume)?;
        let request = self.caller.request(wire::ControllerExpandVolumeRequest {
            volume_id: expand.volume.as_str().to_owned(),
            capacity_range: convert::range(expand.capacity),
            secrets: secrets.to_wire(),
            volume_capability: Some((&expand.capability).into()),
        });
        let answer = self
            .caller
            .call(
                method,
                secrets,
                self.controller().controller_expand_volume(request),
            )
            .await?;
        Ok(ExpandedVolume {
            capacity: convert::capacity(answer.capacity_bytes),
            node_must_expand: answer.node_expansion_required,
        })
    }

    /// Every volume that the plugin knows. Each page has the limit of a call of its own.
    ///
    /// # Errors
    /// [`CallError`]; without a call where the plugin does not offer to list volumes.
    pub async fn list_volumes(&self) -> Result<Vec<ListedVolume>, CallError> {
        let method = Method::ListVolumes;
        self.require(method, Capability::ListVolumes)?;
        let (mut volumes, mut token) = (Vec::new(), String::new());
        for _ in 0..MOST_PAGES {
            let request = self.caller.request(wire::ListVolumesRequest {
                max_entries: PAGE,
                starting_token: token.clone(),
            });
            let answer = self
                .caller
                .call(method, &Secrets::none(), self.controller().list_volumes(request))
                .await?;
            volumes.extend(answer.entries.into_iter().filter_map(convert::listed));
            if answer.next_token.is_empty() {
                return Ok(volumes);
            }
            if answer.next_token == token {
                break;
            }
            token = answer.next_token;
        }
        let text = "the plugin answers for ever that there is more: its list has no end";
        Err(CallError::new(method, Code::Internal, text))
    }

    fn controller(&self) -> ControllerClient<tonic::transport::Channel> {
        ControllerClient::new(self.connection.channel.clone()).max_decoding_message_size(LARGEST_ANSWER)
    }

    /// A call that is not offered is not made: what plugins do then is anyone's guess.
    fn require(&self, method: Method, capability: Capability) -> Result<(), CallError> {
        if self.offers(capability) {
            return Ok(());
        }
        let text = format!("the plugin does not offer {}", capability.name());
        Err(CallError::new(method, Code::Unimplemented, text))
    }
}

/// What the table calls done is no failure.
fn done_or(result: Result<(), CallError>) -> Result<(), CallError> {
    match result {
        Err(failure) if failure.class() == Class::Done => Ok(()),
        result => result,
    }
}
