//! The files by which etcd proves itself, in a directory of their own. Etcd reads certificate, key and list at every handshake, so each
//! is replaced by a rename; certificate and key are one file, which is replaced at once.
//!
//! The list of revoked certificates is never removed: without the file etcd refuses everyone.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::environment::TlsPaths;
use crate::agent::state::StateError;
use crate::identity::leaf::Leaf;
use crate::identity::{AuthorityCertificate, NodeKey, NotMade, directory};

const CERTIFICATE: &str = "member.pem";
const AUTHORITIES: &str = "ca.crt";
const LIST: &str = "revoked.crl";

/// The key of a request that has no answer yet.
const REQUESTED: &str = "requested.key";

/// Of a directory: its group may list it.
const GROUP_READS: u32 = 0o040;

/// A failure with the files.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] StateError),
    /// No key can be made.
    #[error(transparent)]
    NotMade(#[from] NotMade),
    /// What was received does not belong together.
    #[error("the certificate is not one of the requested key")]
    OtherKey,
    /// What etcd would trust has not signed the certificate that it shows.
    #[error("the authority that etcd is to trust alone has not signed its certificate")]
    OtherAuthority,
    /// The certificate is not valid yet by the clock of this node, and the one in use is.
    #[error(
        "another certificate for etcd is there, and is not valid before {0}: the clock of this node is behind, or that of the leader \
         which has signed it was ahead"
    )]
    NotYetValid(Timestamp),
}

/// The directory.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    directory: PathBuf,
}

impl TlsFiles {
    /// The directory beside this data directory, `<data directory>-tls`, which is made if need be. What an agent has left that ended
    /// while it wrote is removed: a key may be in it.
    ///
    /// # Errors
    /// If it cannot be made or read.
    pub fn beside(data: &Path) -> Result<Self, StateError> {
        let mut name = data.as_os_str().to_owned();
        name.push("-tls");
        let directory = PathBuf::from(name);
        let failed = |source| StateError::Use {
            path: directory.clone(),
            source,
        };
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        made.map_err(failed)?;
        for entry in fs::read_dir(&directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "unfinished")
            {
                fs::remove_file(&path).map_err(failed)?;
            }
        }
        Ok(Self { directory })
    }

    /// The paths, for etcd.
    pub fn paths(&self) -> TlsPaths {
        TlsPaths {
            certificate: self.directory.join(CERTIFICATE),
            authorities: self.directory.join(AUTHORITIES),
            list: self.directory.join(LIST),
        }
    }

    /// The certificate, if etcd can show it: its key is there, and what it trusts.
    pub fn certificate(&self) -> Option<Leaf> {
        let text = fs::read_to_string(self.directory.join(CERTIFICATE)).ok()?;
        let (leaf, key) = (Leaf::of_pem(&text)?, NodeKey::read(key_of(&text)?).ok()?);
        let is_whole = leaf.public_key == key.public_key() && self.directory.join(AUTHORITIES).exists();
        is_whole.then_some(leaf)
    }

    /// The list of revoked certificates; `None` if it is not there.
    pub fn list(&self) -> Option<Vec<u8>> {
        fs::read(self.directory.join(LIST)).ok()
    }

    /// Whether a request has no answer yet.
    pub fn awaits_answer(&self) -> bool {
        self.directory.join(REQUESTED).exists()
    }

    /// The key of the request that has no answer yet, or else a new one, which is written before anything is requested with it.
    ///
    /// # Errors
    /// If it cannot be made or written.
    pub fn requested_key(&self) -> Result<NodeKey, FilesError> {
        let path = self.directory.join(REQUESTED);
        // One that cannot be read was not whole, and is of no use.
        let stored = fs::read_to_string(&path).ok();
        if let Some(key) = stored.and_then(|text| NodeKey::read(&text).ok()) {
            return Ok(key);
        }
        let key = NodeKey::create()?;
        directory::write_private(&path, &key.pem()).map_err(StateError::from)?;
        self.sync()?;
        Ok(key)
    }

    /// Drops the key of the request: the next one has a key of its own.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn drop_request(&self) -> Result<(), FilesError> {
        self.remove(REQUESTED)?;
        Ok(())
    }

    /// Takes a certificate, with those above it, and what etcd trusts.
    ///
    /// # Errors
    /// If the certificate is not one of the key, if it is not valid yet `now`, by the clock of this node, while the one in use is, or if
    /// a file cannot be written. The former files are then still there, and so is the key of the request.
    pub fn install(
        &self,
        key: &NodeKey,
        chain: &str,
        authorities: &str,
        now: Timestamp,
    ) -> Result<Leaf, FilesError> {
        let leaf = Leaf::of_pem(chain).filter(|leaf| leaf.public_key == key.public_key());
        let leaf = leaf.ok_or(FilesError::OtherKey)?;
        let is_valid = |held: &Leaf| held.not_before <= now && now < held.not_after;
        if now < leaf.not_before && self.certificate().as_ref().is_some_and(is_valid) {
            return Err(FilesError::NotYetValid(leaf.not_before));
        }
        let newline = if chain.ends_with('\n') { "" } else { "\n" };
        // In this order: a certificate counts as there once what it needs is.
        self.replace(AUTHORITIES, authorities.as_bytes())?;
        let whole = format!("{chain}{newline}{}", key.pem());
        self.replace(CERTIFICATE, whole.as_bytes())?;
        self.remove(REQUESTED)?;
        Ok(leaf)
    }

    /// Replaces what etcd trusts by this authority, with those above it, and nothing beside these. It reads that at its start alone.
    ///
    /// # Errors
    /// If it has not signed the certificate that etcd shows, or one of those above it has not signed the one before: then it is not the
    /// one by which the others know this member, and who wrote it was not a leader. A signature that cannot be verified counts as none.
    /// Or if it cannot be written. The former file is then still there.
    pub fn trust(&self, authorities: &str, now: Timestamp) -> Result<(), FilesError> {
        let text = fs::read_to_string(self.directory.join(CERTIFICATE)).unwrap_or_default();
        let authority = AuthorityCertificate::read_received(authorities.as_bytes(), now).ok();
        match authority.filter(|authority| authority.has_signed_first_of(&text)) {
            Some(authority) => Ok(self.replace(AUTHORITIES, authority.certificates_pem().as_bytes())?),
            None => Err(FilesError::OtherAuthority),
        }
    }

    /// Replaces the list of revoked certificates.
    ///
    /// # Errors
    /// If it cannot be written. The former one is then still there.
    pub fn write_list(&self, list: &[u8]) -> Result<(), FilesError> {
        Ok(self.replace(LIST, list)?)
    }

    /// Removes the certificate and the key of a request: they are those of a member that is out of the cluster. The next member
    /// requests its own.
    ///
    /// # Errors
    /// If they cannot be removed.
    pub fn forget(&self) -> Result<(), FilesError> {
        self.remove(CERTIFICATE)?;
        self.remove(REQUESTED)?;
        Ok(())
    }

    /// Writes what did not change never again: a rename costs a flush of the disk.
    fn replace(&self, name: &str, content: &[u8]) -> Result<(), StateError> {
        let path = self.directory.join(name);
        if fs::read(&path).is_ok_and(|stored| stored == content) {
            return Ok(());
        }
        directory::write(&path, content, self.mode()?)?;
        self.sync()
    }

    /// Where an operator lets a group list the directory, as that of the user of etcd's unit, the group may read the files. A new file
    /// has the group of the directory where that has its set-group-ID bit.
    fn mode(&self) -> Result<u32, StateError> {
        let found = fs::metadata(&self.directory).map_err(|source| self.failed(source))?;
        Ok(match found.mode() & GROUP_READS {
            0 => 0o600,
            _ => 0o640,
        })
    }

    fn remove(&self, name: &str) -> Result<(), StateError> {
        match fs::remove_file(self.directory.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(self.failed(error)),
            Ok(()) => self.sync(),
        }
    }

    fn sync(&self) -> Result<(), StateError> {
        Ok(directory::sync(&self.directory)?)
    }

    fn failed(&self, source: io::Error) -> StateError {
        StateError::Use {
            path: self.directory.clone(),
            source,
        }
    }
}

/// The part of a text that is a key (PEM, PKCS #8).
fn key_of(text: &str) -> Option<&str> {
    text.find("-----BEGIN PRIVATE KEY-----").map(|at| &text[at..])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use jiff::SignedDuration;

    use super::*;
    use crate::etcd::ClusterId;
    use crate::identity::node::{self, NodeHolder, NodeRole};
    use crate::identity::request::RequestedKey;
    use crate::identity::validity::BACKDATED;
    use crate::identity::{Authority, AuthorityKind, namesake};

    fn files() -> (tempfile::TempDir, TlsFiles) {
        let home = tempfile::tempdir().unwrap();
        let files = TlsFiles::beside(&home.path().join("etcd")).unwrap();
        (home, files)
    }

    fn now() -> Timestamp {
        Timestamp::from_second(Timestamp::now().as_second()).unwrap()
    }

    /// Any certificate of this key, and its authority.
    fn certificate(key: &NodeKey) -> (String, String) {
        certificate_of(key, now())
    }

    /// The same by a leader whose clock says that it is then.
    fn certificate_of(key: &NodeKey, now: Timestamp) -> (String, String) {
        let (authority, _) = Authority::create(AuthorityKind::Etcd, now).unwrap();
        let requested = RequestedKey::read(&key.request().unwrap()).unwrap();
        let node = NodeHolder {
            cluster: ClusterId(0xc0_ffee),
            uid: "0b3a2f0e-55a6-4a3e-9d0c-2f6f4d1c9b11",
            name: "n1",
            role: NodeRole::Manager,
        };
        let made = node::certificate(&authority, &requested, node, node::LIFE, now).unwrap();
        (made.chain_pem, authority.certificates_pem().to_owned())
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn the_key_of_a_request_stays_until_its_certificate_is_there() {
        let (_home, files) = files();
        assert!(!files.awaits_answer());
        let key = files.requested_key().unwrap();
        assert_eq!(files.requested_key().unwrap().public_key(), key.public_key());
        assert!(files.awaits_answer());
        assert_eq!(files.certificate(), None);
        let (chain, authorities) = certificate(&key);
        let leaf = files.install(&key, &chain, &authorities, now()).unwrap();
        assert_eq!(files.certificate(), Some(leaf));
        assert!(!files.awaits_answer());
        assert_eq!(
            fs::read_to_string(files.paths().authorities).unwrap(),
            authorities
        );
        files.forget().unwrap();
        assert_eq!(files.certificate(), None);
    }

    /// INV-13.
    #[test]
    fn etcd_comes_to_trust_the_authority_of_its_own_certificate_alone() {
        let (_home, files) = files();
        let key = files.requested_key().unwrap();
        let (chain, authority) = certificate(&key);
        let (_, foreign) = certificate(&NodeKey::create().unwrap());
        files
            .install(&key, &chain, &format!("{authority}{foreign}"), now())
            .unwrap();
        let trusted = || fs::read_to_string(files.paths().authorities).unwrap();
        let (before, namesake) = (trusted(), namesake());
        for other in [
            foreign.clone(),
            format!("{authority}{foreign}"),
            String::new(),
            namesake.clone(),
            format!("{authority}{namesake}"),
            format!("{namesake}{authority}"),
        ] {
            let refused = files.trust(&other, Timestamp::now());
            assert!(
                matches!(refused, Err(FilesError::OtherAuthority)),
                "{refused:?}: {other}"
            );
            assert_eq!(trusted(), before);
        }
        files.trust(&authority, Timestamp::now()).unwrap();
        assert_eq!(trusted(), authority);
    }

    #[test]
    fn the_certificate_of_another_key_replaces_nothing() {
        let (_home, files) = files();
        let key = files.requested_key().unwrap();
        let (chain, authorities) = certificate(&key);
        let before = files.install(&key, &chain, &authorities, now()).unwrap();
        let (other, authorities) = certificate(&NodeKey::create().unwrap());
        let refused = files.install(&files.requested_key().unwrap(), &other, &authorities, now());
        assert!(matches!(refused, Err(FilesError::OtherKey)));
        assert_eq!(files.certificate(), Some(before));
        assert!(files.awaits_answer(), "the request is asked for again");
        files.drop_request().unwrap();
        assert!(!files.awaits_answer());
    }

    #[test]
    fn a_certificate_that_is_not_valid_yet_replaces_none_that_is() {
        let (_home, files) = files();
        let held_key = files.requested_key().unwrap();
        let (chain, authorities) = certificate(&held_key);
        let held = files.install(&held_key, &chain, &authorities, now()).unwrap();
        let later = now() + SignedDuration::from_hours(24);
        let key = files.requested_key().unwrap();
        let (chain, others) = certificate_of(&key, later);
        let refused = files.install(&key, &chain, &others, now()).unwrap_err();
        let begins = later - BACKDATED;
        assert!(refused.to_string().contains(&begins.to_string()), "{refused}");
        assert_eq!(files.certificate(), Some(held));
        let trusted = || fs::read_to_string(files.paths().authorities).unwrap();
        assert_eq!(trusted(), authorities);
        assert!(files.awaits_answer(), "it is asked for again, with the same key");
        let installed = files.install(&key, &chain, &others, begins).unwrap();
        assert_eq!(files.certificate(), Some(installed));
        // One that has ended is of no use either.
        let (chain, authorities) = certificate(&held_key);
        let held = files.install(&held_key, &chain, &authorities, now()).unwrap();
        let (chain, others) = certificate_of(&key, held.not_after + BACKDATED * 2);
        files.install(&key, &chain, &others, held.not_after).unwrap();
        assert_eq!(trusted(), others);
    }

    #[test]
    fn a_torn_certificate_and_one_without_what_it_trusts_count_as_none() {
        let (_home, files) = files();
        let key = files.requested_key().unwrap();
        let (chain, authorities) = certificate(&key);
        files.install(&key, &chain, &authorities, now()).unwrap();
        fs::remove_file(files.paths().authorities).unwrap();
        assert_eq!(files.certificate(), None);
        files.install(&key, &chain, &authorities, now()).unwrap();
        fs::write(files.paths().certificate, &chain).unwrap();
        assert_eq!(files.certificate(), None);
    }

    #[test]
    fn its_owner_alone_reads_the_files_or_the_group_that_lists_the_directory() {
        let (_home, files) = files();
        let paths = files.paths();
        let directory = paths.list.parent().unwrap();
        assert_eq!(mode(directory), 0o700);
        files.write_list(b"one").unwrap();
        assert_eq!((files.list(), mode(&paths.list)), (Some(b"one".to_vec()), 0o600));
        fs::set_permissions(directory, fs::Permissions::from_mode(0o750)).unwrap();
        files.write_list(b"two").unwrap();
        assert_eq!((files.list(), mode(&paths.list)), (Some(b"two".to_vec()), 0o640));
        files.requested_key().unwrap();
        assert_eq!(
            mode(&directory.join(REQUESTED)),
            0o600,
            "a request is no business of etcd"
        );
    }

    #[test]
    fn what_an_agent_left_that_was_killed_while_it_wrote_is_removed_and_the_list_stays() {
        let (home, files) = files();
        files.write_list(b"one").unwrap();
        let left = home.path().join("etcd-tls/member.4711.unfinished");
        fs::write(&left, "s3cr3t").unwrap();
        let files = TlsFiles::beside(&home.path().join("etcd")).unwrap();
        assert!(!left.exists());
        files.forget().unwrap();
        assert_eq!(files.list(), Some(b"one".to_vec()));
    }
}
