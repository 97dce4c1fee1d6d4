//! The certificate of a node with those above it, as its holder reads it. Pure.

use jiff::{SignedDuration, Timestamp};
use pem::Pem;

use super::certificate::{NodeCertificateFacts, NotOfNode};
use super::validity::BACKDATED;

/// The certificate of a node and those between it and a self-signed one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeChain {
    /// The certificates (DER), that of the node first.
    pub certificates: Vec<Vec<u8>>,
    /// What the first one says.
    pub node: NodeCertificateFacts,
}

impl NodeChain {
    /// Reads a chain (PEM).
    ///
    /// # Errors
    /// If it is not that of a node. Of which node, and whether it is genuine, is for the caller to compare.
    pub fn read(chain: &str) -> Result<Self, NotOfNode> {
        let blocks = pem::parse_many(chain).map_err(|_| NotOfNode)?;
        let certificates = blocks.into_iter().filter(|block| block.tag() == "CERTIFICATE");
        let certificates: Vec<Vec<u8>> = certificates.map(Pem::into_contents).collect();
        let node = NodeCertificateFacts::read(certificates.first().ok_or(NotOfNode)?)?;
        Ok(Self { certificates, node })
    }

    /// When it was issued.
    pub fn issued(&self) -> Timestamp {
        self.node
            .not_before
            .saturating_add(BACKDATED)
            .unwrap_or(Timestamp::MAX)
    }

    /// From its issue to its end.
    pub fn life(&self) -> SignedDuration {
        self.node.not_after.duration_since(self.issued())
    }
}

#[cfg(test)]
mod tests {
    use super::super::node::{LIFE, NodeHolder, NodeRole, certificate};
    use super::super::request::RequestedKey;
    use super::super::{Authority, AuthorityKind, NodeKey};
    use super::*;
    use crate::etcd::ClusterId;

    #[test]
    fn a_chain_says_whose_it_is_and_its_life_runs_from_its_issue() {
        let now: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        let (authority, _) = Authority::create(AuthorityKind::Node, now).unwrap();
        let key = NodeKey::create().unwrap();
        let requested = RequestedKey::read(&key.request().unwrap()).unwrap();
        let node = NodeHolder {
            cluster: ClusterId(0xc0_ffee),
            uid: "0b3a2f0e-55a6-4a3e-9d0c-2f6f4d1c9b11",
            name: "n1",
            role: NodeRole::Manager,
        };
        let made = certificate(&authority, &requested, node, LIFE, now).unwrap();
        let read = NodeChain::read(&format!("{}{}", made.chain_pem, authority.certificates_pem())).unwrap();
        assert_eq!(read.certificates.len(), 2);
        assert_eq!(read.node.public_key, key.public_key());
        assert_eq!((read.issued(), read.life()), (now, LIFE));
        for other in ["", authority.certificates_pem(), &key.pem()] {
            assert_eq!(NodeChain::read(other), Err(NotOfNode), "{other}");
        }
    }
}
