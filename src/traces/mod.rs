//! Traces: the spans of a replica or an agent, exported over OTLP to a collector.
//!
//! - The **layer** makes a span of OTLP of each span of the program ([`crate::span`]) that ends, and puts it into a queue. It never
//!   waits: where the queue is full, the span is dropped and counted.
//! - The **exporter** sends what is queued, on a thread with a runtime of its own. A collector that is gone, hangs or answers
//!   nonsense holds up this thread alone, and the exit of the process for at most [`STOP_LIMIT`].

mod collector;
mod exporter;
mod layer;
mod queue;

pub use collector::Collector;
pub use exporter::{Exporter, STOP_LIMIT, start};
pub use layer::SpanLayer;

/// The messages of `proto/otlp/v1`, as they travel.
#[allow(
    missing_docs,
    clippy::all,
    rustdoc::all,
    reason = "generated; the .proto file holds the documentation"
)]
pub mod wire {
    tonic::include_proto!("opentelemetry.proto.collector.trace.v1");
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::layer::attribute;
    use super::wire::any_value::Value;
    use super::wire::span::SpanKind;
    use super::wire::status::StatusCode;
    use super::wire::{ExportTraceServiceRequest, Resource, ResourceSpans, ScopeSpans, Span, Status};

    /// Written down from the numbers in the definitions of OpenTelemetry, and not from the file here.
    #[test]
    fn the_bytes_of_a_request_are_those_of_the_specification() {
        let span = Span {
            trace_id: vec![1],
            span_id: vec![2],
            parent_span_id: vec![3],
            name: "n".to_owned(),
            kind: SpanKind::Client.into(),
            start_time_unix_nano: 1,
            end_time_unix_nano: 2,
            attributes: vec![attribute("k", Value::IntValue(7))],
            status: Some(Status {
                message: String::new(),
                code: StatusCode::Error.into(),
            }),
        };
        let request = ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(Resource::default()),
                scope_spans: vec![ScopeSpans {
                    scope: None,
                    spans: vec![span],
                }],
            }],
        };
        let expected: [&[u8]; 10] = [
            &[0x0a, 51, 0x0a, 0, 0x12, 47, 0x12, 45],
            &[0x0a, 1, 1, 0x12, 1, 2, 0x22, 1, 3],
            &[0x2a, 1, b'n'],
            &[0x30, 3],
            &[0x39, 1, 0, 0, 0, 0, 0, 0, 0],
            &[0x41, 2, 0, 0, 0, 0, 0, 0, 0],
            &[0x4a, 7, 0x0a, 1, b'k'],
            &[0x12, 2, 0x18, 7],
            &[0x7a, 2],
            &[0x18, 2],
        ];
        assert_eq!(request.encode_to_vec(), expected.concat());
    }
}
