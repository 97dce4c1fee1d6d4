//! What a person reads about a run that failed.

use std::fmt::Write;
use std::path::Path;

use crate::history::What;
use crate::run::{Options, Verdict};

/// Violations that are shown whole. More of them are seldom of another cause.
const SHOWN: usize = 3;

/// What is wrong, how to repeat it, and where everything is.
pub fn report(verdict: &Verdict, options: &Options) -> String {
    let mut text = format!("chaos: seed {} FAILED\n", options.seed);
    for violation in verdict.violations.iter().take(SHOWN) {
        let _ = writeln!(text, "\n{}", violation.render(&verdict.history));
    }
    if let Some(more) = verdict.violations.len().checked_sub(SHOWN + 1) {
        let _ = writeln!(text, "and {} more violations", more + 1);
    }
    if !verdict.written.is_empty() {
        text += "\nwritten to a cluster that was left alone:\n";
        for fault in &verdict.written {
            let _ = writeln!(text, "  {fault}");
        }
    }
    for event in &verdict.history.events {
        if let What::Stalled { until } = event.what {
            let _ = writeln!(
                text,
                "the harness did not run from {} to {until}: the machine was too busy",
                event.at
            );
        }
    }
    let _ = writeln!(text, "\njudged: {}", verdict.judged);
    let _ = writeln!(
        text,
        "\nhistory and logs: {}\nagain: {}",
        options.directory.display(),
        again(options)
    );
    text
}

/// The command that repeats a run.
pub fn again(options: &Options) -> String {
    let mut command = format!("make chaos SEED={} FAULTS={}", options.seed, options.faults);
    if options.faults == 0 {
        let _ = write!(command, " MINUTES={}", options.minutes);
    }
    let mut further = Vec::new();
    if !options.only.is_empty() {
        further.push(format!("--only={}", options.only.join(",")));
    }
    if options.pace != 1 {
        further.push(format!("--pace={}", options.pace));
    }
    if !options.kubernetes {
        further.push("--no-kubernetes".to_owned());
    }
    if !options.mutation.is_empty() {
        let program = options.programs.quorate.display();
        further.push(format!("--program={program} --mutation={}", options.mutation));
    }
    if !further.is_empty() {
        let _ = write!(command, " ARGS=\"{}\"", further.join(" "));
    }
    command
}

/// The directory of a run that passed is of no use, unless it is wanted.
///
/// # Errors
/// It cannot be removed.
pub fn remove(directory: &Path) -> std::io::Result<()> {
    std::fs::remove_dir_all(directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Calls, Judged, Rule, Violation};
    use crate::history::{At, Event, History, What};
    use crate::run::tests::{described, options};

    #[test]
    fn a_report_has_the_seed_the_command_the_excerpt_and_the_place() {
        let calm = Event {
            at: At::millis(1_500),
            what: What::Calm,
        };
        let stalled = Event {
            at: At::millis(2_000),
            what: What::Stalled {
                until: At::millis(9_000),
            },
        };
        let violation = Violation {
            rule: Rule::Inv(7),
            check: "networks are deleted marked and unused",
            sentence: "a network is gone that was used".to_owned(),
            events: vec![0],
        };
        let verdict = Verdict {
            history: History {
                run: described(),
                events: vec![calm, stalled],
            },
            violations: vec![violation; 5],
            judged: Judged {
                fenced: 12,
                members: Calls { all: 3, unknown: 1 },
                ..Judged::default()
            },
            written: vec!["/quorate/a was written".to_owned()],
        };
        let mut options = options();
        options.directory = "/var/chaos-1".into();
        let text = report(&verdict, &options);
        for part in [
            "seed 1 FAILED",
            "INV-7: a network is gone that was used",
            "1.500000 s",
            "and 2 more violations",
            "/quorate/a was written",
            "fenced writes: 12; changes of members: 3 (1 of unknown callers); CSI calls: 0;",
            "/var/chaos-1",
            "did not run from 2.000000 s to 9.000000 s",
            "make chaos SEED=1 FAULTS=0 MINUTES=1 ARGS=\"--no-kubernetes\"",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}
