//! A connection to a plugin that has said who it is: what the sessions of both services share.

use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use super::caller::Caller;
use super::class::{Class, Method};
use super::connection;
use super::endpoint::Endpoint;
use super::error::{CallError, NotReady};
use super::handshake::{self, Identity};
use super::secret::Secrets;
use super::wire;
use super::wire::identity_client::IdentityClient;
use crate::one_stream::Connection;

/// Why a call of an ended session fails.
const ENDED: &str = "the session has ended";

/// A session of one of a plugin's services.
pub trait Opened: Sized {
    /// Connects, and makes the handshake. Dropping the future leaves nothing behind.
    fn open(caller: Caller) -> impl Future<Output = Result<Self, NotReady>> + Send;

    /// Whether the connection has ended. Every further call then fails.
    fn has_ended(&self) -> bool;

    /// The vendor's version of the plugin.
    fn version(&self) -> &str;

    /// The names of the capabilities that the plugin offers.
    fn offered(&self) -> Vec<&'static str>;
}

/// A connection after the first part of its handshake: the plugin is ready, and it is the right driver. It never connects
/// again: a call reaches the same process, or fails with `Unavailable`.
#[derive(Debug)]
pub(super) struct Link {
    pub caller: Caller,
    pub connection: Connection,
    pub identity: Identity,
}

impl Link {
    /// Connects. Dropping the future leaves nothing behind.
    pub async fn open(caller: Caller) -> Result<Self, NotReady> {
        let connection = connection::open(&caller.endpoint, &caller.settings.tls)
            .await
            .map_err(|message| NotReady::Unreachable {
                endpoint: caller.endpoint.clone(),
                message,
            })?;
        let identity = handshake::greet(&caller, &connection).await?;
        Ok(Self {
            caller,
            connection,
            identity,
        })
    }

    pub fn endpoint(&self) -> &Endpoint {
        &self.caller.endpoint
    }

    pub fn has_ended(&self) -> bool {
        self.connection.ended.is_cancelled()
    }

    /// Asks the plugin whether it still answers, within the limit of a handshake. Without an answer, the session ends.
    pub async fn probe(&self) {
        let request = self.caller.request(Method::Probe, wire::ProbeRequest {});
        let mut identity = IdentityClient::new(self.connection.channel.clone());
        let answer = identity.probe(request);
        let answer = self.caller.call(Method::Probe, &Secrets::none(), answer).await;
        if answer.is_err_and(|error| error.code == Code::DeadlineExceeded) {
            self.connection.ended.cancel();
        }
    }

    /// Makes a call that ends with the session. A plugin that was found dead by a probe keeps its connection, and the call would
    /// last for its whole limit.
    pub async fn call<T>(
        &self,
        method: Method,
        secrets: &Secrets,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CallError> {
        let answer = async {
            tokio::select! {
                // First: an answer counts, also where the connection ends with it.
                biased;
                answer = answer => answer,
                () = self.connection.ended.cancelled() => Err(Status::unavailable(ENDED)),
            }
        };
        self.caller.call(method, secrets, answer).await
    }

    /// The channel for a call, where the plugin offers what the call needs: what a plugin does otherwise is undefined.
    pub fn channel(&self, method: Method, offered: bool, capability: &str) -> Result<Channel, CallError> {
        if !offered {
            let text = format!("the plugin does not offer {capability}");
            return Err(CallError::new(method, Code::Unimplemented, text));
        }
        if self.has_ended() {
            return Err(CallError::new(method, Code::Unavailable, ENDED));
        }
        Ok(self.connection.channel.clone())
    }
}

/// A call whose error the table of codes takes for a success has succeeded.
pub(super) fn done_or<T>(result: Result<T, CallError>) -> Result<(), CallError> {
    match result {
        Err(error) if error.class() == Class::Done => Ok(()),
        result => result.map(drop),
    }
}
