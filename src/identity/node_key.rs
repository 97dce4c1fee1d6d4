//! The key of a node: made by its agent, and nowhere else.

use std::fmt;

use rcgen::{CertificateParams, DistinguishedName, KeyPair, PublicKeyData};

use super::NotMade;

/// A key pair (ECDSA P-256).
pub struct NodeKey(KeyPair);

/// A text is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an unencrypted PKCS #8 key in PEM")]
pub struct BadKey;

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeKey").finish_non_exhaustive()
    }
}

impl NodeKey {
    /// Makes a new key.
    ///
    /// # Errors
    /// If the machine's source of random bits fails.
    pub fn create() -> Result<Self, NotMade> {
        Ok(Self(KeyPair::generate()?))
    }

    /// Reads a key as [`pem`](Self::pem) writes it.
    ///
    /// # Errors
    /// If it is none.
    pub fn read(pem: &str) -> Result<Self, BadKey> {
        // The error may quote a line of the key.
        KeyPair::from_pem(pem).map(Self).map_err(|_| BadKey)
    }

    /// The key as text (PEM, PKCS #8): for the state of the agent, and for no log.
    pub fn pem(&self) -> String {
        self.0.serialize_pem()
    }

    /// The private key (DER, PKCS #8).
    pub fn der(&self) -> Vec<u8> {
        self.0.serialize_der()
    }

    /// A request for a certificate (PKCS #10 in DER). It shows that its sender holds the key, and says nothing else: nothing else
    /// counts.
    ///
    /// # Errors
    /// If the machine's source of random bits fails.
    pub fn request(&self) -> Result<Vec<u8>, NotMade> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        Ok(params.serialize_request(&self.0)?.der().to_vec())
    }

    /// The public key (SubjectPublicKeyInfo in DER).
    pub fn public_key(&self) -> Vec<u8> {
        self.0.subject_public_key_info()
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::RequestedKey;
    use super::*;

    #[test]
    fn a_request_is_taken_and_is_of_the_key_also_after_it_was_stored() {
        let key = NodeKey::create().unwrap();
        let stored = NodeKey::read(&key.pem()).unwrap();
        for request in [key.request().unwrap(), stored.request().unwrap()] {
            assert_eq!(RequestedKey::read(&request).unwrap().der, key.public_key());
        }
        assert_ne!(NodeKey::create().unwrap().public_key(), key.public_key());
    }

    #[test]
    fn a_key_is_in_no_message() {
        let key = NodeKey::create().unwrap();
        assert_eq!(format!("{key:?}"), "NodeKey { .. }");
        let line = key.pem().lines().nth(1).unwrap().to_owned();
        let torn = key.pem().replace(&line, &format!("{line}\n{line}"));
        let bad = NodeKey::read(&torn).unwrap_err();
        assert!(!bad.to_string().contains(&line), "{bad}");
    }
}
