//! Kubernetes Events, for `kubectl events`. Repeated Events are counted on one, and all are rate limited. Publishing an
//! Event takes at most a few seconds and never fails: errors are logged.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use super::client::{Call, KubeClient, Representation, segment};
use super::error::{Cause, Error};
use super::operand::{Action, Operand};

mod series;

use series::{Decision, Series};

/// The pod that this process runs in, from the downward API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// `metadata.name`
    pub name: String,
    /// `metadata.namespace`
    pub namespace: String,
    /// `metadata.uid`
    pub uid: String,
}

/// The type of an Event; Kubernetes has these two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// For information.
    Normal,
    /// An operator may have to act.
    Warning,
}

/// The content of an Event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Notice {
    /// The type of the Event.
    pub severity: Severity,
    /// The reason as one word for machines: `GateBlocked`.
    pub reason: &'static str,
    /// The operation as one word: `Reconcile`.
    pub action: &'static str,
    /// The message for people; cut at 1,024 bytes, Kubernetes' limit.
    pub note: String,
}

/// Publishes the Events of one replica.
#[derive(Debug)]
pub struct Events {
    kube: KubeClient,
    regarding: Value,
    namespace: String,
    instance: String,
    series: Series,
}

/// The limit for publishing one Event. The caller continues after it.
const LIMIT: Duration = Duration::from_secs(3);

impl Events {
    /// `instance` is this replica's id. The Events regard the pod. Outside a pod they regard the Namespace
    /// `kube-system`, which every cluster has; Kubernetes 1.20 accepts Events about cluster-scoped objects only in it.
    pub fn new(kube: KubeClient, pod: Option<Pod>, instance: &str) -> Self {
        let (regarding, namespace) = match pod {
            Some(Pod { name, namespace, uid }) => (
                json!({"apiVersion": "v1", "kind": "Pod", "name": name, "namespace": namespace, "uid": uid}),
                namespace,
            ),
            None => (
                json!({"apiVersion": "v1", "kind": "Namespace", "name": "kube-system"}),
                "kube-system".to_owned(),
            ),
        };
        Self {
            kube,
            regarding,
            namespace,
            // 128 bytes is Kubernetes' limit.
            instance: cut(instance, 128).to_owned(),
            series: Series::default(),
        }
    }

    /// Publishes a new Event, raises the count of the existing one, or drops the notice. Returns within seconds and
    /// never fails; errors are logged.
    ///
    /// Cancel safe: a cancelled notice counts as not sent, and the next one with the same content is sent instead.
    pub async fn publish(&mut self, notice: &Notice) {
        let publishing = match self.series.take(notice, Instant::now()) {
            Decision::Send { on, count } => self.send(notice, on, count),
            Decision::Hold => return,
        };
        let Notice { reason, note, .. } = notice;
        match tokio::time::timeout(LIMIT, publishing).await {
            Ok(Ok(name)) => self.series.sent(notice, name, Instant::now()),
            Ok(Err(error)) => tracing::warn!(reason, note, %error, "failed to publish an Event"),
            Err(_) => tracing::warn!(reason, note, "failed to publish an Event within {LIMIT:?}"),
        }
    }

    /// Sends the notice. Returns the name of the Event that now carries it.
    async fn send(&self, notice: &Notice, on: Option<String>, count: u32) -> Result<String, Error> {
        let Some(name) = on else {
            return self.create(notice, count).await;
        };
        match self.count(&name, notice, count).await {
            Ok(()) => Ok(name),
            // The API server deletes Events after an hour by default.
            Err(error) if matches!(error.cause, Cause::Absent(_) | Cause::NotFound(_)) => {
                self.create(notice, count).await
            }
            Err(error) => Err(error),
        }
    }

    async fn create(&self, notice: &Notice, count: u32) -> Result<String, Error> {
        let regarding = self.regarding["name"].as_str().unwrap_or_default();
        let name = format!("{}.{}", cut(regarding, 200), uuid::Uuid::new_v4().simple());
        let now = now();
        let mut event = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": self.namespace},
            "eventTime": now,
            "reportingController": "quorate.dev/controller",
            "reportingInstance": self.instance,
            "regarding": self.regarding,
            "type": match notice.severity {
                Severity::Normal => "Normal",
                Severity::Warning => "Warning",
            },
            "reason": notice.reason,
            "action": notice.action,
            "note": cut(&notice.note, 1_024),
        });
        if count > 1 {
            event["series"] = json!({"count": count, "lastObservedTime": now});
        }
        self.call(
            notice,
            Method::POST,
            self.collection(),
            "application/json",
            &event,
        )
        .await?;
        Ok(name)
    }

    async fn count(&self, name: &str, notice: &Notice, count: u32) -> Result<(), Error> {
        let patch = json!({"series": {"count": count, "lastObservedTime": now()}});
        let path = format!("{}/{}", self.collection(), segment(name));
        self.call(
            notice,
            Method::PATCH,
            path,
            "application/merge-patch+json",
            &patch,
        )
        .await
    }

    fn collection(&self) -> String {
        format!(
            "/apis/events.k8s.io/v1/namespaces/{}/events",
            segment(&self.namespace)
        )
    }

    async fn call(
        &self,
        notice: &Notice,
        method: Method,
        uri: String,
        content_type: &'static str,
        body: &Value,
    ) -> Result<(), Error> {
        let call = Call {
            action: Action::Report,
            operand: Operand {
                shown: format!("Event {}", notice.reason),
                resource: "events.events.k8s.io".to_owned(),
                name: String::new(),
                namespace: Some(self.namespace.clone()),
                bound_role: None,
            },
            method,
            uri,
            representation: Representation::Metadata,
            body: Some((content_type, body.to_string().into_bytes())),
        };
        // One attempt: an Event is not worth another request to a server in trouble.
        self.kube.attempt(&call).await.map(drop)
    }
}

/// The time as Kubernetes' `MicroTime`: RFC 3339 with microseconds.
fn now() -> String {
    jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
        .to_string()
}

/// The longest prefix of whole characters that has at most `limit` bytes.
fn cut(text: &str, limit: usize) -> &str {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_note_is_cut_between_characters() {
        assert_eq!(cut("aä", 2), "a");
        assert_eq!(cut("aä", 3), "aä");
        assert_eq!(cut("", 3), "");
    }
}
