//! The keys of join tokens and certificates.

use std::fmt;

use super::node::NodeKey;
use super::{KeySpace, Keys, Name};
use crate::etcd::{KeyRange, MemberId};

const TOKENS: &str = "/identity/tokens/";

const CERTIFICATES: &str = "/identity/certificates/";

const ETCD_CERTIFICATES: &str = "/identity/etcd/";

const REVOCATION_LIST: &str = "/identity/crl";

const ROTATION: &str = "/identity/rotation";

const TRUST: &str = "/identity/trust";

const REPLICAS: &str = "/identity/replicas/";

/// A key of [`Keys::certification`]. Names and uids are as in the key, valid or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificationKey<'a> {
    /// `/identity/certificates/<node uid>`
    Certificate(&'a str),
    /// `/identity/etcd/<node uid>`
    EtcdCertificate(&'a str),
    /// `/identity/crl`
    RevocationList,
    /// `/identity/rotation`
    RotationRequest,
    /// `/identity/trust`
    Rotation,
    /// `/identity/replicas/<replica>`
    ReplicaTrust(&'a str),
    /// `/nodes/<name>/release`
    Registration(&'a str),
    /// `/joins/<node>`
    Join(&'a str),
    /// `/members/<member id>`
    Member(MemberId),
    /// `/nodes/<name>`, but no key below it
    Node(&'a str),
    /// `/removed/<uid>`
    Removed(&'a str),
    /// Any other key.
    Other,
}

/// Who joins with a token.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Joiner {
    /// New nodes that are desired workers.
    Worker,
    /// New nodes that are desired managers.
    Manager,
    /// A node that exists, once.
    Node(Name),
}

impl fmt::Display for Joiner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Worker => f.write_str("worker"),
            Self::Manager => f.write_str("manager"),
            Self::Node(name) => write!(f, "node/{name}"),
        }
    }
}

impl KeySpace {
    /// The keys of every `NodeCertificate`.
    pub const CERTIFICATES: Self = Self {
        folder: CERTIFICATES,
        suffix: "",
        takes: |uid| !uid.is_empty() && !uid.contains('/'),
    };

    /// The keys of every `NodeCertificate` of a node's etcd.
    pub const ETCD_CERTIFICATES: Self = Self {
        folder: ETCD_CERTIFICATES,
        suffix: "",
        takes: |uid| !uid.is_empty() && !uid.contains('/'),
    };
}

impl Keys {
    /// `/identity/tokens/<joiner>`: a `JoinToken`.
    pub fn join_token(&self, joiner: &Joiner) -> Vec<u8> {
        self.below(format_args!("{TOKENS}{joiner}"))
    }

    /// The range of every `JoinToken`.
    pub fn join_tokens(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("{TOKENS}")))
    }

    /// The joiner in a key of [`Keys::join_tokens`].
    pub fn parse_join_token(&self, key: &[u8]) -> Option<Joiner> {
        match self.parse_below(key, TOKENS)? {
            "worker" => Some(Joiner::Worker),
            "manager" => Some(Joiner::Manager),
            joiner => joiner.strip_prefix("node/")?.parse().ok().map(Joiner::Node),
        }
    }

    /// `/identity/certificates/<node uid>`: a `NodeCertificate`.
    pub fn certificate(&self, uid: &str) -> Vec<u8> {
        self.below(format_args!("{CERTIFICATES}{uid}"))
    }

    /// `/identity/etcd/<node uid>`: a `NodeCertificate` of the node's etcd.
    pub fn etcd_certificate(&self, uid: &str) -> Vec<u8> {
        self.below(format_args!("{ETCD_CERTIFICATES}{uid}"))
    }

    /// `/identity/crl`: the `RevocationList`.
    pub fn revocation_list(&self) -> Vec<u8> {
        self.below(format_args!("{REVOCATION_LIST}"))
    }

    /// `/identity/rotation`: the `RotationRequest` of an operator.
    pub fn rotation_request(&self) -> Vec<u8> {
        self.below(format_args!("{ROTATION}"))
    }

    /// `/identity/trust`: the `Rotation`.
    pub fn rotation(&self) -> Vec<u8> {
        self.below(format_args!("{TRUST}"))
    }

    /// `/identity/replicas/<replica>`: a `ReplicaTrust`.
    pub fn replica_trust(&self, replica: &str) -> Vec<u8> {
        self.below(format_args!("{REPLICAS}{replica}"))
    }

    /// The range of every `ReplicaTrust`.
    pub fn replica_trusts(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("{REPLICAS}")))
    }

    /// Certificates, the list of revoked ones, rotations, joins, members, nodes and removed nodes in one range, so that one watch brings their
    /// changes in the order in which they happened. Keys of other kinds lie between them, volumes' publications among them:
    /// [`CertificationKey::Other`]. A leader that signs reads these in vain, once with each list and once with each change. Several
    /// ranges would spare it that, and have no common revision without more work.
    pub fn certification(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("{CERTIFICATES}"))).through(self.all_removed())
    }

    /// Certificates, of etcd too, and joins in one range: what callers of a replica wait for. Tokens lie between them.
    pub fn requests(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("{CERTIFICATES}"))).through(self.joins())
    }

    /// Parses a key of [`Keys::certification`].
    pub fn parse_certification<'a>(&self, key: &'a [u8]) -> CertificationKey<'a> {
        let one = |folder: &str| {
            let name = self.parse_below(key, folder)?;
            (!name.is_empty() && !name.contains('/')).then_some(name)
        };
        if self.parse_below(key, REVOCATION_LIST) == Some("") {
            return CertificationKey::RevocationList;
        }
        if self.parse_below(key, ROTATION) == Some("") {
            return CertificationKey::RotationRequest;
        }
        if self.parse_below(key, TRUST) == Some("") {
            return CertificationKey::Rotation;
        }
        one(CERTIFICATES)
            .map(CertificationKey::Certificate)
            .or_else(|| one(ETCD_CERTIFICATES).map(CertificationKey::EtcdCertificate))
            .or_else(|| one("/joins/").map(CertificationKey::Join))
            .or_else(|| self.parse_member(key).map(CertificationKey::Member))
            .or_else(|| one(REPLICAS).map(CertificationKey::ReplicaTrust))
            .or_else(|| one("/nodes/").map(CertificationKey::Node))
            .or_else(|| match self.parse_node(key) {
                NodeKey::Registration(name) => Some(CertificationKey::Registration(name)),
                NodeKey::Node(_) | NodeKey::Other => None,
            })
            .or_else(|| one("/removed/").map(CertificationKey::Removed))
            .unwrap_or(CertificationKey::Other)
    }

    /// The bytes of a key that [`Keys::parse_certification`] returned; `None` for [`CertificationKey::Other`].
    pub fn certification_key(&self, key: CertificationKey<'_>) -> Option<Vec<u8>> {
        match key {
            CertificationKey::Certificate(uid) => Some(self.certificate(uid)),
            CertificationKey::EtcdCertificate(uid) => Some(self.etcd_certificate(uid)),
            CertificationKey::RevocationList => Some(self.revocation_list()),
            CertificationKey::RotationRequest => Some(self.rotation_request()),
            CertificationKey::Rotation => Some(self.rotation()),
            CertificationKey::ReplicaTrust(replica) => Some(self.replica_trust(replica)),
            CertificationKey::Registration(name) => Some(self.below(format_args!("/nodes/{name}/release"))),
            CertificationKey::Join(node) => Some(self.below(format_args!("/joins/{node}"))),
            CertificationKey::Member(id) => Some(self.member(id)),
            CertificationKey::Node(name) => Some(self.below(format_args!("/nodes/{name}"))),
            CertificationKey::Removed(uid) => Some(self.removed(uid)),
            CertificationKey::Other => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_token_names_its_joiner() {
        let keys = Keys::new("/team/quorate".parse().unwrap());
        // A node may be called like a role.
        let node = |name: &str| Joiner::Node(name.parse().unwrap());
        for (joiner, key) in [
            (Joiner::Worker, "/team/quorate/identity/tokens/worker"),
            (Joiner::Manager, "/team/quorate/identity/tokens/manager"),
            (node("worker"), "/team/quorate/identity/tokens/node/worker"),
            (node("n1.a"), "/team/quorate/identity/tokens/node/n1.a"),
        ] {
            assert_eq!(keys.join_token(&joiner), key.as_bytes());
            assert!(key.as_bytes().starts_with(keys.join_tokens().start()));
            assert_eq!(keys.parse_join_token(key.as_bytes()), Some(joiner));
        }
        for other in ["leader", "node/", "node/A", "node/a/b", ""] {
            let key = format!("/team/quorate/identity/tokens/{other}");
            assert_eq!(keys.parse_join_token(key.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn the_range_of_certification_holds_each_kind_and_tells_them_apart() {
        let keys = Keys::new("/team/quorate".parse().unwrap());
        let range = keys.certification();
        let name: Name = "n1".parse().unwrap();
        for (key, expected) in [
            (keys.certificate("u"), CertificationKey::Certificate("u")),
            (keys.etcd_certificate("u"), CertificationKey::EtcdCertificate("u")),
            (keys.revocation_list(), CertificationKey::RevocationList),
            (keys.join(&name), CertificationKey::Join("n1")),
            (
                keys.member(MemberId(0x1f)),
                CertificationKey::Member(MemberId(0x1f)),
            ),
            (keys.node(&name), CertificationKey::Node("n1")),
            (keys.registration(&name), CertificationKey::Registration("n1")),
            (keys.rotation_request(), CertificationKey::RotationRequest),
            (keys.rotation(), CertificationKey::Rotation),
            (keys.replica_trust("r1"), CertificationKey::ReplicaTrust("r1")),
            (keys.removed("u"), CertificationKey::Removed("u")),
            (keys.status(), CertificationKey::Other),
        ] {
            assert!(range.contains(&key), "{key:?}");
            assert_eq!(keys.parse_certification(&key), expected);
            let built = (expected != CertificationKey::Other).then_some(key);
            assert_eq!(keys.certification_key(expected), built);
        }
        assert_eq!(keys.certificate("u"), b"/team/quorate/identity/certificates/u");
        assert_eq!(keys.etcd_certificate("u"), b"/team/quorate/identity/etcd/u");
        assert_eq!(keys.revocation_list(), b"/team/quorate/identity/crl");
        assert_eq!(keys.rotation(), b"/team/quorate/identity/trust");
        assert_eq!(keys.rotation_request(), b"/team/quorate/identity/rotation");
        assert_eq!(keys.replica_trust("r1"), b"/team/quorate/identity/replicas/r1");
        let requests = keys.requests();
        for (key, is_one) in [
            (keys.certificate("u"), true),
            (keys.etcd_certificate("u"), true),
            (keys.join(&name), true),
            (keys.node(&name), false),
            (keys.member(MemberId(1)), false),
        ] {
            assert_eq!(requests.contains(&key), is_one, "{key:?}");
        }
        // It lies between.
        let token = keys.join_token(&Joiner::Worker);
        assert_eq!(keys.parse_certification(&token), CertificationKey::Other);
    }
}
