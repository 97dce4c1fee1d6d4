//! What members were started with: quotas and flags, as far as they can be seen. Pure.

use std::collections::BTreeMap;

use super::checklist::Checklist;
use super::subject::subject;
use crate::cli::doctor::finding::Finding;
use crate::cli::doctor::reason::Reason;
use crate::cli::doctor::seen::{Seen, StoreSeen};
use crate::cli::output::bytes;
use crate::etcd::MemberId;
use crate::etcd::checkup::{EndpointSeen, HttpSeen};
use crate::etcd::members::Status;
use crate::roles::membership::{Member, Membership};

/// The part of its quota, in percent, that a database may take.
const NEARLY_FULL: u64 = 80;

/// Checks what each member was started with.
pub fn check(seen: &Seen, store: &StoreSeen, membership: &Membership, list: &mut Checklist) {
    let pages = pages(seen, store);
    for member in membership.listed() {
        let (Some(status), Some(page)) = (member.evidence.status.answer(), pages.get(&member.id)) else {
            continue;
        };
        list.check(size(member, status, page));
        list.check(unchecked(member, page));
    }
    list.check(short_lease(store, &pages));
}

/// What each member says over HTTP.
fn pages<'s>(seen: &'s Seen, store: &'s StoreSeen) -> BTreeMap<MemberId, &'s HttpSeen> {
    let endpoints = seen.endpoints.iter().flatten().chain(&store.members);
    let page = |of: &'s EndpointSeen| Some((of.answer.as_ref().ok()?.member?, &of.http));
    endpoints.filter_map(page).collect()
}

fn size(member: &Member, status: &Status, page: &HttpSeen) -> Option<Finding> {
    let quota = page.quota?;
    let percent = status.db_size.saturating_mul(100) / quota;
    if percent < NEARLY_FULL {
        return None;
    }
    let remedy = match status.db_in_use.saturating_mul(2) < status.db_size {
        true => {
            "most of the file is free: etcdctl defrag gives it back, one member after the other, the raft leader last"
        }
        false => {
            "compact old revisions (--auto-compaction-retention) and defragment, or raise --quota-backend-bytes on every member; \
             etcd recommends 8 GiB at most"
        }
    };
    Some(
        Finding::warning(
            Reason::EtcdNearlyFull,
            subject(member),
            format!(
                "its database has {} of the {} that it may have ({percent} %), of which {} are in use",
                bytes(status.db_size),
                bytes(quota),
                bytes(status.db_in_use)
            ),
        )
        .matters("once the quota is used up, etcd refuses every write of the whole cluster (NOSPACE)")
        .remedy(remedy),
    )
}

/// The value of a flag, as `--name=value` or in the word after it.
fn flag<'f>(flags: &'f [String], name: &str) -> Option<&'f str> {
    let is_it = |word: &str| word.trim_start_matches('-') == name && word.starts_with('-');
    flags
        .iter()
        .enumerate()
        .rev()
        .find_map(|(at, word)| match word.split_once('=') {
            Some((flag, value)) => is_it(flag).then_some(value),
            None => is_it(word).then(|| flags.get(at + 1).map_or("", String::as_str)),
        })
}

fn unchecked(member: &Member, page: &HttpSeen) -> Option<Finding> {
    (flag(&page.flags, "strict-reconfig-check") == Some("false")).then(|| {
        Finding::warning(
            Reason::EtcdUnchecked,
            subject(member),
            "it was started with --strict-reconfig-check=false",
        )
        .matters(
            "etcd carries out a change of its members that costs it the quorum; Quorate's own checks remain",
        )
        .remedy("start it without that flag; true is the default")
    })
}

/// How many election timeouts of etcd a lease should last at least. After the loss of its raft leader etcd elects another within two
/// of them, twice that with a split vote, and a replica gives a fifth of its TTL away as a margin.
const LEAST_TIMEOUTS: u128 = 4;

fn short_lease(store: &StoreSeen, pages: &BTreeMap<MemberId, &HttpSeen>) -> Option<Finding> {
    let ttl = store.leader_ttl?;
    let given = |page: &&HttpSeen| flag(&page.flags, "election-timeout")?.parse::<u32>().ok();
    let timeout = pages.values().filter_map(given).max()?;
    if ttl.as_millis() >= LEAST_TIMEOUTS * u128::from(timeout) {
        return None;
    }
    Some(
        Finding::warning(
            Reason::ShortLease,
            "lease of the election",
            format!(
                "its TTL is {} s, and etcd's --election-timeout is {timeout} ms",
                ttl.as_secs()
            ),
        )
        .matters("each time that etcd elects its raft leader, the leader of Quorate may lose its lead")
        .remedy(format!(
            "give the replicas --lease-ttl of at least {LEAST_TIMEOUTS} election timeouts, or etcd a shorter one"
        )),
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::doctor::fixtures::store;
    use crate::roles::membership::tests::fixtures::voter;

    #[test]
    fn a_database_is_nearly_full_from_four_fifths_of_its_quota_on() {
        let member = voter(1);
        let mut status = member.evidence.status.answer().unwrap().clone();
        let page = HttpSeen {
            quota: Some(1000),
            ..HttpSeen::default()
        };
        (status.db_size, status.db_in_use) = (799, 799);
        assert!(size(&member, &status, &page).is_none());
        status.db_size = 800;
        assert!(size(&member, &status, &page).unwrap().remedy.contains("compact"));
        status.db_in_use = 100;
        assert!(size(&member, &status, &page).unwrap().remedy.contains("defrag"));
        assert!(size(&member, &status, &HttpSeen::default()).is_none());
    }

    #[test]
    fn a_flag_is_read_in_both_forms_and_the_last_one_counts() {
        let flags = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let both = flags(&["--a=1", "--strict-reconfig-check", "false", "-a", "2"]);
        assert_eq!(flag(&both, "a"), Some("2"));
        assert_eq!(flag(&both, "strict-reconfig-check"), Some("false"));
        assert_eq!(flag(&both, "election-timeout"), None);
    }

    #[test]
    fn a_lease_shorter_than_four_election_timeouts_is_found() {
        let page = |timeout: &str| HttpSeen {
            flags: vec![format!("--election-timeout={timeout}")],
            ..HttpSeen::default()
        };
        let store = StoreSeen {
            leader_ttl: Some(Duration::from_secs(10)),
            ..store(Vec::new())
        };
        let found = |page: &HttpSeen| short_lease(&store, &BTreeMap::from([(MemberId(1), page)]));
        assert!(found(&page("2500")).is_none());
        assert!(found(&page("5000")).unwrap().what.contains("5000 ms"));
        assert!(found(&HttpSeen::default()).is_none(), "it cannot be seen");
    }
}
