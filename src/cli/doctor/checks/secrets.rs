//! Secrets: whether their values are encrypted with the key in use, and whether the keys that are given decrypt them. Pure.

use super::checklist::Checklist;
use crate::cli::doctor::finding::Finding;
use crate::cli::doctor::reason::Reason;
use crate::cli::doctor::seen::Seen;
use crate::etcd::KeyValue;
use crate::proto::Secret;
use crate::secrets::{Closed, Keyring, Recipient, open};
use crate::store::Keys;
use crate::store::object::decode;
use crate::store::object::secret::{Form, form};

/// Checks each Secret. One that cannot be read as such is found with the records.
pub fn check(seen: &Seen, list: &mut Checklist) {
    let Ok(store) = &seen.store else {
        return;
    };
    let (keys, keyring) = (&seen.keys, &seen.keyring);
    let published = store.keys().find(|kv| kv.key == keys.encryption_key());
    list.check_each(published, |kv| published_key(kv, keyring));
    let in_use = published.and_then(|kv| Recipient::published(&kv.value));
    let secrets = store.keys().filter(|kv| keys.parse_secret(&kv.key).is_some());
    list.check_each(secrets, |kv| secret(keys, kv, keyring, in_use.as_ref()));
}

/// Whether what is applied now can be read. Without a key there is nothing to judge by but the record itself.
fn published_key(kv: &KeyValue, keyring: &Keyring) -> Option<Finding> {
    let subject = String::from_utf8_lossy(&kv.key);
    let Some(published) = Recipient::published(&kv.value) else {
        let found = Finding::fault(
            Reason::MalformedRecord,
            subject,
            "its record holds no encryption key",
        );
        let remedy =
            "the next leader that has a key writes it again: give --encryption-key-file to the replicas";
        return Some(found.matters("no Secret can be applied").remedy(remedy));
    };
    let id = published.id();
    let is_held = keyring
        .get(id.as_str())
        .is_some_and(|held| *held.recipient() == published);
    if is_held || keyring.first().is_none() {
        return None;
    }
    let what = format!("the encryption key in use is {id}, which none of the given key files holds");
    let found = Finding::fault(Reason::EncryptionKeyForeign, subject, what);
    Some(
        found
            .matters("no replica with these files can read what is applied now; if no replica has that key, another client wrote it")
            .remedy("give every replica the same key files; a leader with a key publishes its first one"),
    )
}

fn secret(keys: &Keys, kv: &KeyValue, keyring: &Keyring, in_use: Option<&Recipient>) -> Option<Finding> {
    let name = keys.parse_secret(&kv.key)?;
    let secret = decode::<Secret>(name, &kv.value).ok()?;
    let subject = format!("secret/{name}");
    match form(&secret) {
        Form::Kubernetes(_) => None,
        Form::Plain => in_use.map(|_| not_encrypted(&subject, "its values are not encrypted")),
        Form::Sealed(sealed) => {
            // Without a key there is nothing to judge by.
            let closed = keyring.first().and_then(|_| open(keyring, &kv.key, sealed).err());
            if let Some(closed) = closed {
                return Some(unreadable(&subject, &closed));
            }
            let is_in_use = in_use.is_none_or(|key| key.id().as_str() == sealed.key_id);
            let other = || {
                not_encrypted(
                    &subject,
                    "its values are encrypted with another key than the one in use",
                )
            };
            (!is_in_use).then(other)
        }
    }
}

fn unreadable(subject: &str, closed: &Closed) -> Finding {
    let remedy = match closed {
        Closed::UnknownKey(_) => {
            "add the file of that key to --encryption-key-file of each replica; if it is lost, quorate apply the Secret again"
        }
        Closed::UnknownVersion(_) => "run the release that wrote it, or quorate apply the Secret again",
        Closed::NotAuthentic => "find out who writes below the prefix; then quorate apply the Secret again",
    };
    Finding::fault(Reason::SecretUnreadable, subject, closed)
        .matters("no call is made for the volumes that name it; others go on")
        .remedy(remedy)
}

fn not_encrypted(subject: &str, what: &str) -> Finding {
    Finding::warning(Reason::SecretNotEncrypted, subject, what)
        .matters("who reads etcd, or a backup of it, reads plain values; and a key that is still used cannot be taken away")
        .remedy("quorate secrets rotate encrypts every Secret with the key in use")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;
    use prost::Message as _;

    use super::*;
    use crate::cli::doctor::fixtures::{keys, kv};
    use crate::proto::Metadata;
    use crate::secrets::seal;

    /// A keyring of one key, as a file gives it.
    fn keyring(text: &str) -> Keyring {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("key");
        std::fs::write(&file, text).unwrap();
        Keyring::read(&[file]).unwrap()
    }

    fn stored(sealed_to: Option<&Recipient>) -> KeyValue {
        let key = keys().secret(&"a".parse().unwrap());
        let data: BTreeMap<String, Vec<u8>> = [("token".to_owned(), b"x".to_vec())].into();
        let sealed = sealed_to.map(|recipient| seal(recipient, &key, &data).unwrap());
        let secret = Secret {
            metadata: Some(Metadata::new("a", "u", Timestamp::UNIX_EPOCH)),
            data: if sealed.is_some() {
                Default::default()
            } else {
                data
            },
            sealed,
            kubernetes: None,
        };
        kv(key, secret.encode_to_vec())
    }

    #[test]
    fn a_published_key_is_found_that_is_none_or_is_in_no_given_file() {
        let one = keyring("AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n");
        let other = keyring("AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=\n");
        let (first, none) = (one.first().unwrap().recipient(), Keyring::default());
        let record = first.to_record(prost_types::Timestamp::default());
        let found = |value: Vec<u8>, keyring: &Keyring| {
            let found = published_key(&kv(keys().encryption_key(), value), keyring);
            found.map(|found| found.reason)
        };
        assert_eq!(found(record.encode_to_vec(), &one), None);
        assert_eq!(found(record.encode_to_vec(), &none), None);
        let foreign = found(record.encode_to_vec(), &other);
        assert_eq!(foreign, Some(Reason::EncryptionKeyForeign));
        for keyring in [&one, &none] {
            let malformed = found(b"\xff".to_vec(), keyring);
            assert_eq!(malformed, Some(Reason::MalformedRecord));
        }
    }

    #[test]
    fn a_secret_is_found_that_is_plain_or_of_another_key_or_cannot_be_decrypted() {
        let one = keyring("AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n");
        let other = keyring("AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=\n");
        let first = one.first().unwrap().recipient();
        let second = other.first().unwrap().recipient();
        let none = Keyring::default();
        let found = |sealed_to, keyring: &Keyring, in_use| {
            let found = secret(&keys(), &stored(sealed_to), keyring, in_use);
            found.map(|found| found.reason)
        };
        assert_eq!(found(None, &none, None), None, "no key is in use");
        assert_eq!(found(None, &none, Some(first)), Some(Reason::SecretNotEncrypted));
        assert_eq!(found(Some(first), &none, Some(first)), None);
        assert_eq!(found(Some(first), &one, Some(first)), None);
        assert_eq!(
            found(Some(first), &one, Some(second)),
            Some(Reason::SecretNotEncrypted)
        );
        assert_eq!(
            found(Some(first), &other, Some(first)),
            Some(Reason::SecretUnreadable)
        );
    }
}
