//! `deploy/monitoring`: the rules and the dashboard name what the program publishes, promtool accepts them, and a real Prometheus
//! raises each alert by its fault.

mod dashboard;
mod faults;
mod live;
mod manifests;
mod prometheus;
mod promql;
mod published;
mod quiet;
mod rules;

use std::fs;
use std::path::PathBuf;

use quorate::cli::companion::find_on_path;
use quorate_dev::workspace::root;

/// A path below `deploy/monitoring`.
fn shipped(path: &str) -> PathBuf {
    root().join("deploy/monitoring").join(path)
}

/// The files of a folder of `deploy/monitoring`, in the order of their names.
fn files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(shipped(folder)).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{folder} is empty");
    files
}

/// A program of Debian's package of Prometheus.
fn program(name: &str) -> PathBuf {
    find_on_path(name).unwrap_or_else(|| panic!("{name} is not installed (Debian package prometheus)"))
}
