//! One request and its response: limits, retries, classification of errors.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, Request, StatusCode, header};
use kube::client::Body;

use super::config::{self, ConnectError};
use super::error::{Cause, Error, classify};
use super::operand::{Action, Operand};
use super::transport;
use crate::retry::Delays;
use crate::span;

/// Limits of every request.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For connecting, TLS included.
    pub connect: Duration,
    /// For one attempt, up to the end of the response.
    pub request: Duration,
    /// The longest wait between two attempts. If the server asks for a longer one (429, `Retry-After`), the call fails
    /// and the next pass tries again.
    pub wait: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        // An API server responds within its own --request-timeout, or within 34 s to writes; a healthy one takes
        // milliseconds. One object must not delay a pass for longer than a few lease TTLs.
        Self {
            connect: Duration::from_secs(5),
            request: Duration::from_secs(15),
            wait: Duration::from_secs(5),
        }
    }
}

/// A client of one API server as one user; cheap to clone. The first request connects. The client reads a rotated
/// service account token or CA again by itself.
#[derive(Clone)]
pub struct KubeClient {
    client: kube::Client,
    server: Arc<str>,
    limits: Limits,
}

impl std::fmt::Debug for KubeClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubeClient")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

/// The form of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Representation {
    /// The whole object.
    Full,
    /// `PartialObjectMetadata`, served for every kind since Kubernetes 1.15.
    Metadata,
    /// `PartialObjectMetadataList`.
    MetadataList,
}

impl Representation {
    pub(super) fn accept(self) -> &'static str {
        match self {
            Self::Full => "application/json",
            Self::Metadata => "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            Self::MetadataList => "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        }
    }
}

/// A request that can be sent several times.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) action: Action,
    pub(super) operand: Operand,
    pub(super) method: Method,
    /// Path and query.
    pub(super) uri: String,
    pub(super) representation: Representation,
    pub(super) body: Option<(&'static str, Vec<u8>)>,
}

impl Call {
    pub(super) fn error(&self, cause: Cause) -> Error {
        Error {
            action: self.action,
            operand: self.operand.shown.clone(),
            cause,
        }
    }

    /// The span of this call, which begins now.
    pub(super) fn traced(&self) -> span::Call {
        span::Call::begin("kubernetes", self.action.word(), Some(&self.operand.shown))
    }

    pub(super) fn request(&self) -> Result<Request<Vec<u8>>, Error> {
        let mut request = Request::builder()
            .method(self.method.clone())
            .uri(&self.uri)
            .header(header::ACCEPT, self.representation.accept());
        if let Some((content_type, _)) = &self.body {
            request = request.header(header::CONTENT_TYPE, *content_type);
        }
        let body = self.body.as_ref().map_or_else(Vec::new, |(_, body)| body.clone());
        request.body(body).map_err(|error| {
            self.error(Cause::Rejected {
                code: 400,
                message: format!("invalid request: {error}"),
            })
        })
    }
}

/// The response to a request that succeeded.
pub(super) struct Received {
    pub(super) body: Vec<u8>,
    /// The texts of its `Warning` headers: what the server says about the request, such as a deprecated version.
    pub(super) warnings: Vec<String>,
}

impl KubeClient {
    /// A client for the given kubeconfig; without one, for the API server of the pod that this process runs in, else for
    /// `$KUBECONFIG`, else for `~/.kube/config`. Opens no connection yet.
    ///
    /// # Errors
    /// [`ConnectError`] names the place that is unusable, or all places tried.
    pub async fn connect(kubeconfig: Option<&Path>) -> Result<Self, ConnectError> {
        Self::connect_with(kubeconfig, Limits::default()).await
    }

    /// [`KubeClient::connect`] with other limits.
    ///
    /// # Errors
    /// The same as of [`KubeClient::connect`].
    pub async fn connect_with(kubeconfig: Option<&Path>, limits: Limits) -> Result<Self, ConnectError> {
        let mut config = config::find(kubeconfig).await?;
        let server = config.cluster_url.to_string();
        let server = server.trim_end_matches('/');
        config.connect_timeout = Some(limits.connect);
        let client = transport::client(config).map_err(|error| ConnectError::Client {
            server: server.to_owned(),
            why: error.to_string(),
        })?;
        Ok(Self {
            client,
            server: server.into(),
            limits,
        })
    }

    /// URL of the API server.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Sends a request, and repeats it while a repetition can help. The request must be idempotent.
    pub(super) async fn call(&self, call: &Call) -> Result<Vec<u8>, Error> {
        self.receive(call).await.map(|received| received.body)
    }

    /// [`KubeClient::call`], with the warnings of the server.
    pub(super) async fn receive(&self, call: &Call) -> Result<Received, Error> {
        let mut delays = Delays::new(FIRST_DELAY, self.limits.wait);
        let mut attempt = 1;
        loop {
            let cause = match self.attempt(call).await {
                Ok(received) => return Ok(received),
                Err(error) => error.cause,
            };
            let delay = delays.next_delay().max(cause.retry_after().unwrap_or_default());
            // Jitter makes the longest delay a quarter longer.
            if attempt >= cause.attempts() || delay > self.limits.wait.mul_f64(1.25) {
                return Err(call.error(cause));
            }
            tracing::debug!(action = %call.action, operand = %call.operand.shown, attempt, ?delay, %cause, "repeating");
            tokio::time::sleep(delay).await;
            attempt += 1;
        }
    }

    /// Sends a request once, and traces it.
    pub(super) async fn attempt(&self, call: &Call) -> Result<Received, Error> {
        let traced = call.traced();
        let received = self.exchange(call).await;
        traced.ended(outcome(&received));
        received
    }

    async fn exchange(&self, call: &Call) -> Result<Received, Error> {
        let exchange = async {
            let request = call.request()?.map(Body::from);
            let response = self.client.send(request).await;
            let response = response.map_err(|error| call.error(self.transport(&error)))?;
            let (parts, body) = response.into_parts();
            let body = body.collect_bytes().await;
            let body = body.map_err(|error| call.error(self.transport(&error)))?;
            if parts.status.is_success() {
                return Ok(Received {
                    body: body.to_vec(),
                    warnings: warnings(&parts.headers),
                });
            }
            Err(call.error(refused(call, parts.status, &parts.headers, &body)))
        };
        match tokio::time::timeout(self.limits.request, exchange).await {
            Ok(result) => result,
            Err(_) => Err(call.error(Cause::TimedOut {
                server: self.server.to_string(),
                limit: self.limits.request,
            })),
        }
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    pub(super) fn client(&self) -> &kube::Client {
        &self.client
    }

    /// Classifies an error of the transport or of the credentials.
    pub(super) fn transport(&self, error: &kube::Error) -> Cause {
        match error {
            kube::Error::Auth(error) => Cause::NoCredentials(error.to_string()),
            error if is_connecting(error) => Cause::Unreachable {
                server: self.server.to_string(),
                why: innermost(error),
            },
            error => Cause::Broken {
                server: self.server.to_string(),
                why: innermost(error),
            },
        }
    }
}

/// How a call ended, in one word.
pub(super) fn outcome<T>(result: &Result<T, Error>) -> &'static str {
    result.as_ref().map_or_else(|error| error.cause.word(), |_| "OK")
}

/// The wait between the first attempt and the second.
const FIRST_DELAY: Duration = Duration::from_millis(100);

/// The texts of the `Warning` headers. One header may hold several: `299 - "text", 299 - "other"`.
fn warnings(headers: &HeaderMap) -> Vec<String> {
    let mut texts = Vec::new();
    for value in headers.get_all(header::WARNING) {
        let mut characters = value.to_str().unwrap_or_default().chars();
        while characters.any(|character| character == '"') {
            texts.push(quoted(&mut characters));
            // A date may follow, quoted as well.
            while let Some(character) = characters.next().filter(|character| *character != ',') {
                if character == '"' {
                    quoted(&mut characters);
                }
            }
        }
    }
    texts
}

/// The quoted string that has begun, up to its end (RFC 9110 section 5.6.4).
fn quoted(characters: &mut std::str::Chars<'_>) -> String {
    let mut text = String::new();
    while let Some(character) = characters.next().filter(|character| *character != '"') {
        match character {
            '\\' => text.extend(characters.next()),
            character => text.push(character),
        }
    }
    text
}

fn refused(call: &Call, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Cause {
    // RFC 9110 section 10.2.3; Kubernetes sends seconds, never a date.
    let after = headers
        .get(header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.trim().parse().ok())
        .map(Duration::from_secs);
    classify(call.action, &call.operand, status, after, body)
}

/// Whether the connection could not be made.
fn is_connecting(error: &kube::Error) -> bool {
    let mut next: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<hyper_util::client::legacy::Error>() {
            return error.is_connect();
        }
        next = error.source();
    }
    false
}

/// The last error of the chain of sources. It names the reason: connection refused, an unknown certificate authority.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// Percent-encodes one element of a path, so that a name cannot address another object. Of the characters that need
/// care, Kubernetes' own names contain only the colon, which stays.
pub(super) fn segment(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_the_quoted_text() {
        let mut headers = HeaderMap::new();
        headers.append(header::WARNING, r#"299 - "a is \"old\"""#.parse().unwrap());
        let two = r#"299 - "b, \\ and c" "Wed, 21 Oct 2015 07:28:00 GMT", 299 - "d""#;
        headers.append(header::WARNING, two.parse().unwrap());
        headers.append(header::WARNING, "nothing".parse().unwrap());
        assert_eq!(warnings(&headers), ["a is \"old\"", "b, \\ and c", "d"]);
    }

    #[test]
    fn a_name_cannot_address_another_path() {
        assert_eq!(segment("system:quorate:csi"), "system:quorate:csi");
        assert_eq!(segment("a/../b?c#d e%"), "a%2F..%2Fb%3Fc%23d%20e%25");
    }
}
