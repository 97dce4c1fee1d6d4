//! Small bundles of several releases, on disk.

use std::fs;
use std::path::Path;

use quorate::release;
use quorate_dev::bundles;
use tempfile::TempDir;

use crate::support::directory::directory;

/// A release with its bundle: three ConfigMaps that name the release. One is the same object in all releases, one is
/// immutable and so replaced by each release, one is in this release alone.
pub struct Release {
    /// The release of the bundle.
    pub release: release::Release,
    /// The least release that must have reconciled before this one serves.
    pub min_reconciler: release::Release,
    /// The least release that is compatible with its state.
    pub min_apiserver: release::Release,
    directory: TempDir,
}

impl Release {
    /// Writes the bundle `name` of a release with these minimums.
    pub fn of(name: &str, release: &str, min_reconciler: &str, min_apiserver: &str) -> Self {
        let directory = directory();
        bundles::write(directory.path(), name, release, min_reconciler, min_apiserver)
            .unwrap_or_else(|error| panic!("{error}"));
        Self {
            release: release.parse().unwrap(),
            min_reconciler: min_reconciler.parse().unwrap(),
            min_apiserver: min_apiserver.parse().unwrap(),
            directory,
        }
    }

    /// Adds a file to the bundle.
    pub fn with_file(self, name: &str, text: &str) -> Self {
        fs::write(self.directory.path().join(name), text).unwrap();
        self
    }

    /// The directory of its bundle.
    pub fn bundle(&self) -> &Path {
        self.directory.path()
    }

    /// The status once the bundle is in place, in one line.
    pub fn done(&self) -> String {
        format!(
            "DONE by {}, minimum compatible release {}",
            self.release, self.min_apiserver
        )
    }

    /// Whether a status with this version and minimum keeps it from serving: the rules of WaitReady, written a second
    /// time.
    pub fn is_excluded_by(&self, version: release::Release, minimum: release::Release) -> bool {
        self.release < minimum || version < self.min_reconciler
    }
}
