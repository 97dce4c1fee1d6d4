//! Replicas that wait at a named point of their code, so that a test can do there what would otherwise be a race.

use std::path::PathBuf;

use tempfile::TempDir;

use super::quorate::Launch;
use super::wait::{SOON, eventually};

/// A point at which one replica is held up, the first time that it gets there.
pub struct Hold {
    point: &'static str,
    directory: TempDir,
}

impl Hold {
    /// See `failpoint::pause_at` for the points.
    pub fn at(point: &'static str) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("quorate-test-")
            .tempdir()
            .unwrap();
        Self { point, directory }
    }

    /// What the replica is told.
    pub fn on(&self, launch: Launch) -> Launch {
        launch.flag(format!("--hold-at={}={}", self.point, self.file().display()))
    }

    /// Waits until the replica is held.
    pub async fn reached(&self) {
        let what = format!("a replica gets to {}", self.point);
        eventually(SOON, &what, async || match self.file().exists() {
            true => Ok(()),
            false => Err("it has not"),
        })
        .await;
    }

    /// Lets it go on.
    pub fn release(self) {
        std::fs::remove_file(self.file()).expect("the replica is held");
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("held")
    }
}
