//! Each configured endpoint of etcd by itself. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::fmt::rfc2822::DateTimeParser;
use jiff::{SignedDuration, Timestamp};

use super::checklist::Checklist;
use crate::cli::doctor::finding::Finding;
use crate::cli::doctor::reason::Reason;
use crate::cli::doctor::seen::{Seen, StoreSeen};
use crate::etcd::checkup::{Answered, ClockSeen, EndpointSeen};
use crate::etcd::{Class, Error};

/// A linearizable read that takes as long is slow: a member answers one within milliseconds, and the keep-alive of a lease takes the
/// same way, of which a replica expects an answer within a fifth of the TTL.
const SLOW: Duration = Duration::from_millis(500);

/// How far two clocks may be apart. The dates of answers have whole seconds, and etcd itself warns of one.
const CLOCKS_APART: SignedDuration = SignedDuration::from_secs(5);

/// Checks the settings and every endpoint.
pub fn check(seen: &Seen, list: &mut Checklist) {
    let endpoints = match &seen.endpoints {
        Ok(endpoints) => endpoints,
        Err(why) => {
            let fault = Finding::fault(Reason::EtcdSettings, "connection to etcd", why)
                .matters("no endpoint of etcd can be asked: nothing of Quorate works with these settings")
                .remedy("correct the flag or the file that is named, or the QUORATE_ETCD_… variable");
            list.check(Some(fault));
            return;
        }
    };
    list.check(clusters(endpoints));
    list.check(open(endpoints));
    let serves = endpoints.iter().any(serves);
    for seen_endpoint in endpoints {
        match &seen_endpoint.answer {
            Err(error) => list.check(unreachable(seen_endpoint, error, seen)),
            Ok(answered) => {
                list.check(None);
                list.check(not_serving(seen_endpoint, answered, serves));
                list.check(slow(seen_endpoint, answered));
            }
        }
    }
    let members = seen.store.iter().flat_map(|store| &store.members);
    let clocks = endpoints.iter().chain(members);
    let clocks = clocks.filter_map(|of| Some((of, of.http.clock.as_ref()?)));
    list.check_each(clocks, |(of, clock)| clocks_differ(of, clock));
}

fn subject(of: &EndpointSeen) -> String {
    format!("etcd endpoint {}", of.endpoint)
}

fn serves(of: &EndpointSeen) -> bool {
    of.answer
        .as_ref()
        .is_ok_and(|answered| answered.linearizable.is_ok())
}

fn clusters(endpoints: &[EndpointSeen]) -> Option<Finding> {
    let of = |seen: &EndpointSeen| Some((seen.endpoint.clone(), seen.answer.as_ref().ok()?.cluster?));
    let clusters: Vec<_> = endpoints.iter().filter_map(of).collect();
    let different: BTreeSet<_> = clusters.iter().map(|(_, cluster)| *cluster).collect();
    if different.len() < 2 {
        return None;
    }
    let each = clusters
        .iter()
        .map(|(endpoint, cluster)| format!("{endpoint} is of cluster {cluster}"));
    let each = each.collect::<Vec<_>>().join(", ");
    Some(
        Finding::fault(
            Reason::SeveralClusters,
            "etcd endpoints",
            format!("they belong to several clusters: {each}"),
        )
        .matters(
            "a replica uses the cluster of most of them and refuses the others, and with as many of one as of another it uses none",
        )
        .remedy(
            "give --etcd-endpoints of one cluster. A member that lost its disk and was started as a cluster of its own: stop it, \
             empty its data directory, and let it join again (quorate replace NODE)",
        ),
    )
}

/// Plain HTTP to another machine.
fn open(endpoints: &[EndpointSeen]) -> Option<Finding> {
    let is_open = |of: &&EndpointSeen| {
        let host = of.endpoint.strip_prefix("http://");
        let local = ["127.", "localhost", "[::1]"];
        host.is_some_and(|host| !local.iter().any(|local| host.starts_with(local)))
    };
    let open = endpoints.iter().find(|of| is_open(of) && of.answer.is_ok())?;
    Some(
        Finding::warning(
            Reason::EtcdOpen,
            subject(open),
            "it is reached over plain HTTP, from another machine",
        )
        .matters("a client that can write below the prefix controls everything, and the values of Secrets cross the network as they are")
        .remedy("give etcd TLS with client certificates (quorate ca issue makes them), and the URLs https://"),
    )
}

fn unreachable(of: &EndpointSeen, error: &Error, seen: &Seen) -> Option<Finding> {
    let message = error.message();
    if let Some(words) = tls_fault(of, error) {
        return Some(
            Finding::fault(Reason::EtcdTls, subject(of), format!("TLS fails: {words} ({message})"))
                .matters("no request reaches this member, whatever its health")
                .remedy(
                    "check --etcd-cacert, --etcd-cert and --etcd-key (openssl x509 -in FILE -noout -subject -issuer -enddate -ext \
                     subjectAltName), and whether etcd speaks TLS at this URL",
                ),
        );
    }
    if error.class == Class::Denied {
        let remedy = match message.contains("authentication is not enabled") {
            true => "leave out --etcd-user and --etcd-password-file",
            false => {
                "check --etcd-user and the file of --etcd-password-file: etcdctl user get NAME --detail shows the user's roles"
            }
        };
        return Some(
            Finding::fault(
                Reason::EtcdLogIn,
                subject(of),
                format!("it refuses this client: {message}"),
            )
            .matters(
                "a replica with these settings can do nothing: it neither registers nor stands for election",
            )
            .remedy(remedy),
        );
    }
    if seen.store.as_ref().is_ok_and(|store| is_of_ill_member(of, store)) {
        // The finding about its member says more.
        return None;
    }
    let log_in = match seen.logs_in {
        true => {
            ". A log-in takes a quorum: if etcd may have none, run doctor with a client certificate of the user instead of --etcd-user"
        }
        false => "",
    };
    Some(
        Finding::fault(
            Reason::EndpointUnreachable,
            subject(of),
            format!("it does not answer: {message}"),
        )
        .matters("requests go to the other endpoints alone; if none is left, nothing works")
        .remedy(format!(
            "is etcd running there, does it listen at this URL (--listen-client-urls), and does the network let this machine \
             through? An endpoint that is gone for good: take it out of --etcd-endpoints{log_in}"
        )),
    )
}

/// Whether the endpoint is that of a member that is found to be ill.
fn is_of_ill_member(of: &EndpointSeen, store: &StoreSeen) -> bool {
    let membership = store.membership.as_ref();
    membership.is_ok_and(|membership| {
        let ill = membership.listed().filter(|member| member.illness().is_some());
        let listed = ill.filter_map(|member| member.listed.as_ref());
        let mut urls = listed.flat_map(|listed| &listed.client_urls);
        urls.any(|url| url.trim_end_matches('/') == of.endpoint)
    })
}

/// What is wrong with TLS, in words; `None` if the fault is another.
fn tls_fault(of: &EndpointSeen, error: &Error) -> Option<&'static str> {
    const TEXTS: [(&str, &str); 9] = [
        (
            "UnknownIssuer",
            "the certificate of the member was signed by another authority than that of --etcd-cacert",
        ),
        (
            "NotValidForName",
            "the certificate of the member is not for the host of this URL",
        ),
        ("certificate expired", "the certificate of the member has ended"),
        (
            "UnknownCA",
            "the member does not know the authority of the client certificate (--etcd-cert)",
        ),
        (
            "CertificateExpired",
            "the member says that the client certificate (--etcd-cert) has ended",
        ),
        (
            "CertificateRequired",
            "the member demands a client certificate (--etcd-cert and --etcd-key)",
        ),
        (
            "BadCertificate",
            "the member refuses the client certificate (--etcd-cert), or demands one",
        ),
        (
            "tls handshake eof",
            "the member ends the handshake, as one that does not speak TLS here does: its URL is then http://",
        ),
        (
            "InvalidContentType",
            "the member does not speak TLS here: its URL is http://",
        ),
    ];
    let message = error.message();
    let known = TEXTS.iter().find(|(text, _)| message.contains(text));
    let is_plain = of.endpoint.starts_with("http://");
    match known {
        Some((_, words)) => Some(*words),
        None if message.contains("Expired") => Some("the certificate of the member has ended"),
        None if error.is_about_certificates() => Some("a certificate is refused"),
        None if is_plain && error.is_hangup() => {
            Some("the member ends the connection: does it expect TLS, so that its URL is https://?")
        }
        None => None,
    }
}

fn not_serving(of: &EndpointSeen, answered: &Answered, others_serve: bool) -> Option<Finding> {
    let Err(error) = &answered.linearizable else {
        return None;
    };
    if error.is_of_learner() {
        return Some(
            Finding::warning(
                Reason::EndpointOfLearner,
                subject(of),
                "its member is a learner, which serves no linearizable read",
            )
            .matters("it does not count as an endpoint before it votes")
            .remedy("leave it out of --etcd-endpoints; replicas find it in the member list once it votes"),
        );
    }
    // Without a quorum there is another finding.
    if !others_serve || error.class != Class::Unavailable {
        return None;
    }
    Some(
        Finding::fault(
            Reason::EndpointCutOff,
            subject(of),
            format!(
                "its member answers, and serves no linearizable read: {}",
                error.message()
            ),
        )
        .matters("the member is cut off from the others, or far behind: it does not count for the quorum")
        .remedy(
            "check its peer URL and port (2380) in both directions, its certificates for peers, and its log",
        ),
    )
}

fn slow(of: &EndpointSeen, answered: &Answered) -> Option<Finding> {
    let took = answered
        .linearizable
        .as_ref()
        .ok()
        .filter(|took| **took >= SLOW)?;
    Some(
        Finding::warning(
            Reason::EndpointSlow,
            subject(of),
            format!(
                "the fastest of three linearizable reads took {} ms",
                took.as_millis()
            ),
        )
        .matters("leases are renewed over the same way: a leader that is renewed late loses its lead")
        .remedy(
            "look at the member's disk and network (etcd_disk_wal_fsync_duration_seconds and \
             etcd_network_peer_round_trip_time_seconds of its /metrics), and give it a disk of its own",
        ),
    )
}

fn clocks_differ(of: &EndpointSeen, clock: &ClockSeen) -> Option<Finding> {
    let apart = apart(clock)?;
    let abs = apart.abs();
    if abs <= CLOCKS_APART {
        return None;
    }
    let word = if apart.is_negative() { "behind" } else { "ahead of" };
    Some(
        Finding::warning(
            Reason::ClocksDiffer,
            subject(of),
            format!("its clock is {} s {word} that of this machine", abs.as_secs()),
        )
        .matters(
            "certificates begin and end at other moments, and the times that Quorate records and the logs do not fit together",
        )
        .remedy("let NTP set the clocks of both machines"),
    )
}

/// How far the clock of a server is ahead of this one, at least; negative if it is behind. The answer took its time, and its date
/// is rounded down.
fn apart(clock: &ClockSeen) -> Option<SignedDuration> {
    let date = DateTimeParser::new().parse_zoned(&clock.date).ok()?.timestamp();
    let (sent, received) = (
        Timestamp::try_from(clock.sent).ok()?,
        Timestamp::try_from(clock.received).ok()?,
    );
    let ahead = date.duration_since(received);
    let rounded_up = date.checked_add(SignedDuration::from_secs(1)).ok()?;
    let behind = rounded_up.duration_since(sent);
    Some(if ahead.is_positive() {
        ahead
    } else if behind.is_negative() {
        behind
    } else {
        SignedDuration::ZERO
    })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::etcd::ClusterId;
    use crate::etcd::checkup::HttpSeen;

    fn endpoint(url: &str, cluster: u64) -> EndpointSeen {
        EndpointSeen {
            endpoint: url.to_owned(),
            answer: Ok(Answered {
                cluster: Some(ClusterId(cluster)),
                member: None,
                linearizable: Ok(Duration::from_millis(2)),
            }),
            http: HttpSeen::default(),
        }
    }

    #[test]
    fn endpoints_of_two_clusters_are_named_with_their_clusters() {
        let one = endpoint("http://127.0.0.1:1", 0xa);
        assert!(clusters(&[one.clone(), one.clone()]).is_none());
        let found = clusters(&[one, endpoint("http://127.0.0.1:2", 0xb)]).unwrap();
        assert!(
            found.what.contains("http://127.0.0.1:1 is of cluster a"),
            "{found:?}"
        );
        assert!(
            found.what.contains("http://127.0.0.1:2 is of cluster b"),
            "{found:?}"
        );
    }

    #[test]
    fn plain_http_matters_to_other_machines_alone() {
        for (url, matters) in [
            ("http://127.0.0.1:2379", false),
            ("http://localhost:2379", false),
            ("http://[::1]:2379", false),
            ("https://10.0.0.1:2379", false),
            ("http://10.0.0.1:2379", true),
        ] {
            assert_eq!(open(&[endpoint(url, 1)]).is_some(), matters, "{url}");
        }
    }

    #[test]
    fn a_slow_read_is_found() {
        let of = endpoint("http://127.0.0.1:1", 1);
        let mut answered = of.answer.clone().unwrap();
        assert!(slow(&of, &answered).is_none());
        answered.linearizable = Ok(Duration::from_millis(700));
        let found = slow(&of, &answered).unwrap();
        assert!(found.what.contains("700 ms"), "{found:?}");
    }

    #[test]
    fn clocks_are_apart_only_beyond_what_the_answer_and_whole_seconds_explain() {
        let begun = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_412_333);
        let clock = |date: &str, took: u64| ClockSeen {
            date: date.to_owned(),
            sent: begun,
            received: begun + Duration::from_millis(took),
        };
        let of = endpoint("http://127.0.0.1:1", 1);
        let found = |date: &str, took| clocks_differ(&of, &clock(date, took)).map(|found| found.what);
        let now = Timestamp::try_from(begun).unwrap();
        let text = |offset: i64| {
            let at = now + SignedDuration::from_secs(offset);
            at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
        };
        assert_eq!(found(&text(0), 100), None);
        assert_eq!(found(&text(5), 100), None);
        assert_eq!(found(&text(-6), 100), None);
        assert_eq!(
            found(&text(9), 4_000),
            None,
            "the answer was under way for as long"
        );
        let ahead = found(&text(60), 100).unwrap();
        assert!(ahead.contains("59 s ahead of"), "{ahead}");
        let behind = found(&text(-60), 100).unwrap();
        assert!(behind.contains("59 s behind"), "{behind}");
        assert_eq!(found("no date", 100), None);
        let last = "Thu, 30 Dec 9999 22:00:00 GMT";
        assert_eq!(found(last, 100), None, "no second comes after it");
    }
}
