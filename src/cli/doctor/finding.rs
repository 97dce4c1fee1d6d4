//! What doctor finds, and the order in which it is read: causes first. Pure.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::reason::{Reason, causes_of, roots_of};

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing, and no reason to act.
    Note,
    /// It will matter: nothing is broken yet.
    Warning,
    /// Something does not work, or data is in danger.
    Fault,
}

impl Severity {
    /// As it is shown.
    pub fn word(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Fault => "fault",
        }
    }
}

/// Something that is wrong, or worth knowing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it concerns: `etcd member etcd-2`, `node/n1`. Several, where the same is wrong with each.
    pub subjects: Vec<String>,
    /// How much it matters.
    pub severity: Severity,
    /// What is wrong, as a word.
    pub reason: Reason,
    /// What is wrong, in a sentence.
    pub what: String,
    /// Why it matters.
    pub why: String,
    /// What to do.
    pub remedy: String,
    /// What was found besides and follows from it.
    pub consequences: Vec<String>,
}

impl Finding {
    /// Something that does not work, or endangers data.
    pub fn fault(reason: Reason, subject: impl ToString, what: impl ToString) -> Self {
        Self {
            subjects: vec![subject.to_string()],
            severity: Severity::Fault,
            reason,
            what: what.to_string(),
            why: String::new(),
            remedy: String::new(),
            consequences: Vec::new(),
        }
    }

    /// Something that will matter.
    pub fn warning(reason: Reason, subject: impl ToString, what: impl ToString) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::fault(reason, subject, what)
        }
    }

    /// Something worth knowing.
    pub fn note(reason: Reason, subject: impl ToString, what: impl ToString) -> Self {
        Self {
            severity: Severity::Note,
            ..Self::fault(reason, subject, what)
        }
    }

    /// Why it matters.
    #[must_use]
    pub fn matters(self, why: impl ToString) -> Self {
        let why = why.to_string();
        Self { why, ..self }
    }

    /// What to do.
    #[must_use]
    pub fn remedy(self, remedy: impl ToString) -> Self {
        let remedy = remedy.to_string();
        Self { remedy, ..self }
    }

    /// What it is, in a line.
    fn headline(&self) -> String {
        format!("{}: {}", named(&self.subjects), self.what)
    }

    fn place(&self) -> (std::cmp::Reverse<Severity>, Reason, &[String]) {
        (std::cmp::Reverse(self.severity), self.reason, &self.subjects)
    }
}

/// How many subjects a line names.
const NAMED: usize = 5;

/// The subjects in a line.
pub fn named(subjects: &[String]) -> String {
    let some = subjects.iter().take(NAMED).map(String::as_str);
    let some = some.collect::<Vec<_>>().join(", ");
    match subjects.len().saturating_sub(NAMED) {
        0 => some,
        more => format!("{some} and {more} more"),
    }
}

/// The findings as they are read: the same found of several subjects once, what follows from another with it, and the gravest
/// first.
pub fn arrange(findings: Vec<Finding>) -> Vec<Finding> {
    let mut all = merged(findings);
    all.sort_by(|a, b| a.place().cmp(&b.place()));
    let reasons = |least: Severity| -> BTreeSet<Reason> {
        let found = all.iter().filter(|finding| finding.severity >= least);
        found.map(|finding| finding.reason).collect()
    };
    let (faults, every) = (reasons(Severity::Fault), reasons(Severity::Note));
    // A fault follows only from a fault: a certificate that ends soon refuses no connection.
    let present = |finding: &Finding| match finding.severity {
        Severity::Fault => &faults,
        Severity::Warning | Severity::Note => &every,
    };
    let (mut roots, consequences): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|finding| causes_of(finding.reason, present(finding)).is_empty());
    for consequence in consequences {
        let causes = roots_of(consequence.reason, present(&consequence));
        match roots.iter_mut().find(|root| causes.contains(&root.reason)) {
            Some(root) => {
                root.severity = root.severity.max(consequence.severity);
                root.consequences.push(consequence.headline());
            }
            None => roots.push(consequence),
        }
    }
    roots.sort_by(|a, b| a.place().cmp(&b.place()));
    roots
}

/// The same found of several subjects, once.
fn merged(findings: Vec<Finding>) -> Vec<Finding> {
    let mut merged: BTreeMap<_, Finding> = BTreeMap::new();
    for finding in findings {
        let Finding { severity, reason, .. } = finding;
        let same = (severity, reason, finding.what.clone(), finding.remedy.clone());
        match merged.entry(same) {
            Entry::Occupied(mut known) => known.get_mut().subjects.extend(finding.subjects),
            Entry::Vacant(new) => _ = new.insert(finding),
        }
    }
    let sorted = |mut finding: Finding| {
        finding.subjects.sort();
        finding.subjects.dedup();
        finding
    };
    merged.into_values().map(sorted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(findings: &[Finding]) -> Vec<&str> {
        findings.iter().map(|finding| finding.reason.word()).collect()
    }

    #[test]
    fn the_gravest_comes_first_and_of_these_what_lies_nearer_to_the_ground() {
        let found = arrange(vec![
            Finding::note(Reason::RolesPaused, "roles", "paused"),
            Finding::fault(Reason::PluginNotReady, "plugin/a", "down"),
            Finding::warning(Reason::EtcdRelease, "etcd", "old"),
            Finding::fault(Reason::MalformedRecord, "node/n1", "garbage"),
        ]);
        assert_eq!(
            words(&found),
            ["MalformedRecord", "PluginNotReady", "EtcdRelease", "RolesPaused"]
        );
    }

    #[test]
    fn what_follows_from_another_finding_stands_with_it_over_several_steps() {
        let found = arrange(vec![
            Finding::fault(Reason::NoLeader, "election", "no replica leads"),
            Finding::warning(Reason::JoinWaits, "join of n4", "it waits"),
            Finding::fault(Reason::EtcdNoSpace, "etcd", "its quota is used up"),
            Finding::fault(Reason::PluginNotReady, "plugin/a", "down"),
        ]);
        assert_eq!(words(&found), ["EtcdNoSpace", "PluginNotReady"]);
        assert_eq!(
            found[0].consequences,
            ["election: no replica leads", "join of n4: it waits"]
        );
        let alone = arrange(vec![Finding::fault(
            Reason::NoLeader,
            "election",
            "no replica leads",
        )]);
        assert_eq!(words(&alone), ["NoLeader"]);
    }

    #[test]
    fn a_cause_is_as_grave_as_what_follows_from_it_and_a_fault_follows_only_from_a_fault() {
        let join = Finding::warning(Reason::JoinWaits, "join of n4", "it waits");
        let found = arrange(vec![join, Finding::note(Reason::RolesPaused, "roles", "paused")]);
        assert_eq!(words(&found), ["RolesPaused"]);
        assert_eq!(found[0].severity, Severity::Warning);
        let refused = || Finding::fault(Reason::EtcdTls, "endpoint", "refused");
        let soon = Finding::warning(Reason::EtcdCertificateEnds, "file", "it ends soon");
        let found = arrange(vec![soon, refused()]);
        assert_eq!(words(&found), ["EtcdTls", "EtcdCertificateEnds"]);
        let ended = Finding::fault(Reason::EtcdCertificateEnds, "file", "it has ended");
        assert_eq!(words(&arrange(vec![ended, refused()])), ["EtcdCertificateEnds"]);
    }

    #[test]
    fn the_same_of_several_subjects_is_found_once() {
        let of = |subject: String| Finding::fault(Reason::MalformedRecord, subject, "garbage");
        let found = arrange((1..=7).map(|n| of(format!("node/n{n}"))).collect());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].subjects.len(), 7);
        assert_eq!(
            found[0].headline(),
            "node/n1, node/n2, node/n3, node/n4, node/n5 and 2 more: garbage"
        );
    }
}
