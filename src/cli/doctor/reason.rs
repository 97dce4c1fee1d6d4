//! What can be wrong, as a fixed set of words, and what follows from what. Pure.

use std::collections::BTreeSet;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])* $reason:ident),+ $(,)?) => {
        /// What is wrong, as one of a fixed set of words. What lies nearer to the ground comes first: of two findings of one
        /// severity the one with the lesser reason is the likelier cause of the other.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Reason {
            $($(#[doc = $doc])* $reason),+
        }

        impl Reason {
            /// Every reason, in order.
            #[cfg(test)]
            pub const ALL: &[Self] = &[$(Self::$reason),+];

            /// As it is shown.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$reason => stringify!($reason)),+
                }
            }
        }
    };
}

reasons! {
    /// The flags or the files of the connection to etcd are wrong.
    EtcdSettings,
    /// A certificate of the connection to etcd has ended, or ends soon.
    EtcdCertificateEnds,
    /// The endpoints belong to several clusters.
    SeveralClusters,
    /// TLS fails at an endpoint.
    EtcdTls,
    /// etcd refuses the log-in.
    EtcdLogIn,
    /// etcd has no quorum.
    NoQuorum,
    /// The data of a member differs from that of the others.
    EtcdCorrupt,
    /// etcd's quota is used up.
    EtcdNoSpace,
    /// A member does not answer.
    MemberUnreachable,
    /// A member has never been started.
    MemberNotStarted,
    /// An endpoint does not answer.
    EndpointUnreachable,
    /// An endpoint answers, and serves no linearizable read.
    EndpointCutOff,
    /// An endpoint is that of a learner.
    EndpointOfLearner,
    /// Members run several minor releases: the faults of the older one end with the upgrade.
    EtcdReleasesDiffer,
    /// A release of etcd has a known fault.
    EtcdRelease,
    /// etcd refuses to read or to write keys.
    EtcdRights,
    /// The database of a member is nearly full.
    EtcdNearlyFull,
    /// Members may be changed without a check.
    EtcdUnchecked,
    /// Any client may reach etcd's keys.
    EtcdOpen,
    /// The clocks of two machines differ.
    ClocksDiffer,
    /// A key that ends with its process is on no lease.
    KeyWithoutLease,
    /// A stored value cannot be read.
    MalformedRecord,
    /// What is applied now is encrypted with a key that the given files do not hold.
    EncryptionKeyForeign,
    /// Values of a Secret cannot be decrypted.
    SecretUnreadable,
    /// Values of a Secret are not encrypted with the key in use.
    SecretNotEncrypted,
    /// The API server does not answer.
    KubernetesUnreachable,
    /// The API server is older than it may be.
    KubernetesRelease,
    /// Permissions of the bundle are missing.
    KubernetesRights,
    /// A plugin cannot be called.
    PluginNotReady,
    /// An authority cannot sign.
    AuthorityUnusable,
    /// An authority ends soon.
    AuthorityEnds,
    /// The certificate of a node has ended, or ends soon.
    CertificateEnds,
    /// No replica leads.
    NoLeader,
    /// The lease of the election is too short for etcd's elections.
    ShortLease,
    /// The leader says that it cannot do its work.
    Degraded,
    /// A request for a certificate has no answer, or was refused.
    CertificateWaits,
    /// A join does not end.
    JoinWaits,
    /// A member has no record.
    MemberUnmanaged,
    /// An endpoint is slow.
    EndpointSlow,
    /// A forced deletion may have left something at a backend.
    TombstoneLeft,
    /// The inventory holds what the bundle no longer does.
    InventoryLeft,
    /// Changes of roles are paused.
    RolesPaused,
    /// etcd did not answer what was asked.
    NotAnswered,
}

/// A consequence, and what it may come of. Where one of the causes was found, the consequence stands with it.
const FOLLOWS: &[(Reason, &[Reason])] = &[
    (Reason::EtcdTls, &[Reason::EtcdCertificateEnds]),
    (Reason::EndpointUnreachable, &[Reason::NoQuorum]),
    (Reason::MemberUnreachable, &[Reason::NoQuorum, Reason::EtcdTls]),
    (Reason::EndpointCutOff, &[Reason::NoQuorum]),
    (Reason::EtcdLogIn, &[Reason::NoQuorum]),
    (Reason::EtcdNearlyFull, &[Reason::EtcdNoSpace]),
    (
        Reason::NoLeader,
        &[
            Reason::NoQuorum,
            Reason::EtcdCorrupt,
            Reason::EtcdNoSpace,
            Reason::EtcdRights,
        ],
    ),
    (
        Reason::Degraded,
        &[
            Reason::NoQuorum,
            Reason::EtcdCorrupt,
            Reason::EtcdNoSpace,
            Reason::MalformedRecord,
            Reason::KubernetesUnreachable,
            Reason::KubernetesRights,
            Reason::NoLeader,
        ],
    ),
    (
        Reason::CertificateWaits,
        &[Reason::AuthorityUnusable, Reason::NoLeader],
    ),
    (
        Reason::JoinWaits,
        &[
            Reason::MemberUnreachable,
            Reason::MemberNotStarted,
            Reason::NoLeader,
            Reason::RolesPaused,
        ],
    ),
    (
        Reason::NotAnswered,
        &[
            Reason::NoQuorum,
            Reason::EtcdCorrupt,
            Reason::EtcdNoSpace,
            Reason::MemberUnreachable,
            Reason::EndpointOfLearner,
            Reason::EtcdRights,
        ],
    ),
];

/// What a reason follows from, of what was found.
pub fn causes_of(reason: Reason, present: &BTreeSet<Reason>) -> Vec<Reason> {
    let causes = FOLLOWS.iter().filter(|(consequence, _)| *consequence == reason);
    let causes = causes.flat_map(|(_, causes)| *causes).copied();
    causes.filter(|cause| present.contains(cause)).collect()
}

/// What it follows from in the end.
pub fn roots_of(reason: Reason, present: &BTreeSet<Reason>) -> BTreeSet<Reason> {
    let (mut roots, mut left) = (BTreeSet::new(), vec![reason]);
    while let Some(next) = left.pop() {
        let causes = causes_of(next, present);
        if causes.is_empty() {
            roots.insert(next);
        }
        left.extend(causes);
    }
    roots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_reason_follows_from_itself() {
        let every: BTreeSet<Reason> = Reason::ALL.iter().copied().collect();
        for reason in Reason::ALL {
            let (mut seen, mut left) = (BTreeSet::new(), causes_of(*reason, &every));
            while let Some(cause) = left.pop() {
                assert_ne!(cause, *reason, "a circle through {}", cause.word());
                if seen.insert(cause) {
                    left.extend(causes_of(cause, &every));
                }
            }
        }
    }
}
