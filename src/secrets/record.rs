//! The stored value of a Secret, encrypted to another key.

use prost::Message as _;

use super::key::{Keyring, Recipient};
use super::seal::{CannotSeal, Closed, open, seal};
use crate::proto::{Secret, SecretData};
use crate::store::object::secret::{Form, form};
use crate::store::object::{Malformed, decode};
use crate::wipe::{Zeroizing, wipe};
use crate::wire::updated;

/// Why a stored value cannot be encrypted to another key. No message has a value of the Secret in it.
#[derive(Debug, thiserror::Error)]
pub enum NotEncrypted {
    /// It is no Secret.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// It cannot be decrypted with the keys that are here.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// It cannot be encrypted.
    #[error(transparent)]
    CannotSeal(#[from] CannotSeal),
}

/// The value of the Secret `name` with its data encrypted to the recipient; `None` if it is so already, or if Kubernetes has them. What only
/// a later release knows stays. Plain values need no key. Where the keyring has the recipient's key, what it encrypts already must open.
///
/// # Errors
/// [`NotEncrypted`].
pub fn encrypted(
    recipient: &Recipient,
    keyring: &Keyring,
    etcd_key: &[u8],
    name: &str,
    value: &[u8],
) -> Result<Option<Vec<u8>>, NotEncrypted> {
    let mut secret: Secret = decode(name, value)?;
    let before = Zeroizing::new(secret.encode_to_vec());
    let data = match form(&secret) {
        Form::Kubernetes(_) => return Ok(None),
        Form::Sealed(sealed) if sealed.key_id == recipient.id().as_str() => {
            // A record may say any key id: with the key, it has to open.
            if keyring.get(&sealed.key_id).is_some() {
                open(keyring, etcd_key, sealed)?;
            }
            return Ok(None);
        }
        Form::Sealed(sealed) => open(keyring, etcd_key, sealed)?,
        Form::Plain => SecretData {
            data: std::mem::take(&mut secret.data),
        },
    };
    secret.sealed = Some(seal(recipient, etcd_key, &data.data)?);
    secret.data.values_mut().for_each(wipe);
    secret.data.clear();
    Ok(Some(updated(value, &before, &secret)))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::super::key::tests::keyring;
    use super::*;
    use crate::proto::{KubernetesSecret, Metadata};

    const KEY: &[u8] = b"/quorate/secrets/a";

    const SENTINEL: &[u8] = b"xyzzy-s3cr3t";

    fn plain() -> Secret {
        Secret {
            metadata: Some(Metadata::new("a", "u", Timestamp::UNIX_EPOCH)),
            data: [("token".to_owned(), SENTINEL.to_vec())].into(),
            sealed: None,
            kubernetes: None,
        }
    }

    fn encrypt(to: u8, with: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, NotEncrypted> {
        let recipient = keyring(&[to]);
        encrypted(
            recipient.first().unwrap().recipient(),
            &keyring(with),
            KEY,
            "a",
            value,
        )
    }

    fn holds(value: &[u8], text: &[u8]) -> bool {
        value.windows(text.len()).any(|part| part == text)
    }

    #[test]
    fn plain_values_are_encrypted_without_a_key_and_from_key_to_key_with_both() {
        // A field that only a later release knows.
        let stored = [&plain().encode_to_vec()[..], b"\xf8\x01\x07"].concat();
        assert!(holds(&stored, SENTINEL));
        let first = encrypt(1, &[], &stored).unwrap().unwrap();
        assert!(!holds(&first, SENTINEL) && holds(&first, b"\xf8\x01\x07"));
        assert!(
            encrypt(1, &[], &first).unwrap().is_none(),
            "there is nothing left to do"
        );
        let second = encrypt(2, &[2, 1], &first).unwrap().unwrap();
        assert!(!holds(&second, SENTINEL) && holds(&second, b"\xf8\x01\x07"));
        let read: Secret = decode("a", &second).unwrap();
        let opened = open(&keyring(&[2]), KEY, read.sealed.as_ref().unwrap());
        assert!(opened.is_ok_and(|opened| opened.data == plain().data));
    }

    #[test]
    fn what_the_key_encrypts_already_has_to_open_with_it() {
        let first = encrypt(1, &[], &plain().encode_to_vec()).unwrap().unwrap();
        assert!(encrypt(1, &[1], &first).unwrap().is_none());
        let mut changed: Secret = decode("a", &first).unwrap();
        changed.sealed.as_mut().unwrap().ciphertext[0] ^= 1;
        let refused = encrypt(1, &[1], &changed.encode_to_vec()).unwrap_err();
        assert!(
            matches!(refused, NotEncrypted::Closed(Closed::NotAuthentic)),
            "{refused}"
        );
    }

    #[test]
    fn a_lost_key_and_a_foreign_name_are_errors_and_kubernetes_keeps_its_values() {
        let stored = plain().encode_to_vec();
        let first = encrypt(1, &[], &stored).unwrap().unwrap();
        let lost = encrypt(2, &[2], &first).unwrap_err();
        assert!(
            matches!(lost, NotEncrypted::Closed(Closed::UnknownKey(_))),
            "{lost}"
        );
        let mut other = plain();
        other.metadata = Some(Metadata::new("b", "u", Timestamp::UNIX_EPOCH));
        let foreign = encrypt(1, &[], &other.encode_to_vec()).unwrap_err();
        assert!(matches!(foreign, NotEncrypted::Malformed(_)), "{foreign}");
        let mut elsewhere = plain();
        elsewhere.data.clear();
        elsewhere.kubernetes = Some(KubernetesSecret::default());
        assert!(encrypt(1, &[], &elsewhere.encode_to_vec()).unwrap().is_none());
    }
}
