//! A collector of traces: a server that speaks OTLP over gRPC, and keeps the spans that it gets.

use std::sync::{Arc, Mutex};

use futures::stream::unfold;
use quorate_dev::otlp::any_value::Value;
use quorate_dev::otlp::trace_service_server::{TraceService, TraceServiceServer};
use quorate_dev::otlp::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse, KeyValue, Span,
};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

use super::wait::{SOON, eventually};

/// What a collector does with what it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// Keeps it.
    Takes,
    /// Answers with this code.
    Refuses(Code),
    /// Says that it rejects every span.
    Rejects,
    /// Never answers.
    Hangs,
}

/// A collector. It ends with this value.
pub struct Collector {
    pub url: String,
    service: Service,
    _server: JoinSet<()>,
}

#[derive(Clone)]
struct Service {
    does: Arc<Mutex<Does>>,
    requests: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
}

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let does = *self.does.lock().unwrap();
        let request = request.into_inner();
        let count = spans_of(&request).count();
        if does != Does::Rejects {
            self.requests.lock().unwrap().push(request);
        }
        let rejected = |count: usize| ExportTracePartialSuccess {
            rejected_spans: i64::try_from(count).unwrap(),
            error_message: "no room".to_owned(),
        };
        match does {
            Does::Takes => Ok(Response::new(ExportTraceServiceResponse::default())),
            Does::Rejects => Ok(Response::new(ExportTraceServiceResponse {
                partial_success: Some(rejected(count)),
            })),
            Does::Refuses(code) => Err(Status::new(code, "on purpose")),
            Does::Hangs => std::future::pending().await,
        }
    }
}

fn spans_of(request: &ExportTraceServiceRequest) -> impl Iterator<Item = &Span> {
    let scopes = request
        .resource_spans
        .iter()
        .flat_map(|resource| &resource.scope_spans);
    scopes.flat_map(|scope| &scope.spans)
}

impl Collector {
    /// One that keeps what it gets.
    pub async fn start() -> Self {
        Self::that(Does::Takes).await
    }

    /// One that does this.
    pub async fn that(does: Does) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let service = Service {
            does: Arc::new(Mutex::new(does)),
            requests: Arc::default(),
        };
        let connections = unfold(listener, |listener: TcpListener| async move {
            let connection = listener.accept().await.map(|(stream, _)| stream);
            Some((connection, listener))
        });
        let router = Server::builder().add_service(TraceServiceServer::new(service.clone()));
        let mut server = JoinSet::new();
        server.spawn(async move { router.serve_with_incoming(connections).await.unwrap() });
        Self {
            url,
            service,
            _server: server,
        }
    }

    /// From now on it does this.
    pub fn does(&self, does: Does) {
        *self.service.does.lock().unwrap() = does;
    }

    /// The flag of a replica that exports to it.
    pub fn flag(&self) -> String {
        format!("--otlp-endpoint={}", self.url)
    }

    /// How many requests it got.
    pub fn requests(&self) -> usize {
        self.service.requests.lock().unwrap().len()
    }

    /// Everything that it got.
    pub fn spans(&self) -> Spans {
        let requests = self.service.requests.lock().unwrap();
        Spans(requests.iter().flat_map(spans_of).cloned().collect())
    }

    /// What the spans come from, as the last request says.
    pub fn resource(&self) -> Vec<KeyValue> {
        let requests = self.service.requests.lock().unwrap();
        let last = requests.last().and_then(|request| request.resource_spans.first());
        let resource = last.and_then(|spans| spans.resource.clone());
        resource.unwrap_or_default().attributes
    }

    /// Waits until it has spans in which `find` finds what it looks for.
    pub async fn finds<T>(&self, what: &str, find: impl Fn(&Spans) -> Option<T>) -> T {
        eventually(SOON, what, async || {
            let spans = self.spans();
            find(&spans).ok_or_else(|| format!("{:?}", spans.names()))
        })
        .await
    }
}

/// Spans that a collector got.
pub struct Spans(pub Vec<Span>);

impl Spans {
    /// Those with this name.
    pub fn named(&self, name: &str) -> impl Iterator<Item = &Span> {
        self.0.iter().filter(move |span| span.name == name)
    }

    /// The span around this one. Panics where it is in another trace.
    pub fn parent(&self, span: &Span) -> Option<&Span> {
        let parent = self.0.iter().find(|other| other.span_id == span.parent_span_id)?;
        assert_eq!(parent.trace_id, span.trace_id, "{span:?} in {parent:?}");
        Some(parent)
    }

    /// Every name once, to be shown.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.0.iter().map(|span| &*span.name).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// A text among attributes; empty without one.
pub fn text<'s>(attributes: &'s [KeyValue], key: &str) -> &'s str {
    match value(attributes, key) {
        Some(Value::StringValue(text)) => text,
        None => "",
        Some(other) => panic!("{key} is {other:?}"),
    }
}

/// The object that a span is about; empty without one.
pub fn object(span: &Span) -> &str {
    text(&span.attributes, "quorate.object")
}

/// The term of a span.
pub fn term(span: &Span) -> Option<i64> {
    match value(&span.attributes, "quorate.term")? {
        Value::IntValue(term) => Some(*term),
        other => panic!("the term is {other:?}"),
    }
}

fn value<'s>(attributes: &'s [KeyValue], key: &str) -> Option<&'s Value> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    found.value.as_ref()?.value.as_ref()
}
