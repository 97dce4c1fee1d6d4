//! Spans: what a replica or an agent does, for how long, and about which object. `--otlp-endpoint` exports them.
//!
//! Where nothing exports them, no subscriber takes them: a span then costs the comparison of two levels, and its texts are
//! not made.

use std::fmt::Display;

use tracing::field::Empty;
use tracing::instrument::Instrumented;
use tracing::{Instrument as _, Span, debug_span};

/// The target of every span. By it the exporter takes them, and the log leaves them out.
pub const TARGET: &str = "quorate::span";

/// The work of a leader in this term. Every span within it has the term as an attribute. The term itself is no span that is
/// exported, since a trace of days would be of no use: each pass begins a trace.
pub fn in_term<F: Future>(term: i64, work: F) -> Instrumented<F> {
    work.instrument(debug_span!(target: TARGET, "term", term))
}

/// A pass of a controller over all that it is about.
pub fn pass(controller: &'static str) -> Span {
    debug_span!(target: TARGET, "pass", called = controller, code = Empty)
}

/// A step of a controller: what it does, and to which object.
pub fn step(controller: &'static str, does: impl Display, object: impl Display) -> Span {
    debug_span!(target: TARGET, "step", called = controller, %does, %object, code = Empty)
}

/// Does `work` within the span, which then says how the work ended: `OK`, or another word for what went wrong.
pub async fn within<T>(
    span: Span,
    work: impl Future<Output = T>,
    code: impl FnOnce(&T) -> &'static str,
) -> T {
    let done = work.instrument(span.clone()).await;
    span.record("code", code(&done));
    done
}

/// A call of another program. It lasts until it is dropped, also where the call is cancelled.
#[derive(Debug)]
pub struct Call(Span);

impl Call {
    /// Begins now. `system` is the program, `operation` what is asked of it. Without an object the call is about that of its
    /// step.
    pub fn begin(system: &'static str, operation: &str, object: Option<&str>) -> Self {
        Self(debug_span!(target: TARGET, "call", called = operation, system, object, code = Empty))
    }

    /// Says how it ended: `OK`, or another word for what went wrong.
    pub fn ended(&self, code: &str) {
        self.0.record("code", code);
    }
}
