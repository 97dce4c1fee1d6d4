//! What a plugin is asked before the first call of a session.

use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use super::caller::Caller;
use super::capabilities::{Capabilities, Capability, NodeCapabilities};
use super::class::Method;
use super::convert;
use super::error::{CallError, NotReady, presentable};
use super::request::NodeInfo;
use super::secret::Secrets;
use super::wire;
use super::wire::controller_client::ControllerClient;
use super::wire::identity_client::IdentityClient;
use super::wire::node_client::NodeClient;
use crate::one_stream::Connection;

/// The entry of the manifest of GetPluginInfo by which a plugin reports the identity of its backend.
const BACKEND_KEY: &str = "quorate.dev/backend";

/// The answer to GetPluginInfo.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) version: String,
    pub(super) backend: String,
}

/// Asks whether the plugin is ready, and whether it is the right driver.
pub(super) async fn greet(caller: &Caller, connection: &Connection) -> Result<Identity, NotReady> {
    let mut greeting = Greeting {
        identity: IdentityClient::new(connection.channel.clone()),
        caller,
    };
    greeting.probe().await?;
    greeting.identify().await
}

/// Asks what the plugin and its Controller service offer.
pub(super) async fn capabilities(caller: &Caller, connection: &Connection) -> Result<Capabilities, NotReady> {
    let mut identity = IdentityClient::new(connection.channel.clone());
    let request = caller.request(
        Method::GetPluginCapabilities,
        wire::GetPluginCapabilitiesRequest {},
    );
    let answer = identity.get_plugin_capabilities(request);
    let answer = ask(caller, Method::GetPluginCapabilities, answer).await?;
    let capabilities = Capabilities::of_plugin(&answer.capabilities);
    if !capabilities.offers(Capability::ControllerService) {
        return Ok(capabilities);
    }
    let mut controller = ControllerClient::new(connection.channel.clone());
    let request = caller.request(
        Method::ControllerGetCapabilities,
        wire::ControllerGetCapabilitiesRequest {},
    );
    let answer = controller.controller_get_capabilities(request);
    let answer = ask(caller, Method::ControllerGetCapabilities, answer).await?;
    Ok(capabilities.with_controller(&answer.capabilities))
}

/// Asks what the Node service offers, and what the plugin names its node by. The capabilities of the plugin are not asked for: they
/// speak of its Controller service, which the process on a node need not have.
pub(super) async fn node(
    caller: &Caller,
    connection: &Connection,
) -> Result<(NodeCapabilities, NodeInfo), NotReady> {
    let mut node = NodeClient::new(connection.channel.clone());
    let method = Method::NodeGetCapabilities;
    let request = caller.request(method, wire::NodeGetCapabilitiesRequest {});
    let answer = ask(caller, method, node.node_get_capabilities(request)).await?;
    let capabilities = NodeCapabilities::of(&answer.capabilities);
    let method = Method::NodeGetInfo;
    let request = caller.request(method, wire::NodeGetInfoRequest {});
    let answer = ask(caller, method, node.node_get_info(request)).await?;
    let info = convert::node_info(answer).map_err(|empty| NotReady::Handshake {
        endpoint: caller.endpoint.clone(),
        error: CallError::new(method, Code::Internal, empty.to_string()),
    })?;
    Ok((capabilities, info))
}

async fn ask<T>(
    caller: &Caller,
    method: Method,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, NotReady> {
    let answer = caller.call(method, &Secrets::none(), answer).await;
    answer.map_err(|error| NotReady::Handshake {
        endpoint: caller.endpoint.clone(),
        error,
    })
}

struct Greeting<'a> {
    identity: IdentityClient<Channel>,
    caller: &'a Caller,
}

impl Greeting<'_> {
    /// Fails if the plugin says that it is not ready.
    async fn probe(&mut self) -> Result<(), NotReady> {
        let request = self.caller.request(Method::Probe, wire::ProbeRequest {});
        let answer = ask(self.caller, Method::Probe, self.identity.probe(request)).await?;
        match answer.ready {
            Some(false) => Err(NotReady::Starting {
                endpoint: self.caller.endpoint.clone(),
            }),
            Some(true) | None => Ok(()),
        }
    }

    /// Fails unless the plugin has the expected name: the driver at a wrong socket must not get another driver's volumes.
    async fn identify(&mut self) -> Result<Identity, NotReady> {
        let request = self
            .caller
            .request(Method::GetPluginInfo, wire::GetPluginInfoRequest {});
        let answer = self.identity.get_plugin_info(request);
        let info = ask(self.caller, Method::GetPluginInfo, answer).await?;
        // Objects here have names in lower case; drivers need not.
        if !info.name.eq_ignore_ascii_case(&self.caller.driver) {
            return Err(NotReady::OtherDriver {
                answered: presentable(&info.name),
                expected: self.caller.driver.to_string(),
                endpoint: self.caller.endpoint.clone(),
            });
        }
        let backend = info.manifest.get(BACKEND_KEY).map(|id| presentable(id));
        Ok(Identity {
            version: presentable(&info.vendor_version),
            backend: backend.unwrap_or_default(),
        })
    }
}
