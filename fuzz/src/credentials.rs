//! What people and peers are known by: kubeconfigs, requests for certificates, certificates, tokens and keys.

use std::path::Path;

use futures::FutureExt as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use quorate::identity::certificate::NodeCertificateFacts;
use quorate::identity::control::{cluster_of_server, server_name};
use quorate::identity::leaf::Leaf;
use quorate::identity::request::{MOST_BYTES, RequestedKey};
use quorate::identity::{
    AuthorityCertificate, AuthorityDigest, NodeChain, NodeKey, Token, crl, ends, etcd, validity,
};
use quorate::secrets::Keyring;

use crate::given::NOW;

/// A kubeconfig. What it names in files and programs is left out: no input reads or runs anything.
pub fn kubeconfig(data: &[u8]) {
    let Ok(mut config) = Kubeconfig::from_yaml(crate::text(data)) else {
        return;
    };
    for cluster in config
        .clusters
        .iter_mut()
        .filter_map(|named| named.cluster.as_mut())
    {
        cluster.certificate_authority = None;
    }
    for user in config
        .auth_infos
        .iter_mut()
        .filter_map(|named| named.auth_info.as_mut())
    {
        (user.client_certificate, user.client_key, user.token_file) = (None, None, None);
        (user.exec, user.auth_provider) = (None, None);
    }
    let options = KubeConfigOptions::default();
    let read = kube::Config::from_custom_kubeconfig(config, &options);
    if let Some(Err(error)) = read.now_or_never() {
        assert!(!error.to_string().is_empty());
    }
}

/// A request for a certificate, from an agent that may be anything.
pub fn requests(data: &[u8]) {
    let read = RequestedKey::read(data);
    assert!(data.len() <= MOST_BYTES || read.is_err());
    if let Err(bad) = read {
        assert!(
            bad.to_string().contains("request") || bad.to_string().contains("its "),
            "{bad}"
        );
    }
}

/// Certificates: in PEM where the input begins like that, else in DER.
pub fn certificates(data: &[u8]) {
    if !data.starts_with(b"-----") {
        let pem = crl::to_pem(data.to_vec()).replace("X509 CRL", "CERTIFICATE");
        texts(&pem);
        der(data);
        return;
    }
    texts(crate::text(data));
}

fn texts(text: &str) {
    if let Ok(chain) = NodeChain::read(text) {
        assert!(!chain.certificates.is_empty());
        chain.life();
    }
    if let Some(leaf) = Leaf::of_pem(text) {
        leaf.life();
        for host in &leaf.hosts {
            assert_eq!(etcd::Host::parse(&host.to_string()).as_ref(), Ok(host));
        }
    }
    ends::of_pem(text.as_bytes());
    _ = etcd::first_of(text);
    match AuthorityCertificate::read(text.as_bytes(), NOW) {
        Ok(authority) => {
            let again = AuthorityCertificate::read(authority.certificates_pem().as_bytes(), NOW);
            assert_eq!(again.map(|again| again.digest()).ok(), Some(authority.digest()));
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
    if let Ok(key) = NodeKey::read(text) {
        let again = NodeKey::read(&key.pem());
        assert_eq!(again.map(|again| again.public_key()), Ok(key.public_key()));
    }
}

fn der(data: &[u8]) {
    if let Some(cluster) = cluster_of_server(data) {
        assert!(server_name(cluster).ends_with(".quorate"));
    }
    if let Ok(facts) = NodeCertificateFacts::read(data) {
        assert!(!facts.uid.is_empty());
    }
    assert!(!(validity::begins_after(data, NOW) && validity::is_valid_at(data, NOW)));
    crl::number(data);
    AuthorityDigest::of(data);
}

/// A join token, and the digest of an authority.
pub fn tokens(data: &[u8]) {
    let text = crate::text(data);
    match text.parse::<Token>() {
        Ok(token) => assert_eq!(token.reveal(), text),
        Err(bad) => assert!(bad.to_string().contains("not a join token"), "{bad}"),
    }
    if let Ok(digest) = text.parse::<AuthorityDigest>() {
        assert_eq!(digest.to_string(), text);
    }
}

/// The file of an encryption key.
pub fn encryption_keys(data: &[u8]) {
    let text = crate::text(data);
    match Keyring::parse(Path::new("a.key"), text) {
        Ok(keyring) => {
            let first = keyring.first().map(|key| key.id().clone());
            let known = first.as_ref().and_then(|id| keyring.get(id.as_str()));
            assert!(known.is_some(), "a file without a key is refused");
        }
        Err(bad) => {
            let said = bad.to_string();
            assert!(said.contains("a.key"), "{said}");
            // A key is one word; the message, which an input may hold, is not.
            let secret = text
                .lines()
                .map(str::trim)
                .find(|line| line.len() > 20 && !line.starts_with('#') && !line.contains(' '));
            assert!(
                secret.is_none_or(|line| !said.contains(line)),
                "no part of a key is in a message"
            );
        }
    }
}
