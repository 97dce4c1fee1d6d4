//! Watches of a kind: changes as they happen, by metadata alone.

use std::pin::Pin;
use std::time::{Duration, Instant};

use futures::{Stream, TryStreamExt};
use http::Method;
use kube::core::WatchEvent;

use super::calls::{selector, whole_kind};
use super::client::{Call, KubeClient, Representation};
use super::discovery::Resource;
use super::error::{Cause, Error, classify};
use super::object::{Meta, PartialObject};
use super::operand::Action;

/// After this time the server ends a watch, and it is opened again: one that broke without a word lasts no longer.
const LIFETIME: Duration = Duration::from_secs(240);

/// The server keeps its own time; a little later than it, silence is a broken connection.
const GRACE: Duration = Duration::from_secs(10);

/// A change.
#[derive(Clone, Debug)]
pub struct ObjectEvent {
    /// The object as it is now; as it was last, if it is gone.
    pub meta: Meta,
    /// Whether it is gone.
    pub deleted: bool,
}

type Events = Pin<Box<dyn Stream<Item = Result<WatchEvent<PartialObject>, kube::Error>> + Send>>;

/// A watch as the server serves it, until it ends it.
struct Open {
    events: Events,
    since: Instant,
}

/// Changes of the objects of one kind that carry a label. Opens itself again where it left off.
pub struct Watch {
    kube: KubeClient,
    call: Call,
    path: String,
    resource_version: String,
    open: Option<Open>,
}

impl KubeClient {
    /// Watches from the resource version of a list. Nothing is sent before [`Watch::next`] is called.
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
    /// The next change. Dropping the future loses none.
    ///
    /// # Errors
    /// [`Error`]: [`Cause::Gone`] means that changes were missed and the kind has to be listed anew; after any other,
    /// calling again, after a while, goes on from where it was.
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
                    // An error, so that it is opened again with a delay: a server may end each one at once (INV-9).
                    self.open = None;
                    let server = self.kube.server().to_owned();
                    let why = "the watch was ended before its time".to_owned();
                    return Err(self.call.error(Cause::Unreachable { server, why }));
                }
                // The server ended it, as it was asked to; or nothing at all came for too long.
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
                    return Ok(self.seen(object.metadata, false));
                }
                WatchEvent::Deleted(object) => return Ok(self.seen(object.metadata, true)),
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

    fn seen(&mut self, meta: Meta, deleted: bool) -> ObjectEvent {
        self.resource_version.clone_from(&meta.resource_version);
        ObjectEvent { meta, deleted }
    }

    async fn reopen(&mut self) -> Result<Open, Error> {
        self.call.uri = format!("{}&resourceVersion={}", self.path, self.resource_version);
        let request = self.call.request()?;
        let opening = self.kube.client().request_events::<PartialObject>(request);
        let limit = self.kube.limits().request;
        let Ok(opened) = tokio::time::timeout(limit, opening).await else {
            let server = self.kube.server().to_owned();
            return Err(self.call.error(Cause::TimedOut { server, limit }));
        };
        match opened {
            Ok(events) => Ok(Open {
                events: Box::pin(events),
                since: Instant::now(),
            }),
            Err(kube::Error::Api(status)) => Err(self.refused(&status)),
            Err(error) => Err(self.call.error(self.kube.transport(&error))),
        }
    }

    fn refused(&self, status: &kube::core::Status) -> Error {
        // A status without a code of HTTP is none that a caller could act on: it counts as the server's failure.
        let code = http::StatusCode::from_u16(status.code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(status).unwrap_or_default();
        self.call
            .error(classify(Action::Watch, &self.call.operand, code, None, &body))
    }
}
