//! Sends spans to the collector, in batches, from a thread of its own.

use std::io;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tracing::{info, warn};

use super::collector::Collector;
use super::layer::{SpanLayer, attribute};
use super::queue::Queue;
use super::wire::any_value::Value;
use super::wire::trace_service_client::TraceServiceClient;
use super::wire::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, InstrumentationScope, KeyValue, Resource,
    ResourceSpans, ScopeSpans, Span,
};
use crate::metrics::Metrics;
use crate::own_thread;
use crate::retry::Delays;

/// For how long the last spans may delay the exit of the process.
pub const STOP_LIMIT: Duration = Duration::from_secs(2);

/// Spans in a request: half a megabyte at most, of the 4 MB that a server of gRPC takes.
const BATCH: usize = 512;

/// How long a batch waits for more spans after its first. A trace is seen within moments, and a busy replica makes few requests.
const GATHERING: Duration = Duration::from_millis(500);

/// The limit on a request.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// Between two attempts at a batch that the collector cannot take now.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(15);

/// The characters of a collector's message that are logged.
const SHOWN: usize = 200;

/// The thread that exports. Dropping it leaves the thread running.
#[derive(Debug)]
pub struct Exporter {
    stop: CancellationToken,
    ended: oneshot::Receiver<()>,
}

/// Starts to export the spans of this instance of a service. Connects with the first of them.
///
/// # Errors
/// If the system has no thread left, or TLS cannot be set up.
pub fn start(
    collector: &Collector,
    service: &str,
    instance: &str,
    metrics: &Metrics,
) -> io::Result<(SpanLayer, Exporter)> {
    let (queue, queued) = Queue::new(metrics);
    let endpoint = collector.endpoint().map_err(io::Error::other)?;
    let (stop, (ending, ended)) = (CancellationToken::new(), oneshot::channel());
    let (stopped, metrics, collector) = (stop.clone(), metrics.clone(), collector.to_string());
    let resource = resource(service, instance);
    own_thread::spawn("traces", move || {
        let export = Export {
            client: TraceServiceClient::new(endpoint.connect_lazy()),
            collector,
            resource,
            queued,
            batch: Vec::new(),
            is_failing: false,
            has_rejected: false,
            metrics,
        };
        Ok(async move {
            export.run(&stopped).await;
            // The receiver is gone where the process did not wait for this.
            let _ = ending.send(());
        })
    })?;
    Ok((SpanLayer::new(queue), Exporter { stop, ended }))
}

/// What the spans come from, in the names of OpenTelemetry's conventions.
fn resource(service: &str, instance: &str) -> Resource {
    let text = |key, value: &str| attribute(key, Value::StringValue(value.to_owned()));
    Resource {
        attributes: vec![
            text("service.name", service),
            text("service.instance.id", instance),
            text("service.version", env!("CARGO_PKG_VERSION")),
        ],
    }
}

impl Exporter {
    /// Exports what is queued, and ends. Waits for that for at most [`STOP_LIMIT`]: the rest is dropped.
    pub async fn stop(self) {
        self.stop.cancel();
        // Either way the caller goes on.
        let _ = timeout(STOP_LIMIT, self.ended).await;
    }
}

/// What the thread has.
struct Export {
    client: TraceServiceClient<Channel>,
    /// Its URL, for the log.
    collector: String,
    resource: Resource,
    queued: mpsc::Receiver<Span>,
    /// Spans that were taken from the queue and not exported yet.
    batch: Vec<Span>,
    /// Whether the last request failed, which was logged.
    is_failing: bool,
    /// Whether it has rejected spans, which was logged.
    has_rejected: bool,
    metrics: Metrics,
}

impl Export {
    async fn run(mut self, stop: &CancellationToken) {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.export_on() => {}
        }
        // What a request that was cut short has sent is sent again: a collector knows a span by its id.
        loop {
            self.fill();
            if self.batch.is_empty() || self.send().await.is_err() {
                return;
            }
            self.batch.clear();
        }
    }

    /// Exports without an end. Safe to cancel.
    async fn export_on(&mut self) {
        let mut delays = Delays::new(FIRST_DELAY, LONGEST_DELAY);
        loop {
            self.gather().await;
            match self.send().await {
                Ok(rejected) => {
                    delays.reset();
                    self.note_success();
                    self.note_rejection(&rejected);
                    self.batch.clear();
                }
                Err(status) => {
                    self.note_failure(&status);
                    if !may_pass(status.code()) {
                        self.drop_spans(self.batch.len());
                        self.batch.clear();
                    }
                    // Meanwhile the queue fills, and what has no room in it is dropped.
                    delays.wait().await;
                }
            }
        }
    }

    /// Waits for spans, and a moment for more of them. Safe to cancel.
    async fn gather(&mut self) {
        if self.batch.is_empty() && self.queued.recv_many(&mut self.batch, BATCH).await == 0 {
            // Nothing can come any more. The stop ends this.
            std::future::pending().await
        }
        if self.batch.len() < BATCH {
            tokio::time::sleep(GATHERING).await;
            self.fill();
        }
    }

    /// Adds what is queued to the batch, as far as it has room.
    fn fill(&mut self) {
        while self.batch.len() < BATCH
            && let Ok(span) = self.queued.try_recv()
        {
            self.batch.push(span);
        }
    }

    /// Sends the batch once. Returns what of it the collector has rejected.
    async fn send(&mut self) -> Result<ExportTracePartialSuccess, Status> {
        let request = request(self.resource.attributes.clone(), self.batch.clone());
        let unanswered = |_| {
            Err(Status::deadline_exceeded(format!(
                "no answer within {CALL_LIMIT:?}"
            )))
        };
        let answer = timeout(CALL_LIMIT, self.client.export(request)).await;
        let answer = answer.unwrap_or_else(unanswered)?.into_inner();
        Ok(answer.partial_success.unwrap_or_default())
    }

    fn drop_spans(&self, count: usize) {
        self.metrics.trace_spans_dropped.inc_by(count as u64);
    }

    /// Logs the first failure in a row; the metric counts what is lost.
    fn note_failure(&mut self, status: &Status) {
        if !std::mem::replace(&mut self.is_failing, true) {
            let message = shown(status.message());
            warn!(
                "the collector {} does not take traces, and spans are dropped once the queue is full: {:?}: {message:?}",
                self.collector,
                status.code()
            );
        }
    }

    /// Counts the spans that were rejected, and logs why the first of them were.
    fn note_rejection(&mut self, rejected: &ExportTracePartialSuccess) {
        // A count beyond the batch is nonsense.
        let spans = usize::try_from(rejected.rejected_spans).unwrap_or(0);
        let spans = spans.min(self.batch.len());
        self.drop_spans(spans);
        if spans > 0 && !std::mem::replace(&mut self.has_rejected, true) {
            warn!(
                "the collector {} rejects spans, which are dropped: {:?}; this is logged once, and a metric counts all of them",
                self.collector,
                shown(&rejected.error_message)
            );
        }
    }

    fn note_success(&mut self) {
        if std::mem::take(&mut self.is_failing) {
            info!("the collector {} takes traces again", self.collector);
        }
    }
}

/// The beginning of a collector's message.
fn shown(message: &str) -> String {
    message.chars().take(SHOWN).collect()
}

fn request(attributes: Vec<KeyValue>, spans: Vec<Span>) -> ExportTraceServiceRequest {
    let scope = InstrumentationScope {
        name: "quorate".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource { attributes }),
            scope_spans: vec![ScopeSpans {
                scope: Some(scope),
                spans,
            }],
        }],
    }
}

/// Whether the same request may succeed later, as the specification of OTLP has it.
fn may_pass(code: Code) -> bool {
    match code {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::ResourceExhausted
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss => true,
        Code::Ok
        | Code::Unknown
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::Unimplemented
        | Code::Internal
        | Code::Unauthenticated => false,
    }
}
