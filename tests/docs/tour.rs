//! The commands of README.md and docs/tour.md, run one after the other on a cluster as `make run` starts it.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use quorate_dev::workspace::root;
use regex::Regex;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::console::{Manual, Step, normalise};
use super::{expect_manual, read, updating};
use crate::dev::started::Dev;
use crate::support::directory::directory;
use crate::support::kubernetes;
use crate::support::quorate::binary;
use crate::support::wait::SOON;

/// A command that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// The marker of a command that runs on while the next ones are typed.
const OWN_TERMINAL: &str = "# in a terminal of its own";

/// Commands that only read. What they show may take a moment to become true, so they are repeated until it is.
const READS: [&str; 7] = [
    "quorate get ",
    "quorate describe ",
    "quorate status",
    "quorate wait-ready",
    "etcdctl get ",
    "kubectl get ",
    "tail ",
];

/// A shell on a running cluster.
struct Terminal {
    dev: Dev,
    directory: TempDir,
    /// The lines that `make run` prints to be pasted into a shell.
    exports: String,
    /// What the manual shows, and what it is on this cluster: addresses, directories.
    names: Vec<(String, String)>,
    last_code: i32,
    background: Vec<Child>,
}

impl Terminal {
    /// Starts the cluster of `make run ARGS="…"`.
    async fn start(args: &str) -> Self {
        let args: Vec<&str> = args.split_whitespace().collect();
        let mut dev = Dev::start(&args);
        dev.wait_for("Ctrl-C stops everything").await;
        let output = dev.output();
        let exports = output
            .lines()
            .filter(|line| line.trim_start().starts_with("export "));
        Self {
            exports: exports.map(|line| format!("{}\n", line.trim())).collect(),
            dev,
            directory: directory(),
            names: Vec::new(),
            last_code: 0,
            background: Vec::new(),
        }
    }

    /// Learns the names of this cluster for those in the manual's output of `make run`.
    fn learn_names(&mut self, shown: &str) {
        for pattern in [
            r"([^\s=]*quorate-dev-[A-Za-z0-9]+)",
            r"etcd +serves on (\S+)",
            r"ready on (https\S+)",
            r"--peer-url (\S+)",
            r"--client-url (\S+)",
        ] {
            let pattern = Regex::new(pattern).unwrap();
            let find = |text: &str| Some(pattern.captures(text)?[1].to_owned());
            if let (Some(shown), Some(actual)) = (find(shown), find(&self.dev.output())) {
                self.names.push((shown, actual));
            }
        }
    }

    fn replace(text: &str, names: impl Iterator<Item = (impl AsRef<str>, impl AsRef<str>)>) -> String {
        names.fold(text.to_owned(), |text, (from, to)| {
            text.replace(from.as_ref(), to.as_ref())
        })
    }

    /// The text with the names of the manual, and without paths of this machine.
    fn in_the_manuals_names(&self, text: &str) -> String {
        let text = Self::replace(text, self.names.iter().map(|(shown, actual)| (actual, shown)));
        let text = text.replace(&root().display().to_string(), "~/quorate");
        match std::env::var("HOME") {
            Ok(home) if home.len() > 1 => text.replace(&home, "~"),
            _ => text,
        }
    }

    /// Runs a step until its output is as shown, or once if it does more than read. Returns the output in the names of the
    /// manual.
    async fn output_of(&mut self, step: &Step) -> String {
        let reads = READS.iter().any(|read| step.command.starts_with(read));
        // An output that is about to be replaced may never become as shown.
        let limit = if updating() { Duration::from_secs(4) } else { SOON };
        let deadline = tokio::time::Instant::now() + limit;
        loop {
            let output = self.run(&step.command).await;
            let output = self.in_the_manuals_names(&output);
            if is_as_shown(step, &output) || !reads || tokio::time::Instant::now() >= deadline {
                return output;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn run(&mut self, command: &str) -> String {
        let typed = Self::replace(command, self.names.iter().map(|(shown, actual)| (shown, actual)));
        let in_background = typed.contains(OWN_TERMINAL);
        let (exec, stdout) = match in_background {
            true => ("exec ", Stdio::null()),
            false => ("", Stdio::piped()),
        };
        let (exports, code) = (&self.exports, self.last_code);
        let script = format!("exec 2>&1\n{exports}(exit {code})\n{exec}{typed}\n");
        let mut shell = Command::new("bash");
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("QUORATE_") {
                shell.env_remove(name);
            }
        }
        let child = shell
            .args(["-c", &script])
            .current_dir(&self.directory)
            .env("TMPDIR", self.directory.path())
            .env("ETCDCTL_API", "3")
            .stdin(Stdio::null())
            .stdout(stdout)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        if in_background {
            self.background.push(child);
            return String::new();
        }
        let finished = tokio::time::timeout(LIMIT, child.wait_with_output()).await;
        let finished = finished
            .unwrap_or_else(|_| panic!("{typed} does not end"))
            .unwrap();
        self.last_code = finished.status.code().unwrap();
        String::from_utf8(finished.stdout).unwrap()
    }
}

/// Whether a step printed what the manual shows. A command that waits may report its progress.
fn is_as_shown(step: &Step, output: &str) -> bool {
    let waits = step.command.contains("--wait");
    let result = |text: &str| {
        let is_progress = |line: &&str| line.starts_with("waiting: ") || line.contains(": held back by ");
        let lines = normalise(text);
        let lines = lines.lines().filter(|line| !(waits && is_progress(line)));
        lines.map(|line| format!("{line}\n")).collect::<String>()
    };
    result(output) == result(&step.output)
}

/// Runs every command of the manual, and compares the outputs.
async fn follow(file: &str) {
    let file = Path::new(file);
    let _turn = kubernetes::turn().await;
    let mut manual = Manual::parse(&read(file));
    let make_run = Regex::new(r#"^make run(?: ARGS="?([^"]*)"?)?$"#).unwrap();
    let steps: VecDeque<&mut Step> = manual.steps().collect();
    let first = steps.front().and_then(|step| make_run.captures(&step.command));
    let args = first.and_then(|found| Some(found.get(1)?.as_str().to_owned()));
    let mut terminal = Terminal::start(&args.unwrap_or_default()).await;
    let (mut faults, mut run) = (String::new(), 0);
    for step in steps {
        let output = if make_run.is_match(&step.command) {
            terminal.learn_names(&step.output);
            terminal.in_the_manuals_names(&terminal.dev.output())
        } else {
            terminal.output_of(step).await
        };
        run += 1;
        if !is_as_shown(step, &output) {
            let Step {
                line,
                command,
                output: shown,
            } = &*step;
            let _ = writeln!(
                faults,
                "line {line}: $ {command}\nshown:\n{shown}printed:\n{output}"
            );
            step.output = output;
        }
    }
    assert!(run > 5, "{} has only {run} commands", file.display());
    expect_manual(file, &manual.render(), &faults);
}

#[tokio::test]
async fn the_commands_of_the_readme_print_what_it_shows() {
    assert!(binary().exists());
    follow("README.md").await;
}

#[tokio::test]
async fn the_commands_of_the_tour_print_what_it_shows() {
    follow("docs/tour.md").await;
}
