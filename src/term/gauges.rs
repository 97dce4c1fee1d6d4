//! Gauges that say something only while their process leads.

use prometheus_client::metrics::gauge::Gauge;

/// Sets gauges back to 0 when it is dropped, so that a replica that no longer leads reports nothing of its last term.
#[derive(Debug)]
pub struct TermGauges(Vec<Gauge>);

impl TermGauges {
    /// Watches over these gauges until the end of the term.
    pub fn new(gauges: impl IntoIterator<Item = Gauge>) -> Self {
        Self(gauges.into_iter().collect())
    }
}

impl Drop for TermGauges {
    fn drop(&mut self) {
        for gauge in &self.0 {
            gauge.set(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_are_0_after_their_term_and_not_before() {
        let (a, b) = (Gauge::default(), Gauge::default());
        a.set(3);
        let term = TermGauges::new([a.clone(), b.clone()]);
        b.set(4);
        assert_eq!((a.get(), b.get()), (3, 4));
        drop(term);
        assert_eq!((a.get(), b.get()), (0, 0));
    }
}
