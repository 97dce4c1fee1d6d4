//! Whom an agent takes for a server: who shows a certificate that the authority of the pinned digest has signed, for the cluster
//! that it has joined.
//!
//! A server sends the certificate of its authority along. The one with the pinned digest is the only anchor that the certificate of
//! the server is verified against. That it occurs in the chain proves nothing, since anyone can append it.

use std::sync::Arc;

use jiff::Timestamp;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime,
};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    self, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use crate::etcd::ClusterId;
use crate::identity::control::{cluster_of_server, server_name};
use crate::identity::validity::{begins_after, is_valid_at};
use crate::identity::{AuthorityDigest, NodeChain, NodeKey, is_signed_by};

/// The servers that an agent talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// The authority that signs for them.
    pub authority: AuthorityDigest,
    /// Their cluster; `None` before the node has joined one.
    pub cluster: Option<ClusterId>,
}

/// Whether the authority of this digest is among the certificates that a server has shown, and has signed this certificate (DER).
pub fn shows_signer(shown: &[CertificateDer<'_>], authority: AuthorityDigest, certificate: &[u8]) -> bool {
    let mut shown = shown.iter();
    shown.any(|other| AuthorityDigest::of(other) == authority && is_signed_by(certificate, other))
}

/// Verifies that a server is one of [`Pinned`].
#[derive(Debug)]
struct Verifier {
    pinned: Pinned,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    /// Fails unless the anchor signs for the certificate of the server, for this name and now.
    fn verify(
        &self,
        server: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let is_pinned = |other: &&CertificateDer<'_>| AuthorityDigest::of(other) == self.pinned.authority;
        let anchor = others
            .iter()
            .find(is_pinned)
            .ok_or(CertificateError::UnknownIssuer)?;
        let second = i64::try_from(now.as_secs()).ok();
        let time = second.and_then(|second| Timestamp::from_second(second).ok());
        // An anchor's own time is not looked at by those who verify against it.
        if !time.is_some_and(|time| is_valid_at(anchor, time)) {
            // The two errors say in which direction a clock is off.
            let is_early = time.is_some_and(|time| begins_after(anchor, time));
            return Err(match is_early {
                true => CertificateError::NotValidYet.into(),
                false => CertificateError::Expired.into(),
            });
        }
        let cluster = self.pinned.cluster.or_else(|| cluster_of_server(server));
        let name = cluster
            .map(server_name)
            .ok_or(CertificateError::NotValidForName)?;
        let name = ServerName::try_from(name).map_err(|_| CertificateError::NotValidForName)?;
        let mut anchors = RootCertStore::empty();
        anchors.add(anchor.clone().into_owned())?;
        WebPkiServerVerifier::builder_with_provider(Arc::new(anchors), self.provider.clone())
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?
            .verify_server_cert(server, others, &name, &[], now)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        server: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        // The host that was dialled: a Service, NAT or a bare address may stand for any server.
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.verify(server, others, now)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.3 is required".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// The client's side of TLS 1.3 with these servers. With an identity it shows the certificate of the node. The error is a sentence
/// for people.
pub fn client_config(
    pinned: Pinned,
    identity: Option<(&NodeKey, &NodeChain)>,
) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Verifier {
        pinned,
        provider: provider.clone(),
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match identity {
        None => config.with_no_client_auth(),
        Some((key, chain)) => {
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.der()));
            let chain = chain.certificates.iter().cloned().map(CertificateDer::from);
            config.with_client_auth_cert(chain.collect(), key)?
        }
    };
    // Each connection is judged by the certificate that it shows.
    config.resumption = rustls::client::Resumption::disabled();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use tokio_rustls::rustls::pki_types::pem::PemObject;

    use super::*;
    use crate::identity::node::{self, NodeHolder, NodeRole};
    use crate::identity::{Authority, AuthorityKind, control};

    const CLUSTER: ClusterId = ClusterId(0xc0_ffee);

    fn now() -> Timestamp {
        Timestamp::from_second(Timestamp::now().as_second()).unwrap()
    }

    fn authority() -> Authority {
        Authority::create(AuthorityKind::Node, now()).unwrap().0
    }

    fn certificates(pem: &str) -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(pem.as_bytes())
            .collect::<Result<_, _>>()
            .unwrap()
    }

    /// The chain of a server of this authority, which it ends with.
    fn server(authority: &Authority, cluster: ClusterId) -> Vec<CertificateDer<'static>> {
        let leaf = control::certificate(authority, cluster, now()).unwrap();
        leaf.chain.into_iter().map(CertificateDer::from).collect()
    }

    fn verifier(authority: &Authority, cluster: Option<ClusterId>) -> Verifier {
        Verifier {
            pinned: Pinned {
                authority: authority.digest(),
                cluster,
            },
            provider: Arc::new(ring::default_provider()),
        }
    }

    fn verify(
        verifier: &Verifier,
        chain: &[CertificateDer<'static>],
        at: Timestamp,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let at = std::time::Duration::from_secs(at.as_second().unsigned_abs());
        verifier.verify(&chain[0], &chain[1..], UnixTime::since_unix_epoch(at))
    }

    #[test]
    fn a_server_of_the_pinned_authority_passes_by_its_cluster_whatever_it_was_dialled_as() {
        let authority = authority();
        let chain = server(&authority, CLUSTER);
        verify(&verifier(&authority, None), &chain, now()).unwrap();
        verify(&verifier(&authority, Some(CLUSTER)), &chain, now()).unwrap();
        let other = verifier(&authority, Some(ClusterId(0xbeef)));
        let refused = verify(&other, &chain, now()).unwrap_err();
        assert!(refused.to_string().contains("name"), "{refused}");
    }

    #[test]
    fn the_pinned_authority_at_the_end_of_another_ones_chain_proves_nothing() {
        let (real, forged) = (authority(), authority());
        let pinned = verifier(&real, None);
        let mut chain = server(&forged, CLUSTER);
        verify(&pinned, &chain, now()).unwrap_err();
        chain.extend(certificates(real.certificates_pem()));
        verify(&pinned, &chain, now()).unwrap_err();
        // In place of the one that has signed.
        chain.remove(1);
        verify(&pinned, &chain, now()).unwrap_err();
        // As the server itself.
        chain.remove(0);
        chain.push(chain[0].clone());
        verify(&pinned, &chain, now()).unwrap_err();
    }

    #[test]
    fn a_server_of_a_new_authority_passes_by_either_digest_until_the_former_one_is_dropped() {
        let former = authority();
        let (new, _, cross) = Authority::create_after(AuthorityKind::Node, &former, now()).unwrap();
        let new = new.crossed(&cross);
        let chain = |former: Option<&Authority>| -> Vec<CertificateDer<'static>> {
            let made = control::certificate_beside(&new, former, CLUSTER, now()).unwrap();
            made.chain.into_iter().map(CertificateDer::from).collect()
        };
        let both = chain(Some(&former));
        for known in [&former, &new] {
            verify(&verifier(known, Some(CLUSTER)), &both, now()).unwrap();
        }
        let alone = chain(None);
        verify(&verifier(&new, Some(CLUSTER)), &alone, now()).unwrap();
        verify(&verifier(&former, Some(CLUSTER)), &alone, now()).unwrap_err();
    }

    /// The certificate of a node that this authority has signed (DER).
    fn node(authority: &Authority) -> Vec<u8> {
        let request = NodeKey::create().unwrap().request().unwrap();
        let request = crate::identity::request::RequestedKey::read(&request).unwrap();
        let node = NodeHolder {
            cluster: CLUSTER,
            uid: "0b3a2f0e-55a6-4a3e-9d0c-2f6f4d1c9b11",
            name: "n1",
            role: NodeRole::Worker,
        };
        let leaf = node::certificate(authority, &request, node, node::LIFE, now()).unwrap();
        certificates(&leaf.chain_pem)[0].to_vec()
    }

    /// INV-13.
    #[test]
    fn the_authority_that_a_record_names_counts_where_a_server_shows_it_and_it_has_signed_the_certificate() {
        let (former, forged) = (authority(), authority());
        let shows = |shown: &[CertificateDer<'_>], of: &Authority, signed_by: &Authority| {
            shows_signer(shown, of.digest(), &node(signed_by))
        };
        let (new, _, cross) = Authority::create_after(AuthorityKind::Node, &former, now()).unwrap();
        let new = new.crossed(&cross);
        let made = control::certificate_beside(&new, Some(&former), CLUSTER, now()).unwrap();
        let shown: Vec<_> = made.chain.into_iter().map(CertificateDer::from).collect();
        assert!(shows(&shown, &new, &new) && shows(&shown, &former, &former));
        assert!(!shows(&shown, &forged, &forged), "no server shows it");
        assert!(!shows(&shown, &new, &forged), "it has not signed this one");
        let before = server(&former, CLUSTER);
        assert!(!shows(&before, &new, &new), "before the rotation");
    }

    #[test]
    fn without_the_authority_in_the_chain_and_out_of_its_time_a_server_is_refused() {
        let authority = authority();
        let chain = server(&authority, CLUSTER);
        let pinned = verifier(&authority, None);
        verify(&pinned, &chain[..1], now()).unwrap_err();
        for (hours, why) in [(-3, "NotValidYet"), (25, "xpired")] {
            let refused = verify(&pinned, &chain, now() + SignedDuration::from_hours(hours)).unwrap_err();
            assert!(refused.to_string().contains(why), "{refused}");
        }
        verify(&pinned, &chain, now() + SignedDuration::from_hours(-1)).unwrap();
    }

    #[test]
    fn a_node_is_no_server() {
        let authority = authority();
        let key = NodeKey::create().unwrap();
        let node = NodeHolder {
            cluster: CLUSTER,
            uid: "0b3a2f0e-55a6-4a3e-9d0c-2f6f4d1c9b11",
            name: "control.c0ffee.quorate",
            role: NodeRole::Manager,
        };
        let request = crate::identity::request::RequestedKey::read(&key.request().unwrap()).unwrap();
        let leaf = node::certificate(&authority, &request, node, node::LIFE, now()).unwrap();
        let mut chain = certificates(&leaf.chain_pem);
        chain.extend(certificates(authority.certificates_pem()));
        for cluster in [None, Some(CLUSTER)] {
            verify(&verifier(&authority, cluster), &chain, now()).unwrap_err();
        }
    }
}
