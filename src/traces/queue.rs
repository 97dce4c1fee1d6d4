//! The spans that wait to be exported. Bounded: what does not fit is dropped, and counted.

use tokio::sync::mpsc;

use super::wire::Span;
use crate::metrics::Metrics;

/// Spans that wait at most: two megabytes at a usual kilobyte each, and four times that at most. A burst of a large pass fits.
const QUEUE: usize = 2048;

/// The end of the queue into which spans are put.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    spans: mpsc::Sender<Span>,
    metrics: Metrics,
}

impl Queue {
    /// A queue, and its other end.
    pub fn new(metrics: &Metrics) -> (Self, mpsc::Receiver<Span>) {
        let (spans, queued) = mpsc::channel(QUEUE);
        let metrics = metrics.clone();
        (Self { spans, metrics }, queued)
    }

    /// Adds a span, or drops it where there is no room. Never waits.
    pub fn add(&self, span: Span) {
        if self.spans.try_send(span).is_err() {
            self.metrics.trace_spans_dropped.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_counted_and_what_was_there_stays() {
        let metrics = Metrics::new("1.0.0");
        let (queue, mut queued) = Queue::new(&metrics);
        for number in 0..QUEUE + 3 {
            queue.add(Span {
                name: number.to_string(),
                ..Span::default()
            });
        }
        assert_eq!(metrics.trace_spans_dropped.get(), 3);
        assert_eq!(queued.len(), QUEUE);
        assert_eq!(queued.try_recv().unwrap().name, "0");
        queue.add(Span::default());
        drop(queued);
        queue.add(Span::default());
        assert_eq!(metrics.trace_spans_dropped.get(), 4, "the exporter is gone");
    }
}
