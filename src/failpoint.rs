//! Named points in the code where a test makes a replica abort, pause, or drop the reply of a call.
//!
//! All of them are off unless a hidden flag of `quorate run` arms one.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::lines;

static CRASH: OnceLock<String> = OnceLock::new();

static PAUSE: OnceLock<Pause> = OnceLock::new();

/// How long a point waits for its line on standard error, which tests look for: a busy machine may take a while.
const LINE_LIMIT: Duration = Duration::from_secs(10);

/// How often a paused point looks whether its file was removed.
const LOOK: Duration = Duration::from_millis(10);

/// A point that pauses, and the file that exists for as long as it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    point: String,
    file: PathBuf,
}

impl std::str::FromStr for Pause {
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

/// Makes [`abort_at`] abort the process at this point, as SIGKILL would, or [`drop_reply_at`] drop the reply there.
/// Only the first call of the process counts.
pub fn arm_crash(point: &str) {
    let _ = CRASH.set(point.to_owned());
}

/// Makes [`pause_at`] wait at a point: when the process reaches the point for the first time, it creates the file, and
/// continues once the file is removed. Only the first call of the process counts.
pub fn arm_pause(pause: Pause) {
    let _ = PAUSE.set(pause);
}

/// Aborts the process if this point was armed by [`arm_crash`].
pub fn abort_at(point: &str) {
    if CRASH.get().is_some_and(|armed| armed == point) {
        lines::abort_within(LINE_LIMIT, format_args!("failpoint {point}: aborting"));
    }
}

/// [`abort_at`]; then waits here if this point was armed by [`arm_pause`].
pub async fn pause_at(point: &str) {
    static PAUSED: AtomicBool = AtomicBool::new(false);
    abort_at(point);
    if let Some(Pause { file, .. }) = PAUSE.get().filter(|pause| pause.point == point)
        && !PAUSED.swap(true, Ordering::Relaxed)
    {
        wait_for_removal(point, file).await;
    }
}

async fn wait_for_removal(point: &str, file: &Path) {
    if let Err(error) = std::fs::write(file, point) {
        lines::stderr().line(format_args!(
            "failpoint {point}: not paused, because {} cannot be written: {error}",
            file.display()
        ));
        return;
    }
    while file.exists() {
        tokio::time::sleep(LOOK).await;
    }
}

/// Whether the caller must treat the reply that it just received as lost: true once, at the point that [`arm_crash`]
/// named.
pub fn drop_reply_at(point: &str) -> bool {
    static DROPPED: AtomicBool = AtomicBool::new(false);
    let armed = CRASH.get().is_some_and(|armed| armed == point);
    let now = armed && !DROPPED.swap(true, Ordering::Relaxed);
    if now {
        lines::stderr().line(format_args!("failpoint {point}: losing the reply"));
    }
    now
}
