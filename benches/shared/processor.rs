//! The processor time of a process.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// The processor time of all threads so far.
pub fn processor_time(pid: i32) -> Result<Duration> {
    let mut nanoseconds = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let file = task?.path().join("schedstat");
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let first = text.split(' ').next().unwrap_or_default();
        nanoseconds += first.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}
