//! Named points at which a fault run ends the process, to show that the next leader carries on from there; loses a reply,
//! to show that this one does; or holds it up, to force what others do in between.
//!
//! Off unless a hidden flag of `quorate run` names a point.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

static CRASH: OnceLock<String> = OnceLock::new();

static HOLD: OnceLock<Hold> = OnceLock::new();

/// Between two looks at whether the file that holds a point is still there.
const LOOK: Duration = Duration::from_millis(10);

/// A point that waits, and the file that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    point: String,
    file: PathBuf,
}

impl std::str::FromStr for Hold {
    type Err = &'static str;

    /// `POINT=FILE`
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (point, file) = text.split_once('=').ok_or("expected POINT=FILE")?;
        Ok(Self {
            point: point.to_owned(),
            file: file.into(),
        })
    }
}

/// Has [`hit`] abort at this point, as SIGKILL would, or [`loses`] lose the reply there. For the life of the process: later calls change nothing.
pub fn crash_at(point: &str) {
    let _ = CRASH.set(point.to_owned());
}

/// Has [`hold`] wait at a point: the first time that it gets there it makes the file, and goes on once someone removed
/// it. For the life of the process: later calls change nothing.
pub fn hold_at(hold: Hold) {
    let _ = HOLD.set(hold);
}

/// Ends the process here if it is to crash at this point.
pub fn hit(point: &str) {
    if CRASH.get().is_some_and(|armed| armed == point) {
        eprintln!("failpoint {point}: aborting");
        std::process::abort();
    }
}

/// [`hit`], and waits here if it is to wait at this point.
pub async fn hold(point: &str) {
    static HELD: AtomicBool = AtomicBool::new(false);
    hit(point);
    if let Some(Hold { file, .. }) = HOLD.get().filter(|hold| hold.point == point)
        && !HELD.swap(true, Ordering::Relaxed)
    {
        wait_for_removal(point, file).await;
    }
}

async fn wait_for_removal(point: &str, file: &Path) {
    if let Err(error) = std::fs::write(file, point) {
        eprintln!(
            "failpoint {point}: not held, as {} cannot be written: {error}",
            file.display()
        );
        return;
    }
    while file.exists() {
        tokio::time::sleep(LOOK).await;
    }
}

/// Whether the reply that just came is to count as lost: once, if it is to be lost at this point.
pub fn loses(point: &str) -> bool {
    static LOST: AtomicBool = AtomicBool::new(false);
    let armed = CRASH.get().is_some_and(|armed| armed == point);
    let now = armed && !LOST.swap(true, Ordering::Relaxed);
    if now {
        eprintln!("failpoint {point}: losing the reply");
    }
    now
}
