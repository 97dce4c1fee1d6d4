//! What certificates wait for, reported once as long as it lasts.

use std::collections::BTreeMap;

use tracing::{info, warn};

use super::authority::AuthorityKind;
use super::plan::Wait;
use crate::kube::events::Severity;

/// What waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Waiting {
    /// Requests to this authority, for this.
    Requests(AuthorityKind, Wait),
    /// The revocation of certificates of etcd.
    Revocation,
    /// The same, of certificates that are not known.
    UnknownCertificates,
    /// The next list of revoked certificates, which would revoke no more than the present one.
    List,
}

/// Why, and whose.
struct Hindrance {
    cause: String,
    first: String,
    count: usize,
}

/// Everything that waits at a moment.
#[derive(Default)]
pub(super) struct Waits(BTreeMap<Waiting, Hindrance>);

impl Waits {
    /// Something of this node waits.
    pub(super) fn add(&mut self, waiting: Waiting, node: &str, cause: impl FnOnce() -> String) {
        let hindrance = self.0.entry(waiting).or_insert_with(|| Hindrance {
            cause: cause(),
            first: node.to_owned(),
            count: 0,
        });
        hindrance.count += 1;
    }

    /// Reports what waits now, where that or its cause is new.
    pub(super) fn replace(&mut self, now: Self, notify: impl Fn(Severity, &'static str, String)) {
        for (waiting, hindrance) in &now.0 {
            let reported = self.0.get(waiting).map(|before| &before.cause);
            if reported == Some(&hindrance.cause) {
                continue;
            }
            let note = waiting.note(hindrance);
            let severity = waiting.severity();
            match severity {
                Severity::Normal => info!("{note}"),
                Severity::Warning => warn!("{note}"),
            }
            notify(severity, waiting.reason(), note);
        }
        *self = now;
    }
}

impl Waiting {
    fn note(self, hindrance: &Hindrance) -> String {
        let Hindrance { cause, first, count } = hindrance;
        let whose = match count - 1 {
            0 => format!("node {first}"),
            others => format!("node {first} and {others} more"),
        };
        match self {
            Self::Requests(AuthorityKind::Node, _) => {
                format!("requests for certificates wait ({whose}): {cause}")
            }
            Self::Requests(AuthorityKind::Etcd, _) => {
                format!("requests for certificates of etcd wait ({whose}): {cause}")
            }
            Self::Revocation => format!("certificates of etcd are yet to be revoked ({whose}): {cause}"),
            Self::UnknownCertificates => format!("certificates of etcd cannot be revoked ({whose}): {cause}"),
            Self::List => format!("no other list of revoked certificates of etcd is made: {cause}"),
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::Requests(..) => "CertificatesWait",
            Self::Revocation | Self::UnknownCertificates | Self::List => "RevocationWaits",
        }
    }

    fn severity(self) -> Severity {
        match self {
            // Operators who accept each node expect it.
            Self::Requests(_, Wait::NotAccepted) => Severity::Normal,
            Self::Requests(
                _,
                Wait::NodeMissing | Wait::NodeUnreadable | Wait::NoRole | Wait::Authority | Wait::Cluster,
            )
            | Self::Revocation
            | Self::UnknownCertificates
            | Self::List => Severity::Warning,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const AUTHORITY: Waiting = Waiting::Requests(AuthorityKind::Etcd, Wait::Authority);

    fn waits(all: &[(Waiting, &str, &str)]) -> Waits {
        let mut waits = Waits::default();
        for (waiting, node, cause) in all {
            waits.add(*waiting, node, || (*cause).to_owned());
        }
        waits
    }

    #[test]
    fn a_cause_is_reported_once_as_long_as_it_lasts_with_the_first_of_those_who_wait() {
        let said = RefCell::new(Vec::new());
        let mut known = Waits::default();
        let mut now = |all: &[(Waiting, &str, &str)]| {
            known.replace(waits(all), |_, reason, note| {
                said.borrow_mut().push((reason, note))
            });
            said.take()
        };
        let two = [(AUTHORITY, "n1", "no key"), (AUTHORITY, "n2", "no key")];
        let expected = "requests for certificates of etcd wait (node n1 and 1 more): no key";
        assert_eq!(now(&two), [("CertificatesWait", expected.to_owned())]);
        assert!(now(&two[1..]).is_empty());
        assert_eq!(now(&[(AUTHORITY, "n2", "no file")]).len(), 1, "another cause");
        assert!(now(&[]).is_empty());
        assert_eq!(now(&[(AUTHORITY, "n2", "no file")]).len(), 1, "it is back");
        let revocation = now(&[(Waiting::Revocation, "n3", "no key")]);
        let expected = "certificates of etcd are yet to be revoked (node n3): no key";
        assert_eq!(revocation, [("RevocationWaits", expected.to_owned())]);
    }
}
