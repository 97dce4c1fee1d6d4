//! Sealing and opening: values are encrypted to a public key, and bound to the key of etcd under which they lie.
//!
//! For each sealing a key pair is made. The agreement of its private half with the recipient's public key gives a key of AES-256-GCM
//! by HKDF-SHA-256, which encrypts these values and nothing else: its nonce may be the same each time. What is not encrypted is
//! authenticated with them: format, key id, names, and the key of etcd, so that values open under the key alone for which they
//! were sealed.

use std::collections::BTreeMap;

use prost::Message as _;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom as _, SystemRandom};
use x25519_dalek::{PublicKey, SharedSecret, StaticSecret};

use super::key::{Keyring, Recipient};
use crate::proto::{SealedData, SecretData};
use crate::wipe::wipe;

/// The format that [`seal`] writes.
const VERSION: u32 = 1;

/// Separates these keys and tags from those of any other protocol.
const DOMAIN: &[u8] = b"quorate.dev/secret/v1";

/// Values cannot be sealed.
#[derive(Debug, thiserror::Error)]
#[error("the values cannot be encrypted: the machine gave no random bits, or the published key is none")]
pub struct CannotSeal;

/// Why sealed values cannot be opened. No message has a value in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// A later release has sealed them.
    #[error("its values are encrypted in format {0}, which this release does not know")]
    UnknownVersion(u32),
    /// The key with which they were sealed is not here.
    #[error("its values are encrypted with key {0}, which no key file here holds")]
    UnknownKey(String),
    /// They, or something that they are bound to, are not as they were sealed.
    #[error(
        "its encrypted values are not authentic: they were changed, or moved here from another key of etcd"
    )]
    NotAuthentic,
}

/// Nothing is left of opened values.
impl Drop for SecretData {
    fn drop(&mut self) {
        self.data.values_mut().for_each(wipe);
    }
}

/// Encrypts values to a recipient, for this key of etcd.
///
/// # Errors
/// [`CannotSeal`].
pub fn seal(
    recipient: &Recipient,
    etcd_key: &[u8],
    data: &BTreeMap<String, Vec<u8>>,
) -> Result<SealedData, CannotSeal> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).map_err(|_| CannotSeal)?;
    let private = StaticSecret::from(bytes);
    wipe(&mut bytes);
    let ephemeral = PublicKey::from(&private);
    let mut sealed = SealedData {
        version: VERSION,
        key_id: recipient.id().to_string(),
        ephemeral_key: ephemeral.as_bytes().to_vec(),
        ciphertext: Vec::new(),
        names: data.keys().cloned().collect(),
    };
    let agreed = private.diffie_hellman(&recipient.public);
    let key = derive(&agreed, &ephemeral, &recipient.public).ok_or(CannotSeal)?;
    let plain = SecretData { data: data.clone() };
    // With room for the tag: a buffer that grows leaves a copy behind.
    let mut buffer = Vec::with_capacity(plain.encoded_len() + AES_256_GCM.tag_len());
    plain.encode(&mut buffer).map_err(|_| CannotSeal)?;
    let aad = Aad::from(bound(&sealed, etcd_key));
    let encrypted = key.seal_in_place_append_tag(nonce(), aad, &mut buffer);
    if encrypted.is_err() {
        wipe(&mut buffer);
        return Err(CannotSeal);
    }
    sealed.ciphertext = buffer;
    Ok(sealed)
}

/// Decrypts values that were sealed for this key of etcd.
///
/// # Errors
/// [`Closed`].
pub fn open(keyring: &Keyring, etcd_key: &[u8], sealed: &SealedData) -> Result<SecretData, Closed> {
    if sealed.version != VERSION {
        return Err(Closed::UnknownVersion(sealed.version));
    }
    let held = keyring.get(&sealed.key_id);
    let held = held.ok_or_else(|| Closed::UnknownKey(shown(&sealed.key_id)))?;
    let ephemeral: [u8; 32] = sealed
        .ephemeral_key
        .as_slice()
        .try_into()
        .map_err(|_| Closed::NotAuthentic)?;
    let ephemeral = PublicKey::from(ephemeral);
    let agreed = held.private.diffie_hellman(&ephemeral);
    let key = derive(&agreed, &ephemeral, &held.recipient().public).ok_or(Closed::NotAuthentic)?;
    let mut buffer = sealed.ciphertext.clone();
    let aad = Aad::from(bound(sealed, etcd_key));
    let opened = match key.open_in_place(nonce(), aad, &mut buffer) {
        Ok(plain) => SecretData::decode(&*plain).map_err(|_| Closed::NotAuthentic),
        Err(_) => Err(Closed::NotAuthentic),
    };
    wipe(&mut buffer);
    opened
}

/// The key of one sealing; `None` where a public key is one of the few with which every agreement is the same.
fn derive(agreed: &SharedSecret, ephemeral: &PublicKey, recipient: &PublicKey) -> Option<LessSafeKey> {
    if !agreed.was_contributory() {
        return None;
    }
    let secret = Salt::new(HKDF_SHA256, DOMAIN).extract(agreed.as_bytes());
    let info: [&[u8]; 2] = [ephemeral.as_bytes(), recipient.as_bytes()];
    let key = secret.expand(&info, &AES_256_GCM).ok()?;
    Some(LessSafeKey::new(UnboundKey::from(key)))
}

/// The same each time, since each key encrypts once.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

/// What is authenticated with the values. Each part follows its length, so that no two lists of parts are the same bytes.
fn bound(sealed: &SealedData, etcd_key: &[u8]) -> Vec<u8> {
    let version = sealed.version.to_be_bytes();
    let head: [&[u8]; 4] = [DOMAIN, &version, sealed.key_id.as_bytes(), etcd_key];
    let names = sealed.names.iter().map(String::as_bytes);
    let mut bytes = Vec::new();
    for part in head.into_iter().chain(names) {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

/// A key id for a message: a record may hold any text.
fn shown(id: &str) -> String {
    let is_id = id.len() <= 64 && id.chars().all(|c| c.is_ascii_alphanumeric());
    match is_id && !id.is_empty() {
        true => id.to_owned(),
        false => "of an id that is none".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::key::tests::keyring;
    use super::*;

    const HERE: &[u8] = b"/quorate/secrets/a";

    fn data() -> BTreeMap<String, Vec<u8>> {
        [
            ("token".to_owned(), b"xyzzy-s3cr3t".to_vec()),
            ("user".to_owned(), b"u".to_vec()),
        ]
        .into()
    }

    fn sealed() -> SealedData {
        seal(keyring(&[1]).first().unwrap().recipient(), HERE, &data()).unwrap()
    }

    /// The outcome without the values: these have no Debug.
    fn outcome(keys: &Keyring, etcd_key: &[u8], sealed: &SealedData) -> Result<(), Closed> {
        open(keys, etcd_key, sealed).map(|opened| assert!(opened.data == data()))
    }

    proptest! {
        #[test]
        fn values_come_back_as_they_were_and_are_not_in_what_is_stored(
            data in proptest::collection::btree_map("[a-z]{1,8}", proptest::collection::vec(any::<u8>(), 8..64), 0..5),
            etcd_key in proptest::collection::vec(any::<u8>(), 1..64),
        ) {
            let keys = keyring(&[2, 1]);
            let sealed = seal(keyring(&[1]).first().unwrap().recipient(), &etcd_key, &data).unwrap();
            let stored = sealed.encode_to_vec();
            for value in data.values() {
                prop_assert!(!stored.windows(value.len()).any(|part| part == value.as_slice()));
            }
            let read = SealedData::decode(&*stored).unwrap();
            prop_assert!(open(&keys, &etcd_key, &read).is_ok_and(|opened| opened.data == data));
        }
    }

    #[test]
    fn every_byte_that_is_flipped_is_refused() {
        let (keys, sealed) = (keyring(&[1]), sealed());
        assert_eq!(outcome(&keys, HERE, &sealed), Ok(()));
        for at in 0..sealed.ciphertext.len() {
            let mut flipped = sealed.clone();
            flipped.ciphertext[at] ^= 1;
            assert_eq!(
                outcome(&keys, HERE, &flipped),
                Err(Closed::NotAuthentic),
                "byte {at}"
            );
        }
        for at in 0..sealed.ephemeral_key.len() {
            for bit in [1, 0x80] {
                let mut flipped = sealed.clone();
                flipped.ephemeral_key[at] ^= bit;
                assert_eq!(
                    outcome(&keys, HERE, &flipped),
                    Err(Closed::NotAuthentic),
                    "byte {at}"
                );
            }
        }
        let changes: [fn(&mut SealedData); 4] = [
            |sealed| sealed.names.reverse(),
            |sealed| sealed.names = vec!["tokenuser".to_owned()],
            |sealed| sealed.ephemeral_key = vec![0; 32],
            |sealed| sealed.ephemeral_key.push(0),
        ];
        for change in changes {
            let mut changed = sealed.clone();
            change(&mut changed);
            assert_eq!(outcome(&keys, HERE, &changed), Err(Closed::NotAuthentic));
        }
    }

    #[test]
    fn what_is_cut_short_is_refused() {
        let (keys, sealed) = (keyring(&[1]), sealed());
        for length in 0..sealed.ciphertext.len() {
            let mut cut = sealed.clone();
            cut.ciphertext.truncate(length);
            assert_eq!(
                outcome(&keys, HERE, &cut),
                Err(Closed::NotAuthentic),
                "{length} bytes"
            );
        }
    }

    #[test]
    fn values_that_were_moved_to_another_key_of_etcd_are_refused() {
        let (keys, sealed) = (keyring(&[1]), sealed());
        for elsewhere in [
            &b"/quorate/secrets/b"[..],
            b"/other/secrets/a",
            b"",
            b"/quorate/secrets/a/",
        ] {
            assert_eq!(outcome(&keys, elsewhere, &sealed), Err(Closed::NotAuthentic));
        }
    }

    #[test]
    fn an_unknown_key_and_an_unknown_format_are_named() {
        let mut sealed = sealed();
        let id = sealed.key_id.clone();
        let unknown = Closed::UnknownKey(id.clone());
        assert_eq!(outcome(&keyring(&[2, 3]), HERE, &sealed), Err(unknown.clone()));
        assert!(unknown.to_string().contains(&id));
        sealed.version = 2;
        assert_eq!(
            outcome(&keyring(&[1]), HERE, &sealed),
            Err(Closed::UnknownVersion(2))
        );
        let other = keyring(&[2]).first().unwrap().id().to_string();
        sealed.version = 1;
        sealed.key_id = other;
        assert_eq!(
            outcome(&keyring(&[1, 2]), HERE, &sealed),
            Err(Closed::NotAuthentic)
        );
    }

    #[test]
    fn two_sealings_of_the_same_values_have_nothing_in_common() {
        let (one, other) = (sealed(), sealed());
        assert_ne!(one.ephemeral_key, other.ephemeral_key);
        assert_ne!(one.ciphertext, other.ciphertext);
    }
}
