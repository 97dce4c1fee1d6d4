//! One connection to the Node service of a plugin on this machine whose handshake is done, and the calls on it.

use std::path::Path;

use tonic::transport::Channel;

use super::caller::Caller;
use super::capabilities::NodeCapabilities;
use super::class::Method;
use super::endpoint::Endpoint;
use super::error::{CallError, NotReady};
use super::handshake;
use super::id::VolumeId;
use super::link::{Link, Opened, done_or};
use super::request::{NodeInfo, VolumeOnNode};
use super::secret::Secrets;
use super::wire;
use super::wire::node_client::NodeClient;

/// A connection to the Node service after its handshake. It never connects again: a call reaches the process whose
/// [`capabilities`](Self::capabilities) these are, or fails with `Unavailable`.
#[derive(Debug)]
pub struct NodeSession {
    link: Link,
    capabilities: NodeCapabilities,
    info: NodeInfo,
}

impl Opened for NodeSession {
    async fn open(caller: Caller) -> Result<Self, NotReady> {
        let link = Link::open(caller).await?;
        let (capabilities, info) = handshake::node(&link.caller, &link.connection).await?;
        Ok(Self {
            link,
            capabilities,
            info,
        })
    }

    fn has_ended(&self) -> bool {
        self.link.has_ended()
    }

    fn version(&self) -> &str {
        &self.link.identity.version
    }

    fn offered(&self) -> Vec<&'static str> {
        self.capabilities.names()
    }
}

impl NodeSession {
    /// What the plugin offers.
    pub fn capabilities(&self) -> NodeCapabilities {
        self.capabilities
    }

    /// What the plugin names the node by, and where it is.
    pub fn info(&self) -> &NodeInfo {
        &self.info
    }

    /// The endpoint of the plugin.
    pub fn endpoint(&self) -> &Endpoint {
        self.link.endpoint()
    }

    /// Waits for the end of the connection. Every call after it fails.
    pub async fn ended(&self) {
        self.link.connection.ended.cancelled().await;
    }

    /// Asks the plugin whether it still answers, within the limit of a handshake. Without an answer, the session ends.
    pub async fn probe(&self) {
        self.link.probe().await;
    }

    /// Prepares a volume on the node, at its staging path.
    ///
    /// # Errors
    /// [`CallError`]; without a call where the plugin does not offer to stage volumes.
    pub async fn stage(&self, volume: &VolumeOnNode, secrets: &Secrets) -> Result<(), CallError> {
        let method = Method::NodeStageVolume;
        let mut node = self.staging_client(method)?;
        let request = self.link.caller.request(
            method,
            wire::NodeStageVolumeRequest {
                volume_id: volume.volume.as_str().to_owned(),
                publish_context: volume.publish_context.clone(),
                staging_target_path: text(&volume.staging),
                volume_capability: Some(volume.capability.clone()),
                secrets: secrets.to_wire(),
                volume_context: volume.volume_context.clone(),
            },
        );
        let answer = node.node_stage_volume(request);
        self.link.call(method, secrets, answer).await.map(drop)
    }

    /// Makes a volume usable at its target path.
    ///
    /// # Errors
    /// [`CallError`]
    pub async fn publish(&self, volume: &VolumeOnNode, secrets: &Secrets) -> Result<(), CallError> {
        let method = Method::NodePublishVolume;
        let mut node = self.client(method)?;
        let request = self.link.caller.request(
            method,
            wire::NodePublishVolumeRequest {
                volume_id: volume.volume.as_str().to_owned(),
                publish_context: volume.publish_context.clone(),
                staging_target_path: self.staging(&volume.staging),
                target_path: text(&volume.target),
                volume_capability: Some(volume.capability.clone()),
                readonly: volume.read_only,
                secrets: secrets.to_wire(),
                volume_context: volume.volume_context.clone(),
            },
        );
        let answer = node.node_publish_volume(request);
        self.link.call(method, secrets, answer).await.map(drop)
    }

    /// Expands what is on a published volume to this capacity in bytes.
    ///
    /// # Errors
    /// [`CallError`]; without a call where the plugin does not offer to expand volumes on the node.
    pub async fn expand(
        &self,
        volume: &VolumeOnNode,
        bytes: i64,
        secrets: &Secrets,
    ) -> Result<(), CallError> {
        let method = Method::NodeExpandVolume;
        let offered = self.capabilities.expand;
        let channel = self.link.channel(method, offered, "EXPAND_VOLUME")?;
        let request = self.link.caller.request(
            method,
            wire::NodeExpandVolumeRequest {
                volume_id: volume.volume.as_str().to_owned(),
                volume_path: text(&volume.target),
                capacity_range: Some(wire::CapacityRange {
                    required_bytes: bytes,
                    limit_bytes: 0,
                }),
                staging_target_path: self.staging(&volume.staging),
                volume_capability: Some(volume.capability.clone()),
                secrets: secrets.to_wire(),
            },
        );
        let mut node = NodeClient::new(channel);
        let answer = node.node_expand_volume(request);
        self.link.call(method, secrets, answer).await.map(drop)
    }

    /// Ends the use of a volume at a target path, which the plugin deletes.
    ///
    /// # Errors
    /// [`CallError`]
    pub async fn unpublish(&self, volume: &VolumeId, target: &Path) -> Result<(), CallError> {
        let method = Method::NodeUnpublishVolume;
        let mut node = self.client(method)?;
        let request = self.link.caller.request(
            method,
            wire::NodeUnpublishVolumeRequest {
                volume_id: volume.as_str().to_owned(),
                target_path: text(target),
            },
        );
        let answer = node.node_unpublish_volume(request);
        done_or(self.link.call(method, &Secrets::none(), answer).await)
    }

    /// Undoes [`stage`](Self::stage).
    ///
    /// # Errors
    /// [`CallError`]; without a call where the plugin does not offer to stage volumes.
    pub async fn unstage(&self, volume: &VolumeId, staging: &Path) -> Result<(), CallError> {
        let method = Method::NodeUnstageVolume;
        let mut node = self.staging_client(method)?;
        let request = self.link.caller.request(
            method,
            wire::NodeUnstageVolumeRequest {
                volume_id: volume.as_str().to_owned(),
                staging_target_path: text(staging),
            },
        );
        let answer = node.node_unstage_volume(request);
        done_or(self.link.call(method, &Secrets::none(), answer).await)
    }

    /// The staging path of a request; empty where the plugin stages nothing.
    fn staging(&self, path: &Path) -> String {
        if self.capabilities.stage {
            text(path)
        } else {
            String::new()
        }
    }

    fn client(&self, method: Method) -> Result<NodeClient<Channel>, CallError> {
        // Every Node service has these calls.
        self.link
            .channel(method, true, "the Node service")
            .map(NodeClient::new)
    }

    fn staging_client(&self, method: Method) -> Result<NodeClient<Channel>, CallError> {
        let offered = self.capabilities.stage;
        let channel = self.link.channel(method, offered, "STAGE_UNSTAGE_VOLUME");
        channel.map(NodeClient::new)
    }
}

/// A path as it travels. The paths of the caller are text.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
