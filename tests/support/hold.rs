//! Replicas that wait at a failpoint, so that a test can act there without a race.

use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use super::directory::directory;
use super::quorate::Launch;
use super::wait::{SOON, eventually};

/// The limit until a replica is held: it may start, be elected, and take several steps before.
const HELD: Duration = SOON.saturating_mul(5);

/// A failpoint that holds a replica, the first time that it is reached.
pub struct Hold {
    point: &'static str,
    directory: TempDir,
}

impl Hold {
    /// See `failpoint::pause_at` for the points.
    pub fn at(point: &'static str) -> Self {
        let directory = directory();
        Self { point, directory }
    }

    /// Adds the flag that holds the replica.
    pub fn on(&self, launch: Launch) -> Launch {
        launch.flag(self.flag())
    }

    /// The flag that holds a program.
    pub fn flag(&self) -> String {
        format!("--hold-at={}={}", self.point, self.file().display())
    }

    /// Waits until the replica is held.
    pub async fn reached(&self) {
        let what = format!("a replica gets to {}", self.point);
        eventually(HELD, &what, async || match self.file().exists() {
            true => Ok(()),
            false => Err("it has not"),
        })
        .await;
    }

    /// Lets the replica continue.
    pub fn release(self) {
        std::fs::remove_file(self.file()).expect("the replica is held");
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("held")
    }
}
