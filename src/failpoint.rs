//! Named points at which a fault run ends the process, to show that the next leader carries on from there.
//!
//! Off unless the hidden flag `--crash-at POINT` names one; then [`hit`] aborts at that point, as SIGKILL would.

use std::sync::OnceLock;

static ARMED: OnceLock<String> = OnceLock::new();

/// Arms one point for the life of the process. Later calls change nothing.
pub fn arm(point: &str) {
    let _ = ARMED.set(point.to_owned());
}

/// Ends the process here if this point is armed.
pub fn hit(point: &str) {
    if ARMED.get().is_some_and(|armed| armed == point) {
        eprintln!("failpoint {point}: aborting");
        std::process::abort();
    }
}
