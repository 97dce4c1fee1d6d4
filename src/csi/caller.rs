//! What every call to a plugin shares: its limit, its metrics and the making of its error.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tonic::{Code, Request, Response, Status};
use tracing::debug;

use super::class::Method;
use super::endpoint::Endpoint;
use super::error::CallError;
use super::secret::Secrets;
use super::tls::Tls;
use crate::grpc_code;
use crate::metrics::{CsiOperation, Metrics};
use crate::span::Call;

/// The limit of each call to a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    usual: Duration,
    own: BTreeMap<Method, Duration>,
}

/// The longest limit of a call of the handshake: a plugin that is wedged is noticed, however long its volumes take.
const HANDSHAKE: Duration = Duration::from_secs(5);

impl Limits {
    /// The same limit for every call.
    pub fn all(usual: Duration) -> Self {
        Self {
            usual,
            own: BTreeMap::new(),
        }
    }

    /// Another limit for this call.
    #[must_use]
    pub fn with(mut self, method: Method, limit: Duration) -> Self {
        self.own.insert(method, limit);
        self
    }

    /// The limit of a call.
    pub fn of(&self, method: Method) -> Duration {
        let usual = match method.is_of_handshake() {
            true => self.usual.min(HANDSHAKE),
            false => self.usual,
        };
        self.own.get(&method).copied().unwrap_or(usual)
    }
}

/// How a plugin is connected to and called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The limits of its calls.
    pub limits: Limits,
    /// TLS, for an `https://` endpoint.
    pub tls: Tls,
}

impl From<Duration> for Settings {
    fn from(usual: Duration) -> Self {
        Self {
            limits: Limits::all(usual),
            tls: Tls::default(),
        }
    }
}

/// Makes calls to one plugin, before and after its handshake.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The name that the plugin must have, and the label of the metrics.
    pub driver: Arc<str>,
    pub endpoint: Endpoint,
    pub settings: Settings,
    pub metrics: Metrics,
}

impl Caller {
    /// A request with the limit in its header, so that the plugin can give up in time as well.
    pub fn request<M>(&self, method: Method, message: M) -> Request<M> {
        let mut request = Request::new(message);
        request.set_timeout(self.settings.limits.of(method));
        request
    }

    /// Makes a call within the limit, and measures and traces it. `secrets` are those of the request: the plugin's message is scrubbed
    /// of them.
    pub async fn call<T>(
        &self,
        method: Method,
        secrets: &Secrets,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CallError> {
        let (started, traced) = (Instant::now(), Call::begin("csi", method.path(), None));
        let limit = self.settings.limits.of(method);
        let result = match tokio::time::timeout(limit, answer).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            // The limit is in the request, too: the transport or the plugin may be the first to cancel.
            Ok(Err(status)) if status.code() == Code::Cancelled && started.elapsed() >= limit => {
                Err(self.timed_out(method))
            }
            Ok(Err(status)) => Err(CallError::from_status(method, &status, secrets)),
            Err(_) => Err(self.timed_out(method)),
        };
        let code = result.as_ref().map_or_else(|error| error.code, |_| Code::Ok);
        let operation = CsiOperation {
            driver_name: self.driver.to_string(),
            method_name: method.path(),
            grpc_status_code: grpc_code::name(code),
        };
        traced.ended(operation.grpc_status_code);
        let seconds = started.elapsed().as_secs_f64();
        self.metrics
            .csi_operations_seconds
            .get_or_create(&operation)
            .observe(seconds);
        if let Err(error) = &result {
            debug!(driver = &*self.driver, %error, "a CSI call failed");
        }
        result
    }

    /// Gives several calls the limit of one.
    pub async fn limit<T>(
        &self,
        method: Method,
        calls: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let limit = self.settings.limits.of(method);
        let ended = tokio::time::timeout(limit, calls).await;
        ended.unwrap_or_else(|_| Err(self.timed_out(method)))
    }

    fn timed_out(&self, method: Method) -> CallError {
        CallError::new(
            method,
            Code::DeadlineExceeded,
            format!("no answer within {:?}", self.settings.limits.of(method)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_its_own_limit_or_the_usual_one_and_a_handshake_a_short_one() {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let limits = Limits::all(minutes(1)).with(Method::CreateVolume, minutes(10));
        assert_eq!(limits.of(Method::CreateVolume), minutes(10));
        assert_eq!(limits.of(Method::DeleteVolume), minutes(1));
        assert_eq!(limits.of(Method::Probe), HANDSHAKE);
        let short = Duration::from_secs(1);
        assert_eq!(Limits::all(short).of(Method::GetPluginInfo), short);
    }
}
