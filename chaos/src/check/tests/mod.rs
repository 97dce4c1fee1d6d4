//! A sound history passes every check, and each check fails on a copy of it that is doctored for it.

mod doctored;
mod excused;
mod sound;
mod story;

use std::collections::BTreeSet;

use super::{CHECKS, Past, Rule, check};
use crate::history::History;

/// The rules that a history breaks, by the checks that say so.
fn broken(history: &History) -> BTreeSet<(Rule, &'static str)> {
    let past = Past::of(history).unwrap();
    let checks = CHECKS.iter().filter(|(_, _, check)| !check(&past).is_empty());
    checks.map(|(rule, name, _)| (*rule, *name)).collect()
}

fn rendered(history: &History) -> String {
    let violations = check(history).unwrap();
    violations
        .iter()
        .map(|violation| violation.render(history))
        .collect()
}

#[test]
fn a_sound_history_passes_every_check() {
    let history = sound::story().finish();
    assert_eq!(rendered(&history), "");
}

#[test]
fn each_check_fails_on_the_history_that_is_doctored_for_it_and_no_other_check_does() {
    for (name, doctor) in doctored::all() {
        let mut story = sound::story();
        doctor(&mut story);
        let history = story.finish();
        let rule = CHECKS.iter().find(|(_, check, _)| *check == name).unwrap().0;
        assert_eq!(
            broken(&history),
            BTreeSet::from([(rule, name)]),
            "{}",
            rendered(&history)
        );
    }
}

#[test]
fn every_check_has_a_doctored_history() {
    let doctored: BTreeSet<&str> = doctored::all().map(|(name, _)| name).collect();
    let checks: BTreeSet<&str> = CHECKS.iter().map(|(_, name, _)| *name).collect();
    assert_eq!(doctored, checks);
}

#[test]
fn what_looks_like_a_fault_and_is_none_passes() {
    for (name, doctor) in excused::EXCUSED {
        let mut story = sound::story();
        doctor(&mut story);
        assert_eq!(rendered(&story.finish()), "", "{name}");
    }
}

#[test]
fn a_history_reads_back_as_it_was_written() {
    let history = sound::story().finish();
    let mut file = Vec::new();
    history.write(&mut file).unwrap();
    assert_eq!(History::read(file.as_slice()).unwrap(), history);
}

#[test]
fn a_line_that_is_no_event_is_named() {
    let mut file = Vec::new();
    sound::story().finish().write(&mut file).unwrap();
    file.extend(b"{\"at\":1}\n");
    let lines = file.iter().filter(|byte| **byte == b'\n').count();
    let error = History::read(file.as_slice()).unwrap_err().to_string();
    assert_eq!(error, format!("line {lines} is no event"));
    assert!(History::read(&b""[..]).unwrap_err().to_string().contains("empty"));
}
