//! What a plugin is asked before the first call of a session.

use tonic::transport::Channel;
use tonic::{Response, Status};

use super::caller::Caller;
use super::capabilities::{Capabilities, Capability};
use super::class::Method;
use super::error::{NotReady, presentable};
use super::secret::Secrets;
use super::wire;
use super::wire::controller_client::ControllerClient;
use super::wire::identity_client::IdentityClient;
use crate::one_stream::Connection;

/// The entry of the manifest of GetPluginInfo by which a plugin reports the identity of its backend.
const BACKEND_KEY: &str = "quorate.dev/backend";

/// The answer to GetPluginInfo.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) version: String,
    pub(super) backend: String,
}

/// Asks what stands before the first call: whether the plugin is ready, whether it is the right driver, and what it offers.
pub(super) async fn make(
    caller: &Caller,
    connection: &Connection,
) -> Result<(Identity, Capabilities), NotReady> {
    let mut handshake = Handshake {
        identity: IdentityClient::new(connection.channel.clone()),
        controller: ControllerClient::new(connection.channel.clone()),
        caller,
    };
    handshake.probe().await?;
    let identity = handshake.identify().await?;
    let capabilities = handshake.capabilities().await?;
    Ok((identity, capabilities))
}

struct Handshake<'a> {
    identity: IdentityClient<Channel>,
    controller: ControllerClient<Channel>,
    caller: &'a Caller,
}

impl Handshake<'_> {
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

    /// Fails if the plugin says that it is not ready.
    async fn probe(&mut self) -> Result<(), NotReady> {
        let request = self.caller.request(Method::Probe, wire::ProbeRequest {});
        let answer = Self::ask(self.caller, Method::Probe, self.identity.probe(request)).await?;
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
        let info = Self::ask(self.caller, Method::GetPluginInfo, answer).await?;
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

    async fn capabilities(&mut self) -> Result<Capabilities, NotReady> {
        let request = self.caller.request(
            Method::GetPluginCapabilities,
            wire::GetPluginCapabilitiesRequest {},
        );
        let answer = self.identity.get_plugin_capabilities(request);
        let answer = Self::ask(self.caller, Method::GetPluginCapabilities, answer).await?;
        let capabilities = Capabilities::of_plugin(&answer.capabilities);
        if !capabilities.offers(Capability::ControllerService) {
            return Ok(capabilities);
        }
        let request = self.caller.request(
            Method::ControllerGetCapabilities,
            wire::ControllerGetCapabilitiesRequest {},
        );
        let answer = self.controller.controller_get_capabilities(request);
        let answer = Self::ask(self.caller, Method::ControllerGetCapabilities, answer).await?;
        Ok(capabilities.with_controller(&answer.capabilities))
    }
}
