//! The volumes of a node by state, as a gauge.

use crate::metrics::{Metrics, State as Label};

/// The state of one volume on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It is on its way to its path.
    Publishing,
    /// It is at its path.
    Published,
    /// It is on its way back.
    Unpublishing,
    /// A step failed, or cannot be taken.
    Blocked,
    /// A mount that is not the agent's is in its place.
    Foreign,
    /// A mount that no publication has.
    Stray,
}

impl State {
    /// Every state, and its word.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Publishing, "publishing"),
        (Self::Published, "published"),
        (Self::Unpublishing, "unpublishing"),
        (Self::Blocked, "blocked"),
        (Self::Foreign, "foreign"),
        (Self::Stray, "stray"),
    ];
}

/// Sets the gauge of each state.
pub(super) fn show(states: impl Iterator<Item = State>, metrics: &Metrics) {
    let mut counts = State::ALL.map(|(_, word)| (word, 0));
    for state in states {
        // In the order of `ALL`.
        counts[state as usize].1 += 1;
    }
    for (state, count) in counts {
        metrics.agent_volumes.get_or_create(&Label { state }).set(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_has_its_own_count() {
        for (at, (state, _)) in State::ALL.into_iter().enumerate() {
            assert_eq!(state as usize, at);
        }
        let metrics = Metrics::new("test");
        show(
            [State::Published, State::Stray, State::Published].into_iter(),
            &metrics,
        );
        let text = metrics.encode();
        for line in [
            "quorate_agent_volumes{state=\"published\"} 2",
            "quorate_agent_volumes{state=\"stray\"} 1",
            "quorate_agent_volumes{state=\"blocked\"} 0",
        ] {
            assert!(text.contains(line), "missing {line:?} in:\n{text}");
        }
        show([].into_iter(), &metrics);
        assert!(
            metrics
                .encode()
                .contains("quorate_agent_volumes{state=\"published\"} 0")
        );
    }
}
