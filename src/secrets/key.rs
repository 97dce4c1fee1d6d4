//! Encryption keys: the private halves from files, the public one as etcd holds it.

use std::fmt;
use std::path::{Path, PathBuf};

use data_encoding::{BASE64, HEXLOWER};
use prost::Message as _;
use ring::digest;
use x25519_dalek::{PublicKey, StaticSecret};

use crate::proto::EncryptionKey;
use crate::wipe::{Zeroizing, wipe};

/// Bytes of a key.
const LENGTH: usize = 32;

/// Bytes of the digest of a public key that its id shows: enough that no two of a cluster's keys share one.
const ID_LENGTH: usize = 8;

/// Names a key pair: the beginning of the SHA-256 of its public half.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyId(String);

impl KeyId {
    fn of(public: &PublicKey) -> Self {
        let digest = digest::digest(&digest::SHA256, public.as_bytes());
        Self(HEXLOWER.encode(&digest.as_ref()[..ID_LENGTH]))
    }

    /// The text, as records have it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The public half of a key pair: encrypts, and opens nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipient {
    id: KeyId,
    pub(super) public: PublicKey,
}

impl Recipient {
    fn new(public: PublicKey) -> Self {
        Self {
            id: KeyId::of(&public),
            public,
        }
    }

    /// The id of the pair.
    pub fn id(&self) -> &KeyId {
        &self.id
    }

    /// What a record of etcd says; `None` if it does not hold a key with this id.
    pub fn from_record(record: &EncryptionKey) -> Option<Self> {
        let bytes: [u8; LENGTH] = record.public_key.as_slice().try_into().ok()?;
        let recipient = Self::new(PublicKey::from(bytes));
        (recipient.id.as_str() == record.key_id).then_some(recipient)
    }

    /// The key in this value of etcd; `None` if that holds none.
    pub fn published(value: &[u8]) -> Option<Self> {
        Self::from_record(&EncryptionKey::decode(value).ok()?)
    }

    /// The record of this key, since this moment.
    pub fn to_record(&self, since: prost_types::Timestamp) -> EncryptionKey {
        EncryptionKey {
            key_id: self.id.to_string(),
            public_key: self.public.as_bytes().to_vec(),
            since: Some(since),
        }
    }
}

/// A key pair. Its private half is overwritten when it is dropped.
pub struct Key {
    pub(super) private: StaticSecret,
    recipient: Recipient,
}

impl Key {
    fn new(private: StaticSecret) -> Self {
        let recipient = Recipient::new(PublicKey::from(&private));
        Self { private, recipient }
    }

    /// The id of the pair.
    pub fn id(&self) -> &KeyId {
        &self.recipient.id
    }

    /// The public half.
    pub fn recipient(&self) -> &Recipient {
        &self.recipient
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("id", self.id())
            .finish_non_exhaustive()
    }
}

/// The keys that this process has. The first encrypts, and all open.
#[derive(Debug, Default)]
pub struct Keyring(Vec<Key>);

/// Why a key file cannot be used. No part of a key is in the message.
#[derive(Debug, thiserror::Error)]
pub enum BadKeyFile {
    /// It cannot be read.
    #[error("cannot read the key file {file}: {reason}")]
    Unreadable {
        /// Its path.
        file: String,
        /// The system's answer.
        reason: std::io::Error,
    },
    /// One of its lines holds something else than a key.
    #[error(
        "{file}, line {line}: not a key: expected 32 random bytes in base64, as openssl rand -base64 32 prints them"
    )]
    NoKey {
        /// Its path.
        file: String,
        /// The line, counted from 1.
        line: usize,
    },
    /// There is no key in it.
    #[error("the key file {0} holds no key")]
    Empty(String),
}

impl Keyring {
    /// Reads the keys of these files, in this order: a key a line. Empty lines and those that begin with `#` count for nothing.
    ///
    /// # Errors
    /// The first file that cannot be used, and why.
    pub fn read(files: &[PathBuf]) -> Result<Self, BadKeyFile> {
        let mut keys = Vec::new();
        for path in files {
            keys.extend(read_file(path)?);
        }
        Ok(Self(keys))
    }

    /// Reads the keys of the text of a file.
    ///
    /// # Errors
    /// Why the file cannot be used.
    pub fn parse(file: &Path, text: &str) -> Result<Self, BadKeyFile> {
        parse_file(file, text).map(Self)
    }

    /// The key that encrypts; `None` without keys.
    pub fn first(&self) -> Option<&Key> {
        self.0.first()
    }

    /// The key with this id.
    pub fn get(&self, id: &str) -> Option<&Key> {
        self.0.iter().find(|key| key.id().as_str() == id)
    }
}

fn read_file(path: &Path) -> Result<Vec<Key>, BadKeyFile> {
    let text = std::fs::read_to_string(path).map_err(|reason| BadKeyFile::Unreadable {
        file: path.display().to_string(),
        reason,
    })?;
    parse_file(path, &Zeroizing::new(text))
}

fn parse_file(path: &Path, text: &str) -> Result<Vec<Key>, BadKeyFile> {
    let file = || path.display().to_string();
    let keys = parse(text).map_err(|line| BadKeyFile::NoKey { file: file(), line })?;
    match keys.is_empty() {
        true => Err(BadKeyFile::Empty(file())),
        false => Ok(keys),
    }
}

/// The keys of a text, or the first line that is none.
fn parse(text: &str) -> Result<Vec<Key>, usize> {
    let mut keys = Vec::new();
    for (at, line) in text.lines().map(str::trim).enumerate() {
        if !line.is_empty() && !line.starts_with('#') {
            keys.push(parse_key(line).ok_or(at + 1)?);
        }
    }
    Ok(keys)
}

fn parse_key(line: &str) -> Option<Key> {
    let mut decoded = BASE64.decode(line.as_bytes()).ok()?;
    let mut bytes = [0; LENGTH];
    let is_key = decoded.len() == LENGTH;
    if is_key {
        bytes.copy_from_slice(&decoded);
    }
    wipe(&mut decoded);
    let key = is_key.then(|| Key::new(StaticSecret::from(bytes)));
    wipe(&mut bytes);
    key
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A keyring of keys that are 32 times the same byte.
    pub(in crate::secrets) fn keyring(bytes: &[u8]) -> Keyring {
        let lines: Vec<String> = bytes.iter().map(|byte| BASE64.encode(&[*byte; LENGTH])).collect();
        Keyring(parse(&lines.join("\n")).unwrap())
    }

    #[test]
    fn the_first_key_of_the_first_file_encrypts_and_each_is_found_by_its_id() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let lines: Vec<String> = bytes.iter().map(|byte| BASE64.encode(&[*byte; LENGTH])).collect();
            let path = directory.path().join(name);
            std::fs::write(&path, format!("# keys\n\n{}\n", lines.join("\n"))).unwrap();
            path
        };
        let keys = Keyring::read(&[file("a", &[1, 2]), file("b", &[3])]).unwrap();
        let expected = keyring(&[1, 2, 3]);
        assert_eq!(keys.0.len(), 3);
        assert_eq!(keys.first().unwrap().id(), expected.0[0].id());
        for key in &expected.0 {
            assert_eq!(keys.get(key.id().as_str()).unwrap().recipient(), key.recipient());
        }
        assert!(keys.get("0011223344556677").is_none());
        assert!(Keyring::read(&[]).unwrap().first().is_none());
    }

    #[test]
    fn a_file_without_a_key_and_a_line_that_is_none_are_named_without_what_they_hold() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
        let short = BASE64.encode(b"hunter2");
        for (text, expected) in [
            (
                format!("# a key\n{short}\n"),
                "keys, line 2: not a key: expected 32 random bytes",
            ),
            ("# none\n\n".to_owned(), "keys holds no key"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let error = Keyring::read(std::slice::from_ref(&path))
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected) && !error.contains(&short), "{error}");
        }
        let absent = Keyring::read(&[directory.path().join("absent")]).unwrap_err();
        assert!(
            absent.to_string().starts_with("cannot read the key file"),
            "{absent}"
        );
    }

    #[test]
    fn a_record_of_a_key_reads_back_and_one_with_another_id_does_not() {
        let keys = keyring(&[1, 2]);
        let recipient = keys.0[0].recipient();
        let mut record = recipient.to_record(prost_types::Timestamp::default());
        assert_eq!(Recipient::from_record(&record).as_ref(), Some(recipient));
        assert_eq!(
            Recipient::published(&record.encode_to_vec()).as_ref(),
            Some(recipient)
        );
        assert_eq!(Recipient::published(b"\xff"), None);
        record.key_id = keys.0[1].id().to_string();
        assert_eq!(Recipient::from_record(&record), None);
        record.public_key.pop();
        assert_eq!(Recipient::from_record(&record), None);
    }

    #[test]
    fn debug_shows_ids_and_no_key() {
        let shown = format!("{:?}", keyring(&[7]));
        assert!(shown.contains("KeyId") && !shown.contains("7, 7"), "{shown}");
    }
}
