//! The machine that a result was measured on.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use quorate::cli::companion::find_on_path;
use quorate_dev::apiserver;

/// The machine, the commit and the servers, as a list in Markdown.
pub fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let model = field("/proc/cpuinfo", "model name");
    let memory = field("/proc/meminfo", "MemTotal")
        .split_whitespace()
        .next()
        .and_then(|kib| kib.parse::<f64>().ok())
        .map_or("unknown".to_owned(), |kib| {
            format!("{:.1} GiB", kib / 1024.0 / 1024.0)
        });
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("unknown").to_owned();
    format!(
        "- machine: {cores} cores ({model}), {memory} of memory, load {load} before\n- commit: {}\n- servers: {}, {}; {}\n",
        commit(),
        version(find_on_path("etcd"), &["--version"], "etcd"),
        version(apiserver::find(), &["--version"], "kube-apiserver"),
        version(find_on_path("kubectl"), &["version", "--client"], "kubectl"),
    )
}

fn field(file: &str, name: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))
        .map_or("unknown".to_owned(), |value| value.trim().to_owned())
}

fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(text)
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    let changed =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| !text.is_empty());
    commit + if changed { " with changes" } else { "" }
}

/// The version: the last word of the first line in the output of all three programs.
fn version(program: Option<PathBuf>, args: &[&str], name: &str) -> String {
    let output = program.and_then(|program| Command::new(program).args(args).output().ok());
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let word = text
        .as_ref()
        .and_then(|text| text.lines().next()?.split_whitespace().last());
    format!("{name} {}", word.unwrap_or("not found"))
}
