//! Processes whose wall clock is wrong.

use std::ffi::{OsStr, OsString};

use quorate_dev::clock;

use super::quorate::{Finished, Launch, quorate_with};

/// Replicas whose wall clock is off by `offset`, such as `+1d`. Their monotonic clock is right.
pub fn off_by(offset: &str, launch: Launch) -> Launch {
    variables(offset)
        .into_iter()
        .fold(launch, |launch, (name, value)| launch.variable(name, value))
}

/// Runs a command by a clock that is off by this.
pub async fn quorate_off_by<I: IntoIterator<Item: AsRef<OsStr>>>(offset: &str, args: I) -> Finished {
    let variables = variables(offset);
    let variables: Vec<(&str, &str)> = variables
        .iter()
        .map(|(name, value)| (*name, value.to_str().unwrap()))
        .collect();
    quorate_with(args, None, &variables).await
}

/// The variables that make it so for any program.
pub fn variables(offset: &str) -> [(&'static str, OsString); 3] {
    clock::off_by(offset).unwrap_or_else(|error| panic!("{error}"))
}
