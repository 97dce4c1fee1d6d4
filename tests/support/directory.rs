//! Temporary directories.

use tempfile::TempDir;

/// A directory that goes with the value.
pub fn directory() -> TempDir {
    tempfile::Builder::new()
        .prefix("quorate-test-")
        .tempdir()
        .unwrap()
}
