//! TLS as the control port speaks it: version 1.3 alone, and no connection continues another one.

use std::sync::Arc;

use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme,
};

use crate::identity::control::ServerCertificate;

/// The server's side with this certificate.
///
/// # Errors
/// If the key is not that of the certificate.
pub fn server_config(certificate: ServerCertificate) -> Result<ServerConfig, Error> {
    let provider = provider();
    let any = AnyCertificate(provider.signature_verification_algorithms);
    let chain = certificate.chain.into_iter().map(CertificateDer::from);
    let key = PrivatePkcs8KeyDer::from(certificate.key);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(any))
        .with_single_cert(chain.collect(), key.into())?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    // A client that resumes a connection shows no certificate again. There is no early data either: it needs a resumption.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Verifies that a chain leads to this certificate (DER), which signs for nodes, and that the first may be shown by a client.
///
/// # Errors
/// If the certificate cannot be a root.
pub fn verifier_of(authority: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
    let mut roots = RootCertStore::empty();
    // One that cannot be a root leaves the store empty, which the builder refuses.
    roots.add_parsable_certificates([CertificateDer::from(authority.to_vec())]);
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build()
}

/// In the handshake a client proves that it holds the key of its certificate, if it shows one, and no more: each call is judged for
/// itself (INV-13), and a node that joins has no certificate yet.
#[derive(Debug)]
struct AnyCertificate(WebPkiSupportedAlgorithms);

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
