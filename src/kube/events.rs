//! Kubernetes Events: what an operator should see with `kubectl events`. Aggregated, rate limited, and never in the way:
//! a publication that fails is logged and takes seconds at most.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use super::client::{Call, KubeClient, Representation, segment};
use super::error::{Cause, Error};
use super::operand::{Action, Operand};

mod series;

use series::{Series, Step};

/// The pod this process runs in, from the downward API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// `metadata.name`
    pub name: String,
    /// `metadata.namespace`
    pub namespace: String,
    /// `metadata.uid`
    pub uid: String,
}

/// How grave it is; Kubernetes knows these two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// For information.
    Normal,
    /// Something that someone may have to act on.
    Warning,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Notice {
    /// How grave it is.
    pub severity: Severity,
    /// Why, as one word for machines: `GateBlocked`.
    pub reason: &'static str,
    /// What was being done, as one word: `Reconcile`.
    pub action: &'static str,
    /// For people; cut at 1,024 bytes, as Kubernetes demands.
    pub note: String,
}

/// Publishes notices of one replica.
#[derive(Debug)]
pub struct Events {
    kube: KubeClient,
    regarding: Value,
    namespace: String,
    instance: String,
    series: Series,
}

/// For one Event to be published: whoever reports goes on after that, come what may.
const LIMIT: Duration = Duration::from_secs(3);

impl Events {
    /// `instance` is this replica's id. The Events regard the pod; outside of one the Namespace `kube-system`: it exists
    /// in every cluster, and Events about objects without a namespace have to lie in it (1.20 takes no other).
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
            // The longest that Kubernetes takes.
            instance: cut(instance, 128).to_owned(),
            series: Series::default(),
        }
    }

    /// Publishes a notice, counts it on the Event before, or holds it back. Takes seconds at most and never fails:
    /// what does not work is logged.
    ///
    /// Cancel safe: one that is cut off was not sent, and the next of its kind goes out in its place.
    pub async fn publish(&mut self, notice: &Notice) {
        let publishing = match self.series.take(notice, Instant::now()) {
            Step::Send { on, count } => self.send(notice, on, count),
            Step::Hold => return,
        };
        let Notice { reason, note, .. } = notice;
        match tokio::time::timeout(LIMIT, publishing).await {
            Ok(Ok(name)) => self.series.sent(notice, name, Instant::now()),
            Ok(Err(error)) => tracing::warn!(reason, note, %error, "an Event could not be published"),
            Err(_) => tracing::warn!(reason, note, "an Event could not be published within {LIMIT:?}"),
        }
    }

    /// The name of the Event that says it by now.
    async fn send(&self, notice: &Notice, on: Option<String>, count: u32) -> Result<String, Error> {
        let Some(name) = on else {
            return self.create(notice, count).await;
        };
        match self.count(&name, notice, count).await {
            Ok(()) => Ok(name),
            // Events live for an hour by default.
            Err(error) if matches!(error.cause, Cause::NotFound(_)) => self.create(notice, count).await,
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
        // Once: an Event is not worth a second request to a server that has trouble with the first.
        self.kube.attempt(&call).await.map(drop)
    }
}

/// RFC 3339 with microseconds, as Kubernetes' `MicroTime` wants it.
fn now() -> String {
    jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
        .to_string()
}

/// At most so many bytes of it, whole characters.
fn cut(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
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
