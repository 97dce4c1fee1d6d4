//! The findings as a person reads them, and as a program does. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::finding::{Finding, Severity, named};
use super::reason::Reason;
use crate::cli::output::one_line;

/// What doctor has found.
#[derive(Debug)]
pub struct Report {
    /// In the order of [`arrange`](super::finding::arrange).
    pub findings: Vec<Finding>,
    /// How many checks were made.
    pub checks: usize,
    /// What was not looked at, and why.
    pub skipped: Vec<(&'static str, String)>,
}

/// How many findings of one reason are shown in full.
const SHOWN: usize = 10;

/// The longest line of a paragraph, in characters.
const WIDTH: usize = 100;

/// The indentation of a paragraph below its subject.
const INDENT: &str = "  ";

impl Report {
    /// The gravest of the findings.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }

    /// A paragraph for each finding, its subject first.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut shown: BTreeMap<Reason, usize> = BTreeMap::new();
        for finding in &self.findings {
            let Finding { severity, reason, .. } = finding;
            let of_reason = shown.entry(*reason).or_default();
            *of_reason += 1;
            if *of_reason > SHOWN {
                continue;
            }
            // Writing to a String cannot fail.
            _ = writeln!(
                text,
                "{} ({}, {})",
                one_line(&named(&finding.subjects)),
                severity.word(),
                reason.word()
            );
            paragraph(&mut text, "", &finding.what);
            paragraph(&mut text, "Why it matters: ", &finding.why);
            paragraph(&mut text, "What to do: ", &finding.remedy);
            paragraph(&mut text, "Follows from it: ", &finding.consequences.join("; "));
            text.push('\n');
        }
        for (reason, found) in shown.into_iter().filter(|(_, found)| *found > SHOWN) {
            let more = found - SHOWN;
            _ = writeln!(text, "{more} more are {}: -o json shows all.\n", reason.word());
        }
        _ = writeln!(text, "{}", self.summary());
        for (part, why) in &self.skipped {
            _ = writeln!(text, "Not looked at: {part} ({})", one_line(why));
        }
        text
    }

    /// How much was found in how many checks.
    pub fn summary(&self) -> String {
        let count = |severity| {
            let found = self.findings.iter();
            found.filter(|finding| finding.severity == severity).count()
        };
        let words = [Severity::Fault, Severity::Warning, Severity::Note].map(|severity| {
            match (count(severity), severity.word()) {
                (0, _) => String::new(),
                (1, word) => format!("1 {word}"),
                (many, word) => format!("{many} {word}s"),
            }
        });
        let found: Vec<&str> = words
            .iter()
            .map(String::as_str)
            .filter(|word| !word.is_empty())
            .collect();
        let found = match found[..] {
            [] => "Nothing found".to_owned(),
            _ => format!("Found {}", found.join(", ")),
        };
        match self.checks {
            1 => format!("{found} in 1 check."),
            checks => format!("{found} in {checks} checks."),
        }
    }

    /// One JSON object. Its names, and the words of severities and reasons, stay as they are in later releases.
    pub fn document(&self) -> Value {
        let finding = |finding: &Finding| {
            json!({
                "subjects": finding.subjects,
                "severity": finding.severity.word(),
                "reason": finding.reason.word(),
                "what": finding.what,
                "why": finding.why,
                "whatToDo": finding.remedy,
                "consequences": finding.consequences,
            })
        };
        let skipped = |(part, why): &(&str, String)| json!({"part": part, "why": why});
        json!({
            "findings": self.findings.iter().map(finding).collect::<Vec<_>>(),
            "checks": self.checks,
            "skipped": self.skipped.iter().map(skipped).collect::<Vec<_>>(),
        })
    }
}

/// Adds a text under a title in lines of at most [`WIDTH`]; nothing without a text.
fn paragraph(into: &mut String, title: &str, text: &str) {
    if text.is_empty() {
        return;
    }
    let mut line = format!("{INDENT}{title}");
    let mut is_empty = true;
    for word in one_line(text).split(' ') {
        let width = line.chars().count() + 1 + word.chars().count();
        if !is_empty && width > WIDTH {
            into.push_str(line.trim_end());
            into.push('\n');
            line = INDENT.to_owned();
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    into.push_str(line.trim_end());
    into.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(findings: Vec<Finding>) -> Report {
        Report {
            findings,
            checks: 12,
            skipped: vec![("Kubernetes", "--no-kubernetes".to_owned())],
        }
    }

    #[test]
    fn a_finding_is_a_paragraph_with_its_subject_first() {
        let mut finding = Finding::fault(Reason::EtcdNoSpace, "etcd", "its quota is used up")
            .matters("etcd refuses every write")
            .remedy("compact and defragment, then clear the alarm");
        finding.consequences.push("election: no replica leads".to_owned());
        assert_eq!(
            report(vec![finding]).text(),
            "etcd (fault, EtcdNoSpace)\n  its quota is used up\n  Why it matters: etcd refuses every write\n  \
             What to do: compact and defragment, then clear the alarm\n  Follows from it: election: no replica leads\n\n\
             Found 1 fault in 12 checks.\nNot looked at: Kubernetes (--no-kubernetes)\n"
        );
    }

    #[test]
    fn lines_are_wrapped_and_no_stored_text_forges_one() {
        let long = "word ".repeat(60);
        let finding = Finding::note(Reason::RolesPaused, "a\nb", long.trim());
        let text = report(vec![finding]).text();
        assert!(text.starts_with("a\\nb (note, RolesPaused)\n"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert_eq!(text.matches("word").count(), 60);
    }

    #[test]
    fn of_many_findings_of_one_reason_some_are_shown_and_all_are_counted() {
        let of = |n: usize| {
            Finding::fault(
                Reason::MalformedRecord,
                format!("node/n{n}"),
                format!("fault {n}"),
            )
        };
        let many = report((0..13).map(of).collect());
        let text = many.text();
        assert_eq!(text.matches("(fault, MalformedRecord)").count(), SHOWN);
        assert!(
            text.contains("3 more are MalformedRecord: -o json shows all."),
            "{text}"
        );
        assert!(text.contains("Found 13 faults in 12 checks."), "{text}");
        assert_eq!(many.document()["findings"].as_array().unwrap().len(), 13);
    }

    #[test]
    fn without_a_finding_the_number_of_checks_says_that_there_were_some() {
        let none = report(Vec::new());
        assert_eq!(none.summary(), "Nothing found in 12 checks.");
        assert_eq!(none.worst(), None);
        assert_eq!(none.document()["checks"], 12);
        let two = report(vec![
            Finding::warning(Reason::EtcdRelease, "a", "b"),
            Finding::warning(Reason::EtcdRelease, "a", "c"),
        ]);
        assert_eq!(two.summary(), "Found 2 warnings in 12 checks.");
        assert_eq!(two.worst(), Some(Severity::Warning));
        let alone = Report {
            checks: 1,
            ..report(Vec::new())
        };
        assert_eq!(alone.summary(), "Nothing found in 1 check.");
    }
}
