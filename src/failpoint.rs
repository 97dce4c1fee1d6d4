//! Named points at which a fault run ends the process, to show that the next leader carries on from there, or loses a
//! reply, to show that this one does.
//!
//! Off unless the hidden flag `--crash-at POINT` names one; then [`hit`] aborts at that point, as SIGKILL would, and
//! [`loses`] says once that the reply got lost.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static ARMED: OnceLock<String> = OnceLock::new();
static LOST: AtomicBool = AtomicBool::new(false);

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

/// Whether the reply that just came is to count as lost: once, if this point is armed.
pub fn loses(point: &str) -> bool {
    let armed = ARMED.get().is_some_and(|armed| armed == point);
    let now = armed && !LOST.swap(true, Ordering::SeqCst);
    if now {
        eprintln!("failpoint {point}: losing the reply");
    }
    now
}
