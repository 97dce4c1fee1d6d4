//! What is wrong with the reconciled state, and since when. Pure.

use jiff::Timestamp;

use super::status::Degraded;
use crate::store::object::time;

/// Why the state is degraded while nodes are in the way of a restriction.
const WAITING_FOR_NODES: &str = "WaitingForNodes";

/// Two troubles, of which each begins and ends by itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Troubles {
    /// The nodes in the way of a restriction.
    pub blockers: Option<Degraded>,
    /// Why the last pass over the resources failed. Only a pass that succeeds ends it, and none is made while nodes are in the way.
    pub failure: Option<Degraded>,
}

impl Troubles {
    /// The one that is shown. Nodes in the way come first: a pass follows them.
    pub fn shown(&self) -> Option<&Degraded> {
        self.blockers.as_ref().or(self.failure.as_ref())
    }

    /// These nodes are in the way of a restriction.
    pub fn waits_for_nodes(&mut self, message: &str, now: Timestamp) {
        set(&mut self.blockers, WAITING_FOR_NODES, message, now);
    }

    /// A pass over the resources failed. Returns whether the message is another than that of the pass before.
    pub fn fails(&mut self, reason: &str, message: &str, now: Timestamp) -> bool {
        set(&mut self.failure, reason, message, now)
    }
}

/// Sets a trouble. One that goes on keeps its beginning. Returns whether the message is another than before.
fn set(trouble: &mut Option<Degraded>, reason: &str, message: &str, now: Timestamp) -> bool {
    let before = trouble.take();
    let news = before.as_ref().map(|before| &*before.message) != Some(message);
    let since = before.map_or_else(|| time::rfc3339(now), |before| before.since);
    *trouble = Some(Degraded {
        reason: reason.to_owned(),
        message: message.to_owned(),
        since,
    });
    news
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// The reason that is shown, and its beginning.
    fn shown(troubles: &Troubles) -> Option<(&str, &str)> {
        let shown = troubles.shown()?;
        Some((&*shown.reason, &*shown.since))
    }

    #[test]
    fn an_outage_beneath_nodes_in_the_way_keeps_its_own_beginning_and_shows_again() {
        let mut troubles = Troubles::default();
        assert_eq!(shown(&troubles), None);
        assert!(troubles.fails("APIServerUnavailable", "no answer", at(0)));
        assert_eq!(
            shown(&troubles),
            Some(("APIServerUnavailable", "1970-01-01T00:00:00Z"))
        );
        troubles.waits_for_nodes("c2 runs 0.9.0", at(60));
        assert_eq!(
            shown(&troubles),
            Some((WAITING_FOR_NODES, "1970-01-01T00:01:00Z"))
        );
        troubles.blockers = None;
        assert_eq!(
            shown(&troubles),
            Some(("APIServerUnavailable", "1970-01-01T00:00:00Z"))
        );
    }

    #[test]
    fn a_trouble_that_goes_on_keeps_its_beginning_whatever_its_message() {
        let mut troubles = Troubles::default();
        assert!(troubles.fails("ObjectsFailed", "one object", at(0)));
        assert!(!troubles.fails("ObjectsFailed", "one object", at(1)));
        assert!(troubles.fails("APIServerUnavailable", "no answer", at(2)));
        assert_eq!(
            shown(&troubles),
            Some(("APIServerUnavailable", "1970-01-01T00:00:00Z"))
        );
        troubles.waits_for_nodes("c2 runs 0.9.0", at(3));
        troubles.waits_for_nodes("c3 runs 0.9.0", at(4));
        assert_eq!(
            shown(&troubles),
            Some((WAITING_FOR_NODES, "1970-01-01T00:00:03Z"))
        );
        assert!(
            !troubles.fails("APIServerUnavailable", "no answer", at(5)),
            "no news"
        );
    }
}
