//! Who leads, when the next one does, and that nobody else writes as the leader.

mod candidates;
mod fence;
mod takeover;
