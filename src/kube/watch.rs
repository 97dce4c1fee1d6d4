//! Watches of a kind: changes of its objects, by metadata alone.

use std::pin::Pin;
use std::time::{Duration, Instant};

use futures::{Stream, TryStreamExt};
use http::Method;
use kube::core::WatchEvent;

use super::calls::{selector, whole_kind};
use super::client::{Call, KubeClient, Representation, outcome};
use super::discovery::Resource;
use super::error::{Cause, Error, classify};
use super::object::{Meta, PartialObject};
use super::operand::Action;

/// The server ends a watch after this time, and the client opens it again. So a watch that broke silently lasts no
/// longer than this.
const LIFETIME: Duration = Duration::from_secs(240);

/// The server's clock may differ a little. A watch that is silent for this much longer than its lifetime is broken.
const GRACE: Duration = Duration::from_secs(10);

/// One change of an object.
#[derive(Clone, Debug)]
pub struct ObjectEvent {
    /// The object after the change; the last state of a deleted object.
    pub meta: Meta,
    /// Whether the object was deleted.
    pub deleted: bool,
}

type Events = Pin<Box<dyn Stream<Item = Result<WatchEvent<PartialObject>, kube::Error>> + Send>>;

/// One open response to a watch request.
struct OpenStream {
    events: Events,
    since: Instant,
}

/// Changes of the objects of one kind that have a label. The watch opens itself again from the last version seen.
pub struct Watch {
    kube: KubeClient,
    call: Call,
    path: String,
    resource_version: String,
    open: Option<OpenStream>,
}

impl KubeClient {
    /// Watches from the resource version of a list. The first call of [`Watch::next`] sends the request.
    pub fn watch(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        label: &str,
        resource_version: &str,
    ) -> Watch {
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={}&{}",
            resource.collection(namespace),
            LIFETIME.as_secs(),
            selector(label)
        );
        Watch {
            kube: self.clone(),
            call: Call {
                action: Action::Watch,
                operand: whole_kind(resource, namespace),
                method: Method::GET,
                uri: String::new(),
                representation: Representation::Metadata,
                body: None,
            },
            path,
            resource_version: resource_version.to_owned(),
            open: None,
        }
    }
}

impl Watch {
    /// The next change. Cancel safe: dropping the future loses no change.
    ///
    /// # Errors
    /// [`Error`]. After [`Cause::Gone`] changes were missed, and the caller has to list the kind again. After any other
    /// error the caller waits and calls again; the watch continues where it was.
    pub async fn next(&mut self) -> Result<ObjectEvent, Error> {
        loop {
            let open = match &mut self.open {
                Some(open) => open,
                None => {
                    let open = self.reopen().await?;
                    self.open.insert(open)
                }
            };
            let event = match tokio::time::timeout(LIFETIME + GRACE, open.events.try_next()).await {
                Ok(Ok(Some(event))) => event,
                Ok(Ok(None)) if open.since.elapsed() < LIFETIME - GRACE => {
                    // An error makes the caller wait before it opens the next watch: a server may end each one at once
                    // (INV-9).
                    self.open = None;
                    let server = self.kube.server().to_owned();
                    let why = "the server ended the watch early".to_owned();
                    return Err(self.call.error(Cause::Unreachable { server, why }));
                }
                // The server ended the watch after its lifetime, or the connection was silent for too long.
                Ok(Ok(None)) | Err(_) => {
                    self.open = None;
                    continue;
                }
                Ok(Err(error)) => {
                    self.open = None;
                    return Err(self.call.error(self.kube.transport(&error)));
                }
            };
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    return Ok(self.event(object.metadata, false));
                }
                WatchEvent::Deleted(object) => return Ok(self.event(object.metadata, true)),
                WatchEvent::Bookmark(bookmark) => {
                    self.resource_version = bookmark.metadata.resource_version;
                }
                WatchEvent::Error(status) => {
                    self.open = None;
                    return Err(self.refused(&status));
                }
            }
        }
    }

    fn event(&mut self, meta: Meta, deleted: bool) -> ObjectEvent {
        self.resource_version.clone_from(&meta.resource_version);
        ObjectEvent { meta, deleted }
    }

    /// Opens the watch. The span of that ends once it is open.
    async fn reopen(&mut self) -> Result<OpenStream, Error> {
        let traced = self.call.traced();
        let opened = self.open_from_here().await;
        traced.ended(outcome(&opened));
        opened
    }

    async fn open_from_here(&mut self) -> Result<OpenStream, Error> {
        self.call.uri = format!("{}&resourceVersion={}", self.path, self.resource_version);
        let request = self.call.request()?;
        let opening = self.kube.client().request_events::<PartialObject>(request);
        let limit = self.kube.limits().request;
        let Ok(opened) = tokio::time::timeout(limit, opening).await else {
            let server = self.kube.server().to_owned();
            return Err(self.call.error(Cause::TimedOut { server, limit }));
        };
        match opened {
            Ok(events) => Ok(OpenStream {
                events: Box::pin(events),
                since: Instant::now(),
            }),
            Err(kube::Error::Api(status)) => Err(self.refused(&status)),
            Err(error) => Err(self.call.error(self.kube.transport(&error))),
        }
    }

    fn refused(&self, status: &kube::core::Status) -> Error {
        // A status without an HTTP code gives the caller nothing to act on; it counts as a server error.
        let code = http::StatusCode::from_u16(status.code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(status).unwrap_or_default();
        self.call
            .error(classify(Action::Watch, &self.call.operand, code, None, &body))
    }
}
