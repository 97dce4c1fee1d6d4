//! Makes spans of OTLP of the spans of the program.

use std::fmt::{Debug, Write as _};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;
use uuid::Uuid;

use super::queue::Queue;
use super::wire::any_value::Value;
use super::wire::span::SpanKind;
use super::wire::status::StatusCode;
use super::wire::{AnyValue, KeyValue, Span, Status};
use crate::span::TARGET;

/// The characters of an attribute or a name that are exported. Names of objects are shorter, as etcd's and Kubernetes' limits have it.
const LONGEST: usize = 256;

/// Takes the spans of the program, and no others, where [`SpanLayer::takes`] is its filter.
#[derive(Debug)]
pub struct SpanLayer {
    queue: Queue,
}

impl SpanLayer {
    pub(super) fn new(queue: Queue) -> Self {
        Self { queue }
    }

    /// Whether this is a span of the program. Events and spans of libraries are not exported.
    pub fn takes(metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target() == TARGET
    }
}

impl<S: Subscriber + for<'l> LookupSpan<'l>> Layer<S> for SpanLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let parent = span.parent();
        let around = parent
            .as_ref()
            .and_then(|parent| parent.extensions().get::<Open>().map(Open::within));
        let mut open = Open::begin(attributes.metadata().name(), around.unwrap_or_default());
        attributes.record(&mut open.said);
        span.extensions_mut().insert(open);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<Open>() {
            values.record(&mut open.said);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let open = span.extensions_mut().remove::<Open>();
        if let Some(closed) = open.and_then(Open::close) {
            self.queue.add(closed);
        }
    }
}

/// A span that has not ended.
#[derive(Debug)]
struct Open {
    /// `pass`, `step` or `call`; `term` for what is no span of OTLP.
    sort: &'static str,
    trace: Uuid,
    id: [u8; 8],
    parent: Option<[u8; 8]>,
    began: SystemTime,
    /// Of a clock that is never set.
    since: Instant,
    said: Said,
}

/// What a span has from the one around it.
#[derive(Debug, Default)]
struct Within {
    /// Its trace and its parent; none where the span begins a trace.
    parent: Option<(Uuid, [u8; 8])>,
    object: Option<String>,
    term: Option<i64>,
}

/// What a span says of itself.
#[derive(Debug, Default)]
struct Said {
    called: String,
    does: Option<String>,
    system: Option<String>,
    object: Option<String>,
    term: Option<i64>,
    code: Option<String>,
}

impl Open {
    fn begin(sort: &'static str, within: Within) -> Self {
        let (trace, parent) = match within.parent {
            Some((trace, parent)) => (trace, Some(parent)),
            None => (Uuid::new_v4(), None),
        };
        Self {
            sort,
            trace,
            id: span_id(),
            parent,
            began: SystemTime::now(),
            since: Instant::now(),
            said: Said {
                object: within.object,
                term: within.term,
                ..Said::default()
            },
        }
    }

    fn is_term(&self) -> bool {
        self.sort == "term"
    }

    /// What a span in this one has from it.
    fn within(&self) -> Within {
        Within {
            parent: (!self.is_term()).then_some((self.trace, self.id)),
            object: self.said.object.clone(),
            term: self.said.term,
        }
    }

    /// The span as it is exported; `None` for a term.
    fn close(self) -> Option<Span> {
        if self.is_term() {
            return None;
        }
        let Said {
            called,
            does,
            system,
            object,
            term,
            code,
        } = self.said;
        let is_failed = code.as_deref().is_some_and(|code| code != "OK");
        // The name says what is done and never about which object, so that a collector can group by it.
        let name = match &system {
            Some(system) => format!("{system} {called}"),
            None => format!("{} {called}", self.sort),
        };
        let kind = match system {
            Some(_) => SpanKind::Client,
            None => SpanKind::Internal,
        };
        let words = [
            ("quorate.object", object),
            ("quorate.does", does),
            ("quorate.system", system),
            ("quorate.code", code),
        ];
        let words = words.map(|(key, value)| (key, value.map(Value::StringValue)));
        let term = ("quorate.term", term.map(Value::IntValue));
        let attributes = [term].into_iter().chain(words);
        let attributes = attributes.filter_map(|(key, value)| Some(attribute(key, value?)));
        Some(Span {
            trace_id: self.trace.as_bytes().to_vec(),
            span_id: self.id.to_vec(),
            parent_span_id: self.parent.map(Vec::from).unwrap_or_default(),
            name,
            kind: kind.into(),
            start_time_unix_nano: nanos(self.began),
            end_time_unix_nano: nanos(self.began + self.since.elapsed()),
            attributes: attributes.collect(),
            status: is_failed.then(|| Status {
                message: String::new(),
                code: StatusCode::Error.into(),
            }),
        })
    }
}

/// An attribute.
pub(super) fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
    }
}

impl Visit for Said {
    fn record_i64(&mut self, field: &Field, value: i64) {
        if field.name() == "term" {
            self.term = Some(value);
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, short(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        // Writing to a String fails only where the value does; then its beginning has to do.
        let _ = write!(text, "{value:?}");
        self.set(field, short(&text));
    }
}

impl Said {
    fn set(&mut self, field: &Field, value: String) {
        match field.name() {
            "called" => self.called = value,
            "does" => self.does = Some(value),
            "system" => self.system = Some(value),
            "object" => self.object = Some(value),
            "code" => self.code = Some(value),
            _ => {}
        }
    }
}

/// The text, without what is beyond [`LONGEST`].
fn short(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

/// A random id. Not zero, which would be none: a bit of each UUID is set.
fn span_id() -> [u8; 8] {
    let [.., a, b, c, d, e, f, g, h] = Uuid::new_v4().into_bytes();
    [a, b, c, d, e, f, g, h]
}

/// Nanoseconds since 1970, which fit until 2554.
fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
