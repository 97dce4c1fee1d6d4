//! What the other side of a connection has shown in the handshake, and whether it is genuine. Pure: who it is, is not yet what it
//! may.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::{CertificateError, Error};

use super::not_proven::NotProven;
use super::trust::Trust;
use crate::identity::AuthorityDigest;
use crate::identity::certificate::NodeCertificateFacts;

/// More certificates than a chain has here. The others are not looked at.
const LONGEST_CHAIN: usize = 4;

/// What one connection has shown. The handshake has proven that the other side holds the key of the first certificate. Clones are
/// the same.
#[derive(Clone)]
pub struct Peer(Arc<Shown>);

struct Shown {
    chain: Vec<CertificateDer<'static>>,
    /// What the certificate says, and the authority that it was found to be genuine by.
    genuine: Mutex<Option<(AuthorityDigest, NodeCertificateFacts)>>,
}

impl Peer {
    /// What a connection has shown, its own certificate first.
    pub fn new(chain: impl Iterator<Item = CertificateDer<'static>>) -> Self {
        Self(Arc::new(Shown {
            chain: chain.take(LONGEST_CHAIN).collect(),
            genuine: Mutex::new(None),
        }))
    }

    /// What the certificate of the connection says, if it is genuine and valid at this moment. Signatures are verified once for a
    /// connection and an authority, the time at each call.
    ///
    /// # Errors
    /// Why it is not.
    pub fn prove(&self, trust: &Trust, now: Timestamp) -> Result<NodeCertificateFacts, NotProven> {
        let mut genuine = self.0.genuine.lock().unwrap_or_else(PoisonError::into_inner);
        let facts = match &*genuine {
            Some((authority, facts)) if trust.trusts(*authority) => facts.clone(),
            _ => {
                let (authority, facts) = self.verify(trust, now)?;
                *genuine = Some((authority, facts.clone()));
                facts
            }
        };
        check(&facts, trust, now)?;
        Ok(facts)
    }

    /// The authority that the connection has last proven itself by; `None` before it has.
    pub fn authority(&self) -> Option<AuthorityDigest> {
        let genuine = self.0.genuine.lock().unwrap_or_else(PoisonError::into_inner);
        genuine.as_ref().map(|(authority, _)| *authority)
    }

    fn verify(
        &self,
        trust: &Trust,
        now: Timestamp,
    ) -> Result<(AuthorityDigest, NodeCertificateFacts), NotProven> {
        let (own, above) = self.0.chain.split_first().ok_or(NotProven::NoCertificate)?;
        let seconds = u64::try_from(now.as_second()).unwrap_or(0);
        let at = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let mut refused = NotProven::Foreign;
        for (authority, verifier) in &trust.trusted {
            match verifier.verify_client_cert(own, above, at) {
                Ok(_) => {
                    let facts = NodeCertificateFacts::read(own).map_err(|_| NotProven::NotOfNode)?;
                    return Ok((*authority, facts));
                }
                // What one of them says of the time counts more than that the other has not signed it.
                Err(error) if refused == NotProven::Foreign => refused = reason(&error),
                Err(_) => {}
            }
        }
        Err(refused)
    }
}

fn check(facts: &NodeCertificateFacts, trust: &Trust, now: Timestamp) -> Result<(), NotProven> {
    if now < facts.not_before {
        return Err(NotProven::NotYetValid);
    }
    if now > facts.not_after {
        return Err(NotProven::Expired);
    }
    match facts.cluster == trust.cluster {
        true => Ok(()),
        false => Err(NotProven::OtherCluster),
    }
}

fn reason(error: &Error) -> NotProven {
    use CertificateError as Bad;
    match error {
        Error::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. }) => NotProven::Expired,
        Error::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. }) => {
            NotProven::NotYetValid
        }
        _ => NotProven::Foreign,
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
    use tokio_rustls::rustls::pki_types::pem::PemObject;

    use super::super::trust::make;
    use super::*;
    use crate::etcd::ClusterId;
    use crate::identity::node::{NodeHolder, NodeRole, certificate};
    use crate::identity::request::RequestedKey;
    use crate::identity::{Authority, AuthorityKind};

    const CLUSTER: ClusterId = ClusterId(0xc0_ffee);

    const UID: &str = "0b3a2f0e-55a6-4a3e-9d0c-2f6f4d1c9b11";

    fn now() -> Timestamp {
        "2026-03-01T12:00:00Z".parse().unwrap()
    }

    fn hours(hours: i64) -> SignedDuration {
        SignedDuration::from_hours(hours)
    }

    fn authority() -> Authority {
        Authority::create(AuthorityKind::Node, now()).unwrap().0
    }

    /// A node whose certificate is valid for three hours, the least that is advised.
    fn node(authority: &Authority, cluster: ClusterId) -> Peer {
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let request = CertificateParams::default().serialize_request(&key).unwrap();
        let requested = RequestedKey::read(request.der()).unwrap();
        let holder = NodeHolder {
            cluster,
            uid: UID,
            name: "n1",
            role: NodeRole::Worker,
        };
        let signed = certificate(authority, &requested, holder, hours(3), now()).unwrap();
        let pem = signed.chain_pem.as_bytes();
        Peer::new(CertificateDer::pem_slice_iter(pem).map(Result::unwrap))
    }

    #[test]
    fn a_clock_that_is_an_hour_wrong_refuses_no_valid_certificate() {
        let authority = authority();
        let trust = make(&authority, None, CLUSTER, now()).unwrap();
        for (off, expected) in [
            (hours(-3), Err(NotProven::NotYetValid)),
            (hours(-1), Ok(UID)),
            (hours(0), Ok(UID)),
            (hours(1), Ok(UID)),
            (hours(4), Err(NotProven::Expired)),
        ] {
            let peer = node(&authority, CLUSTER);
            let proven = peer.prove(&trust, now() + off).map(|facts| facts.uid);
            assert_eq!(proven, expected.map(str::to_owned), "{off}");
        }
        // A connection that has proven itself does so no longer than its certificate is valid.
        let peer = node(&authority, CLUSTER);
        peer.prove(&trust, now()).unwrap();
        assert_eq!(peer.prove(&trust, now() + hours(4)), Err(NotProven::Expired));
        assert!(peer.prove(&trust, now() + hours(2)).is_ok());
    }

    #[test]
    fn only_the_authority_of_this_cluster_counts() {
        let (own, other) = (authority(), authority());
        let trust = make(&own, None, CLUSTER, now()).unwrap();
        let foreign = node(&other, CLUSTER);
        assert_eq!(foreign.prove(&trust, now()), Err(NotProven::Foreign));
        let elsewhere = node(&own, ClusterId(1));
        assert_eq!(elsewhere.prove(&trust, now()), Err(NotProven::OtherCluster));
        let nothing = Peer::new(std::iter::empty());
        assert_eq!(nothing.prove(&trust, now()), Err(NotProven::NoCertificate));
        let garbage = Peer::new([CertificateDer::from(vec![1, 2, 3])].into_iter());
        assert_eq!(garbage.prove(&trust, now()), Err(NotProven::Foreign));
        // The authority itself is no node, and neither is a server.
        let itself = Peer::new([CertificateDer::from(own.certificate_der().to_vec())].into_iter());
        assert_eq!(itself.prove(&trust, now()), Err(NotProven::Foreign));
        let server = crate::identity::control::certificate(&own, CLUSTER, now()).unwrap();
        let server = Peer::new(server.chain.into_iter().map(CertificateDer::from));
        assert_eq!(server.prove(&trust, now()), Err(NotProven::Foreign));
        // After a change of the authority, what the former one has signed is foreign, also on a connection that is open.
        let open = node(&own, CLUSTER);
        open.prove(&trust, now()).unwrap();
        let later = make(&other, None, CLUSTER, now()).unwrap();
        assert_eq!(open.prove(&later, now()), Err(NotProven::Foreign));
    }
    #[test]
    fn while_authorities_are_rotated_both_count_and_a_connection_says_which_it_has_proven_itself_by() {
        let former = authority();
        let (new, _, cross) = Authority::create_after(AuthorityKind::Node, &former, now()).unwrap();
        let new = new.crossed(&cross);
        let both = make(&new, Some(&former), CLUSTER, now()).unwrap();
        let (old, renewed) = (node(&former, CLUSTER), node(&new, CLUSTER));
        assert_eq!(old.authority(), None);
        for (peer, by) in [(&old, &former), (&renewed, &new)] {
            peer.prove(&both, now()).unwrap();
            assert_eq!(peer.authority(), Some(by.digest()));
        }
        let expired = node(&former, CLUSTER).prove(&both, now() + hours(4));
        assert_eq!(expired, Err(NotProven::Expired));
        // The former one is dropped, also for a connection that is open.
        let alone = make(&new, None, CLUSTER, now()).unwrap();
        assert_eq!(old.prove(&alone, now()), Err(NotProven::Foreign));
        assert!(renewed.prove(&alone, now()).is_ok());
    }
}
