//! The causes behind an error, in one line.
//!
//! An error's own text does not repeat its source. What shows an error to a person shows the chain.

use std::error::Error;

/// The text of an error and of its causes: `the outcome is unknown: etcd txn: no answer within 5s`.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    with_causes(&error.to_string(), error.source())
}

/// A text and the causes behind it. Leaves out a cause that the text holds already: errors of libraries often repeat their
/// source.
pub fn with_causes(text: &str, mut source: Option<&(dyn Error + 'static)>) -> String {
    let mut text = text.to_owned();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if text.is_empty() {
            text = cause_text;
        } else if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_appears_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Layer(&'static str, #[source] Option<Box<Layer>>);
        let refused = Layer("refused", None);
        let connect = Layer("connect: refused", Some(Box::new(refused)));
        assert_eq!(
            with_causes("transport", Some(&connect)),
            "transport: connect: refused"
        );
        assert_eq!(with_causes("", Some(&connect)), "connect: refused");
        assert_eq!(chain(&connect), "connect: refused");
    }
}
