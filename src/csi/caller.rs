//! What every call to a plugin shares: its limit, its metrics and the making of its error.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tonic::{Code, Request, Response, Status};
use tracing::debug;

use super::class::Method;
use super::endpoint::Endpoint;
use super::error::CallError;
use super::secret::Secrets;
use crate::grpc_code;
use crate::metrics::{CsiOperation, Metrics};

/// Makes calls to one plugin, before and after its handshake.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    /// The name that the plugin must have, and the label of the metrics.
    pub driver: Arc<str>,
    pub endpoint: Endpoint,
    /// The limit of one call.
    pub limit: Duration,
    pub metrics: Metrics,
}

impl Caller {
    /// A request with the limit in its header, so that the plugin can give up in time as well.
    pub fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        request.set_timeout(self.limit);
        request
    }

    /// Makes a call within the limit, and measures it. `secrets` are those of the request: the plugin's message is scrubbed
    /// of them.
    pub async fn call<T>(
        &self,
        method: Method,
        secrets: &Secrets,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CallError> {
        let started = Instant::now();
        let result = match tokio::time::timeout(self.limit, answer).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            // The limit is in the request, too: the transport or the plugin may be the first to cancel.
            Ok(Err(status)) if status.code() == Code::Cancelled && started.elapsed() >= self.limit => {
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

    fn timed_out(&self, method: Method) -> CallError {
        CallError::new(
            method,
            Code::DeadlineExceeded,
            format!("no answer within {:?}", self.limit),
        )
    }
}
