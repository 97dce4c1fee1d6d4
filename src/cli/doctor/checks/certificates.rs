//! When certificates end, and requests for certificates. Pure.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::checklist::Checklist;
use crate::cli::doctor::finding::Finding;
use crate::cli::doctor::reason::Reason;
use crate::cli::doctor::seen::{AuthoritySeen, FileSeen, Seen, StoreSeen};
use crate::proto::node_certificate::State;
use crate::proto::{Node, NodeCertificate, Role};
use crate::store::Keys;
use crate::store::keys::{KeySpace, NodeKey};
use crate::store::object::{Object, decode, message, time};

/// A certificate of a file that ends sooner is found: those of `quorate ca issue` are valid for a year and replaced by hand.
const FILE_ENDS_SOON: SignedDuration = SignedDuration::from_hours(10 * 24);

/// An authority that ends sooner is found: the certificate of a node lasts for so long, and none outlasts its authority.
const AUTHORITY_ENDS_SOON: SignedDuration = SignedDuration::from_hours(90 * 24);

/// The leader answers a request within seconds.
const ANSWER_PATIENCE: SignedDuration = SignedDuration::from_mins(5);

/// An agent replaces its certificate between 50 and 80 % of its life. One with less than this part of its life left was not
/// replaced.
const LEAST_LEFT: i32 = 10;

/// The certificate of a member that ends sooner is found, and one of less than 20 days at half of its life: one of 30 days is replaced
/// before 12 of them are over.
const MEMBER_ENDS_SOON: SignedDuration = SignedDuration::from_hours(10 * 24);

/// Checks every end.
pub fn check(seen: &Seen, list: &mut Checklist) {
    for file in &seen.files {
        list.check(file_ends(file, seen.now));
    }
    list.check_each(&seen.authorities, |authority| authority_ends(authority, seen.now));
    let Ok(store) = &seen.store else {
        return;
    };
    for kv in store.keys() {
        let Some(uid) = KeySpace::CERTIFICATES.name(&seen.keys, &kv.key) else {
            continue;
        };
        let Ok(record) = message::<NodeCertificate>("Certificate", &kv.value) else {
            continue;
        };
        let subject = match record.node.as_str() {
            "" => format!("certificate/{uid}"),
            node => format!("certificate of node {node}"),
        };
        list.check(node_ends(&subject, &record, seen.now));
        list.check(waits(&subject, &record, seen.now));
    }
    for (uid, node) in managers(store, &seen.keys) {
        let key = seen.keys.etcd_certificate(&uid);
        let Some(kv) = store.keys().find(|kv| kv.key == key) else {
            continue;
        };
        let Ok(record) = message::<NodeCertificate>("Certificate", &kv.value) else {
            continue;
        };
        let subject = format!("etcd certificate of node {node}");
        list.check(member_ends(&subject, &record, seen.now));
        list.check(waits(&subject, &record, seen.now));
    }
}

/// The uids of the nodes that are managers, with their names: what others once had for etcd is of no use any more.
fn managers(store: &StoreSeen, keys: &Keys) -> BTreeMap<String, String> {
    let nodes = store.keys().filter_map(|kv| match keys.parse_node(&kv.key) {
        NodeKey::Node(name) => decode::<Node>(name, &kv.value).ok(),
        NodeKey::Registration(_) | NodeKey::Other => None,
    });
    let is_manager = |node: &Node| {
        let status = node.status.as_ref();
        status.is_some_and(|status| status.role() == Role::Manager)
    };
    let managers = nodes.filter(is_manager);
    managers
        .map(|node| (node.uid().to_owned(), node.name().to_owned()))
        .collect()
}

fn file_ends(file: &FileSeen, now: Timestamp) -> Option<Finding> {
    let certificates = file.certificates.iter();
    let (decisive, remedy) = match file.flag {
        // One authority of several is enough, as while another one takes its place.
        "--etcd-cacert" => (
            certificates.max_by_key(|certificate| certificate.not_after)?,
            "add the certificate of an authority that lasts longer, and keep this one until every member has a certificate of that",
        ),
        _ => (
            certificates.min_by_key(|certificate| certificate.not_after)?,
            "issue another (quorate ca issue etcd-client --ca-dir DIR -o DIR), and put its certificate and its key in the place of these; \
             replicas read them without a restart",
        ),
    };
    let (end, left) = (decisive.not_after, decisive.not_after.duration_since(now));
    if left >= FILE_ENDS_SOON {
        return None;
    }
    let subject = format!("{} {}", file.flag, file.path.display());
    let (certificate, end) = (&decisive.subject, time::rfc3339(end));
    let finding = match left.is_positive() {
        true => {
            let what = format!("its certificate ({certificate}) ends at {end}");
            Finding::warning(Reason::EtcdCertificateEnds, subject, what)
        }
        false => {
            let what = format!("its certificate ({certificate}) has ended at {end}");
            Finding::fault(Reason::EtcdCertificateEnds, subject, what)
        }
    };
    Some(
        finding
            .matters("etcd and its clients refuse each other once it has ended")
            .remedy(remedy),
    )
}

fn authority_ends(authority: &AuthoritySeen, now: Timestamp) -> Option<Finding> {
    let subject = format!("authority {}", authority.path.display());
    let matters = "requests of nodes for certificates wait, and agents lose their sessions as theirs end";
    match &authority.outcome {
        Err(why) => Some(
            Finding::fault(
                Reason::AuthorityUnusable,
                subject,
                format!("nothing can be signed with it: {why}"),
            )
            .matters(matters)
            .remedy("quorate ca show --ca-dir DIR says the same; put the certificate and its key there, for every replica"),
        ),
        Ok(end) if end.duration_since(now) < AUTHORITY_ENDS_SOON => Some(
            Finding::warning(
                Reason::AuthorityEnds,
                subject,
                format!("it ends at {}", time::rfc3339(*end)),
            )
            .matters("no certificate outlasts its authority, so each is shorter than the one before")
            .remedy("put another one in its place in time (quorate ca rotate)"),
        ),
        Ok(_) => None,
    }
}

fn node_ends(subject: &str, record: &NodeCertificate, now: Timestamp) -> Option<Finding> {
    let end = time::from_proto(record.not_after.as_ref())?;
    let left = end.duration_since(now);
    let life = life(record, end);
    let remedy = "does the agent of the node run, and does it reach a control port? Its log says why the certificate is not replaced. \
                  After its end, the node joins again with a token of its own: quorate token create --node NAME";
    let matters =
        "the node gets no session without one: it counts as down, and its volumes cannot be unpublished";
    if !left.is_positive() {
        let what = format!("it has ended at {}", time::rfc3339(end));
        let finding = Finding::fault(Reason::CertificateEnds, subject, what);
        return Some(finding.matters(matters).remedy(remedy));
    }
    (left < life / LEAST_LEFT).then(|| {
        let what = format!("it ends at {} and was not replaced in time", time::rfc3339(end));
        let finding = Finding::warning(Reason::CertificateEnds, subject, what);
        finding.matters(matters).remedy(remedy)
    })
}

/// From the request of a certificate to its end; zero if the one is not on record.
fn life(record: &NodeCertificate, end: Timestamp) -> SignedDuration {
    let asked = record.request.as_ref();
    let begun = asked.and_then(|request| time::from_proto(request.at.as_ref()));
    begun.map_or(SignedDuration::ZERO, |begun| end.duration_since(begun))
}

fn member_ends(subject: &str, record: &NodeCertificate, now: Timestamp) -> Option<Finding> {
    let end = time::from_proto(record.not_after.as_ref())?;
    let left = end.duration_since(now);
    let at = time::rfc3339(end);
    let remedy = "does the agent of the node run, and does it reach a control port? Its log says why the certificate is not replaced. \
                  quorate ca issue etcd-member makes one by hand";
    let matters = "the other members and all clients refuse the member without one: etcd has one voter less";
    if !left.is_positive() {
        let finding = Finding::fault(Reason::CertificateEnds, subject, format!("it has ended at {at}"));
        return Some(finding.matters(matters).remedy(remedy));
    }
    (left < MEMBER_ENDS_SOON.min(life(record, end) / 2)).then(|| {
        let what = format!("it ends at {at} and was not replaced in time");
        let finding = Finding::warning(Reason::CertificateEnds, subject, what);
        finding.matters(matters).remedy(remedy)
    })
}

fn waits(subject: &str, record: &NodeCertificate, now: Timestamp) -> Option<Finding> {
    let asked = time::from_proto(record.request.as_ref()?.at.as_ref())?;
    let matters = "the node has no certificate for its role until there is an answer";
    match record.state() {
        State::Failed => Some(
            Finding::warning(
                Reason::CertificateWaits,
                subject,
                format!("its request was refused: {}: {}", record.reason, record.message),
            )
            .matters(matters)
            .remedy("a node that was removed joins again as a new one; else quorate certificate rotate NODE has its agent ask again"),
        ),
        State::Pending if now.duration_since(asked) >= ANSWER_PATIENCE => Some(
            Finding::warning(
                Reason::CertificateWaits,
                subject,
                format!("its request has no answer since {}", time::age(asked, now)),
            )
            .matters(matters)
            .remedy(
                "has the node yet to be accepted (quorate accept NODE), and does the leader run with --ca-dir? Its Event \
                 CertificatesWait names the reason",
            ),
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::ends::CertificateEnd;
    use crate::proto::CertificateRequest;

    fn now() -> Timestamp {
        "2026-03-01T12:00:00Z".parse().unwrap()
    }

    fn in_hours(hours: i64) -> Timestamp {
        now() + SignedDuration::from_hours(hours)
    }

    #[test]
    fn a_file_is_found_by_the_first_end_of_its_certificates_and_authorities_by_the_last() {
        let file = |flag, ends: &[i64]| FileSeen {
            flag,
            path: "/c.crt".into(),
            certificates: ends
                .iter()
                .map(|hours| CertificateEnd {
                    subject: "CN=c".to_owned(),
                    not_after: in_hours(*hours),
                })
                .collect(),
        };
        let found = |flag, ends: &[i64]| file_ends(&file(flag, ends), now());
        let severity = |ends: &[i64]| found("--etcd-cert", ends).map(|found| found.severity.word());
        assert_eq!(severity(&[1000, 241]), None);
        assert_eq!(severity(&[1000, 239]), Some("warning"));
        assert_eq!(severity(&[1000, -1]), Some("fault"));
        assert_eq!(severity(&[]), None);
        let authorities = |ends: &[i64]| found("--etcd-cacert", ends).map(|found| found.severity.word());
        assert_eq!(authorities(&[1000, -1]), None);
        assert_eq!(authorities(&[100, -1]), Some("warning"));
    }

    #[test]
    fn an_authority_that_cannot_sign_or_ends_soon_is_found() {
        let authority = |outcome| AuthoritySeen {
            path: "/ca/current/node-ca.crt".into(),
            outcome,
        };
        let reason = |outcome| authority_ends(&authority(outcome), now()).map(|found| found.reason);
        assert_eq!(reason(Ok(in_hours(91 * 24))), None);
        assert_eq!(reason(Ok(in_hours(89 * 24))), Some(Reason::AuthorityEnds));
        assert_eq!(reason(Err("no key".to_owned())), Some(Reason::AuthorityUnusable));
    }

    fn record(asked: i64, end: i64, state: State) -> NodeCertificate {
        NodeCertificate {
            node: "n1".to_owned(),
            request: Some(CertificateRequest {
                at: Some(time::to_proto(in_hours(asked))),
                ..CertificateRequest::default()
            }),
            not_after: Some(time::to_proto(in_hours(end))),
            state: state.into(),
            ..NodeCertificate::default()
        }
    }

    #[test]
    fn the_certificate_of_a_member_is_found_ten_days_before_its_end() {
        let severity = |end| {
            let found = member_ends("c", &record(-20 * 24, end, State::Issued), now());
            found.map(|found| found.severity.word())
        };
        assert_eq!(severity(10 * 24), None);
        assert_eq!(severity(10 * 24 - 1), Some("warning"));
        assert_eq!(severity(0), Some("fault"));
        // One of an hour, which is replaced before 24 minutes are over.
        let short = |asked, end| member_ends("c", &record(asked, end, State::Issued), now()).is_some();
        assert!(!short(-1, 1) && short(-3, 2));
    }

    #[test]
    fn the_certificate_of_a_node_is_found_in_the_last_tenth_of_its_life_and_after_it() {
        let severity = |asked, end| {
            let found = node_ends(
                "certificate of node n1",
                &record(asked, end, State::Issued),
                now(),
            );
            found.map(|found| found.severity.word())
        };
        assert_eq!(severity(-80, 20), None);
        assert_eq!(severity(-95, 5), Some("warning"));
        assert_eq!(severity(-100, -1), Some("fault"));
    }

    #[test]
    fn a_request_that_waits_for_long_or_was_refused_is_found() {
        let found = |asked, state| waits("c", &record(asked, 100, state), now()).is_some();
        assert!(!found(0, State::Pending) && found(-1, State::Pending));
        assert!(!found(-1, State::Issued) && found(0, State::Failed));
        assert!(!found(-1, State::Rotate));
    }
}
