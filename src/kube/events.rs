//! Kubernetes Events: what an operator should see with `kubectl events`. Aggregated, rate limited, and never in the way:
//! a publication that fails is logged and takes seconds at most.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use super::client::{Call, KubeClient, Representation, segment};
use super::error::{Action, Cause, Error, Operand};

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
    pub async fn publish(&mut self, notice: &Notice) {
        let step = self.series.take(notice, Instant::now());
        let publishing = async {
            match step {
                Step::Create => self.create(notice, 1).await,
                Step::Count { name, count } => match self.count(&name, notice, count).await {
                    // Events live for an hour by default.
                    Err(error) if matches!(error.cause, Cause::NotFound(_)) => {
                        self.create(notice, count).await
                    }
                    result => result,
                },
                Step::Hold => Ok(()),
            }
        };
        let Notice { reason, note, .. } = notice;
        match tokio::time::timeout(LIMIT, publishing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(reason, note, %error, "an Event could not be published"),
            Err(_) => tracing::warn!(reason, note, "an Event could not be published within {LIMIT:?}"),
        }
    }

    async fn create(&mut self, notice: &Notice, count: u32) -> Result<(), Error> {
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
        self.send(
            notice,
            Method::POST,
            self.collection(),
            "application/json",
            &event,
        )
        .await?;
        self.series.name(notice, name);
        Ok(())
    }

    async fn count(&self, name: &str, notice: &Notice, count: u32) -> Result<(), Error> {
        let patch = json!({"series": {"count": count, "lastObservedTime": now()}});
        let path = format!("{}/{}", self.collection(), segment(name));
        self.send(
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

    async fn send(
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

/// What to do with a notice.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Publish a new Event.
    Create,
    /// Count it on the Event of this name.
    Count { name: String, count: u32 },
    /// Nothing: counted here only, or too many.
    Hold,
}

/// Decides which notices become Events, which are counted on one, and which are held back.
#[derive(Debug)]
struct Series {
    running: HashMap<Notice, Running>,
    tokens: f64,
    refilled: Option<Instant>,
}

#[derive(Debug)]
struct Running {
    name: Option<String>,
    count: u32,
    seen: Instant,
    sent: Instant,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            running: HashMap::new(),
            tokens: BURST,
            refilled: None,
        }
    }
}

/// Silence after which the same notice is a new Event: as in client-go's event recorder.
const ENDS_AFTER: Duration = Duration::from_secs(6 * 60);

/// A repeated notice is counted on its Event at most this often.
const COUNT_EVERY: Duration = Duration::from_secs(60);

/// New Events at once, and seconds until another one may follow. client-go allows 25 and then one in five minutes.
const BURST: f64 = 25.0;
const REFILL_SECONDS: f64 = 10.0;

impl Series {
    fn take(&mut self, notice: &Notice, now: Instant) -> Step {
        self.running
            .retain(|_, running| now.saturating_duration_since(running.seen) < ENDS_AFTER);
        if let Some(running) = self.running.get_mut(notice) {
            running.count = running.count.saturating_add(1);
            running.seen = now;
            if now.saturating_duration_since(running.sent) < COUNT_EVERY {
                return Step::Hold;
            }
            if let Some(name) = &running.name {
                running.sent = now;
                return Step::Count {
                    name: name.clone(),
                    count: running.count,
                };
            }
        }
        let passed = self
            .refilled
            .map_or(Duration::ZERO, |then| now.saturating_duration_since(then));
        self.refilled = Some(now);
        self.tokens = (self.tokens + passed.as_secs_f64() / REFILL_SECONDS).min(BURST);
        if self.tokens < 1.0 {
            tracing::debug!(reason = notice.reason, "an Event is held back: too many");
            return Step::Hold;
        }
        self.tokens -= 1.0;
        let running = self.running.entry(notice.clone()).or_insert(Running {
            name: None,
            count: 1,
            seen: now,
            sent: now,
        });
        running.sent = now;
        Step::Create
    }

    fn name(&mut self, notice: &Notice, name: String) {
        if let Some(running) = self.running.get_mut(notice) {
            running.name = Some(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(note: &str) -> Notice {
        Notice {
            severity: Severity::Warning,
            reason: "GateBlocked",
            action: "Restrict",
            note: note.to_owned(),
        }
    }

    #[test]
    fn the_same_notice_is_counted_on_one_event() {
        let mut series = Series::default();
        let start = Instant::now();
        assert_eq!(series.take(&notice("a"), start), Step::Create);
        series.name(&notice("a"), "first".to_owned());
        assert_eq!(
            series.take(&notice("a"), start + Duration::from_secs(1)),
            Step::Hold
        );
        let counted = Step::Count {
            name: "first".to_owned(),
            count: 3,
        };
        assert_eq!(series.take(&notice("a"), start + COUNT_EVERY), counted);
        assert_eq!(series.take(&notice("b"), start + COUNT_EVERY), Step::Create);
    }

    #[test]
    fn after_a_long_silence_it_is_a_new_event() {
        let mut series = Series::default();
        let start = Instant::now();
        series.take(&notice("a"), start);
        series.name(&notice("a"), "first".to_owned());
        assert_eq!(series.take(&notice("a"), start + ENDS_AFTER), Step::Create);
    }

    #[test]
    fn an_event_that_could_not_be_published_is_tried_again_later_and_not_at_once() {
        let mut series = Series::default();
        let start = Instant::now();
        assert_eq!(series.take(&notice("a"), start), Step::Create);
        assert_eq!(
            series.take(&notice("a"), start + Duration::from_secs(1)),
            Step::Hold
        );
        assert_eq!(series.take(&notice("a"), start + COUNT_EVERY), Step::Create);
    }

    #[test]
    fn a_flood_of_different_notices_is_held_back() {
        let mut series = Series::default();
        let start = Instant::now();
        let created = (0..1_000)
            .filter(|n| series.take(&notice(&n.to_string()), start) == Step::Create)
            .count();
        assert_eq!(created, 25);
        let later = start + Duration::from_secs(20);
        let created = (1_000..2_000)
            .filter(|n| series.take(&notice(&n.to_string()), later) == Step::Create)
            .count();
        assert_eq!(created, 2);
    }

    #[test]
    fn a_long_note_is_cut_between_characters() {
        assert_eq!(cut("aä", 2), "a");
        assert_eq!(cut("aä", 3), "aä");
        assert_eq!(cut("", 3), "");
    }
}
