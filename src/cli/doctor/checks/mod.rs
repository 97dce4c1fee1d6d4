//! The checks: from what was seen to what is wrong with it. Pure.

mod certificates;
mod checklist;
mod endpoints;
mod kubernetes;
mod members;
mod plugins;
mod records;
mod releases;
mod rights;
mod secrets;
mod settings;
mod subject;
mod work;

use super::finding::{Finding, Severity, arrange};
use super::reason::Reason;
use super::report::Report;
use super::seen::{KubernetesSeen, Seen};
use checklist::Checklist;

/// Makes every check that what was seen allows.
pub fn report(seen: &Seen) -> Report {
    let mut list = Checklist::default();
    let checks: [fn(&Seen, &mut Checklist); 9] = [
        endpoints::check,
        members::check,
        rights::check,
        records::check,
        secrets::check,
        work::check,
        certificates::check,
        kubernetes::check,
        plugins::check,
    ];
    for check in checks {
        check(seen, &mut list);
    }
    let mut skipped = Vec::new();
    if let Err(why) = &seen.store {
        let is_explained = |found: &Finding| found.severity == Severity::Fault;
        if !list.findings.iter().any(is_explained) {
            list.check(Some(unread(why)));
        }
        skipped.push(("what etcd holds", why.clone()));
    }
    if let KubernetesSeen::Skipped(why) = &seen.kubernetes {
        skipped.push(("Kubernetes", why.clone()));
    }
    if seen.authorities.is_empty() {
        skipped.push(("authorities", "--ca-dir is not given".to_owned()));
    }
    Report {
        findings: arrange(list.findings),
        checks: list.made,
        skipped,
    }
}

/// Each endpoint was well when it was looked at, and yet nothing could be read.
fn unread(why: &str) -> Finding {
    let what = format!("what it holds could not be read: {why}");
    Finding::warning(Reason::NotAnswered, "etcd", what)
        .matters("members, alarms, rights and records are not checked")
        .remedy("run doctor again; if it stays so, look at the log of etcd")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::fixtures::keys;

    #[test]
    fn an_etcd_that_cannot_be_read_is_found_although_its_endpoints_are_well() {
        let seen = Seen {
            now: jiff::Timestamp::UNIX_EPOCH,
            keys: keys(),
            logs_in: false,
            endpoints: Ok(Vec::new()),
            files: Vec::new(),
            store: Err("no answer within 2s".to_owned()),
            kubernetes: KubernetesSeen::Skipped("it is not configured".to_owned()),
            authorities: Vec::new(),
            keyring: crate::secrets::Keyring::default(),
        };
        assert_eq!(report(&seen).worst(), Some(Severity::Warning));
        let unusable = Seen {
            endpoints: Err("no endpoint".to_owned()),
            ..seen
        };
        let findings = report(&unusable).findings;
        assert!(
            findings.iter().all(|found| found.reason != Reason::NotAnswered),
            "it is explained"
        );
    }
}
