//! The directory of the authorities (`--ca-dir`): `current/` holds a certificate and a key for each, `next/` those of the authorities
//! that take their place, while they are rotated.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::authority::{Authority, AuthorityCertificate, AuthorityKind};
use super::issuers::Unusable;

/// The mode of a file that only its owner may read.
const PRIVATE: u32 = 0o600;

/// The authorities that sign.
pub const CURRENT: &str = "current";

/// The authorities that take their place.
pub const NEXT: &str = "next";

/// A failure with the files of an authority.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// There are authorities already. They are never overwritten: what they have signed would be trusted no more.
    #[error("{} exists already", .0.display())]
    Exists(PathBuf),
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The files of an authority are there, and it cannot sign.
    #[error("{}: {unusable}", path.display())]
    Unusable {
        /// The file of its certificate.
        path: PathBuf,
        /// Why.
        unusable: Unusable,
    },
}

/// Writes the files of new authorities to `current/` of a directory: all of them or none. The directory is made if need be.
///
/// # Errors
/// If `current` exists, or cannot be written.
pub fn create(directory: &Path, files: &[(&str, &str)]) -> Result<PathBuf, DirectoryError> {
    create_in(directory, CURRENT, files)
}

/// The same with the authorities that take their place, in `next/`.
///
/// # Errors
/// If `next` exists, or cannot be written.
pub fn create_next(directory: &Path, files: &[(&str, &str)]) -> Result<PathBuf, DirectoryError> {
    create_in(directory, NEXT, files)
}

fn create_in(directory: &Path, name: &str, files: &[(&str, &str)]) -> Result<PathBuf, DirectoryError> {
    let current = directory.join(name);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| DirectoryError::Write { path, source }
    };
    if current.exists() {
        return Err(DirectoryError::Exists(current));
    }
    let unfinished = directory.join(format!(".{name}.{}", std::process::id()));
    create_private(directory, &unfinished).map_err(failed(&unfinished))?;
    let written = files
        .iter()
        .try_for_each(|(name, content)| write_private(&unfinished.join(name), content))
        // Before it has its name: `current` without its keys could never be completed.
        .and_then(|()| sync(&unfinished))
        .and_then(|()| {
            fs::rename(&unfinished, &current).map_err(|source| match source.kind() {
                io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists => {
                    DirectoryError::Exists(current.clone())
                }
                _ => failed(&current)(source),
            })
        })
        .and_then(|()| sync(directory));
    if written.is_err() {
        // The first failure is the one to report.
        let _ = fs::remove_dir_all(&unfinished);
    }
    written.map(|()| current)
}

/// Makes an empty directory in another one, which is made if need be. An existing one, left by an earlier process of this id or made
/// by another user, is not taken over: its owner could read what it gets.
fn create_private(parent: &Path, directory: &Path) -> io::Result<()> {
    let mut private = DirBuilder::new();
    private.mode(0o700);
    private.recursive(true).create(parent)?;
    private.recursive(false);
    match private.create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_dir_all(directory)?;
            private.create(directory)
        }
        created => created,
    }
}

/// Reads an authority of a directory.
///
/// # Errors
/// If a file of it cannot be read, or the authority cannot sign.
pub fn read(directory: &Path, kind: AuthorityKind, now: Timestamp) -> Result<Authority, DirectoryError> {
    read_in(directory, CURRENT, kind, |certificates, key| {
        Authority::read(certificates, key, now)
    })
}

/// The same of one that may be in its last hours: it signs no more, and what it has signed counts still.
///
/// # Errors
/// If a file of it cannot be read, or it counts no more.
pub fn read_ending(
    directory: &Path,
    kind: AuthorityKind,
    now: Timestamp,
) -> Result<Authority, DirectoryError> {
    read_in(directory, CURRENT, kind, |certificates, key| {
        Authority::read_ending(certificates, key, now)
    })
}

/// Reads an authority that takes the place of another one. What it signs leads to the former one as well.
///
/// # Errors
/// If a file of it cannot be read, or the authority cannot sign.
pub fn read_next(directory: &Path, kind: AuthorityKind, now: Timestamp) -> Result<Authority, DirectoryError> {
    let authority = read_in(directory, NEXT, kind, |certificates, key| {
        Authority::read(certificates, key, now)
    })?;
    let (path, cross) = read_file(directory, NEXT, kind.cross_file())?;
    let unusable = |unusable| DirectoryError::Unusable { path, unusable };
    // It goes along with every leaf: a file that is copied right now, or the wrong one, must not.
    match AuthorityCertificate::read(&cross, now) {
        Ok(cross) if cross.has_same_key(authority.certificate()) => {
            Ok(authority.crossed(cross.certificates_pem()))
        }
        Ok(_) => Err(unusable(Unusable::OtherKey)),
        Err(why) => Err(unusable(why)),
    }
}

fn read_in(
    directory: &Path,
    name: &str,
    kind: AuthorityKind,
    read: impl FnOnce(&[u8], &[u8]) -> Result<Authority, Unusable>,
) -> Result<Authority, DirectoryError> {
    let (path, certificates) = read_file(directory, name, kind.certificate_file())?;
    let (_, key) = read_file(directory, name, kind.key_file())?;
    read(&certificates, &key).map_err(|unusable| DirectoryError::Unusable { path, unusable })
}

/// Whether there are authorities that take the place of others. An empty directory, as Kubernetes makes it for a Secret that is not
/// there, holds none.
pub fn has_next(directory: &Path) -> bool {
    let next = directory.join(NEXT);
    AuthorityKind::ALL
        .iter()
        .any(|kind| next.join(kind.certificate_file()).exists())
}

/// Makes the authorities of `next/` those that sign, and returns where the former ones are kept. A command that was interrupted in
/// between goes on: where `current/` is missing, `next/` takes its place.
///
/// # Errors
/// If a directory cannot be renamed.
pub fn take_next(directory: &Path, now: Timestamp) -> Result<Option<PathBuf>, DirectoryError> {
    let (current, next) = (directory.join(CURRENT), directory.join(NEXT));
    let rename = |from: &Path, to: &Path| {
        fs::rename(from, to).map_err(|source| DirectoryError::Write {
            path: to.to_owned(),
            source,
        })
    };
    let former = directory.join(format!("former.{}", now.as_second()));
    let is_kept = current.exists();
    if is_kept {
        rename(&current, &former)?;
    }
    rename(&next, &current)?;
    sync(directory)?;
    Ok(is_kept.then_some(former))
}

/// Reads the certificate of an authority of a directory, which need not have the key.
///
/// # Errors
/// If the file cannot be read, or nothing can be signed with the certificate.
pub fn read_certificate(
    directory: &Path,
    kind: AuthorityKind,
    now: Timestamp,
) -> Result<AuthorityCertificate, DirectoryError> {
    read_certificate_in(directory, CURRENT, kind, now)
}

/// The same of an authority that takes the place of another one.
///
/// # Errors
/// As [`read_certificate`].
pub fn read_next_certificate(
    directory: &Path,
    kind: AuthorityKind,
    now: Timestamp,
) -> Result<AuthorityCertificate, DirectoryError> {
    read_certificate_in(directory, NEXT, kind, now)
}

fn read_certificate_in(
    directory: &Path,
    name: &str,
    kind: AuthorityKind,
    now: Timestamp,
) -> Result<AuthorityCertificate, DirectoryError> {
    let (path, certificates) = read_file(directory, name, kind.certificate_file())?;
    AuthorityCertificate::read(&certificates, now)
        .map_err(|unusable| DirectoryError::Unusable { path, unusable })
}

/// More bytes than the file of any authority has.
const LONGEST: u64 = 1 << 20;

fn read_at_most(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let read = File::open(path)?.take(LONGEST).read_to_end(&mut content)?;
    match u64::try_from(read).is_ok_and(|read| read < LONGEST) {
        true => Ok(content),
        false => Err(io::Error::other("it is longer than the file of any authority")),
    }
}

fn read_file(directory: &Path, folder: &str, name: &str) -> Result<(PathBuf, Vec<u8>), DirectoryError> {
    let path = directory.join(folder).join(name);
    match read_at_most(&path) {
        Ok(content) => Ok((path, content)),
        Err(source) => Err(DirectoryError::Read { path, source }),
    }
}

/// Writes a file that only its owner may read. A file that exists is replaced at once: a reader sees the old content or the
/// new one, never a part.
///
/// # Errors
/// If it cannot be written. The old file is then still there.
pub fn write_private(path: &Path, content: &str) -> Result<(), DirectoryError> {
    write(path, content.as_bytes(), PRIVATE)
}

/// The same with these bytes and this mode, whatever the umask of the process is. Others read it only once it has its mode.
///
/// # Errors
/// As [`write_private`].
pub fn write(path: &Path, content: &[u8], mode: u32) -> Result<(), DirectoryError> {
    let unfinished = path.with_extension(format!("{}.unfinished", std::process::id()));
    let write = || -> io::Result<()> {
        // An existing file would keep its owner and mode, and a link would be followed.
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = OpenOptions::new()
            .create_new(true)
            .write(true)
            .mode(PRIVATE)
            .open(&unfinished)?;
        file.write_all(content)?;
        if mode != PRIVATE {
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        file.sync_all()?;
        fs::rename(&unfinished, path)
    };
    write().map_err(|source| {
        // The first failure is the one to report.
        let _ = fs::remove_file(&unfinished);
        DirectoryError::Write {
            path: path.to_owned(),
            source,
        }
    })
}

/// Makes a rename in a directory last over a loss of power.
///
/// # Errors
/// If the system fails.
pub fn sync(directory: &Path) -> Result<(), DirectoryError> {
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|source| DirectoryError::Write {
            path: directory.to_owned(),
            source,
        })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn now() -> Timestamp {
        "2026-03-01T12:00:00Z".parse().unwrap()
    }

    fn make(directory: &Path, kind: AuthorityKind) -> Result<Authority, DirectoryError> {
        let (authority, key) = Authority::create(kind, now()).unwrap();
        let files = [
            (kind.certificate_file(), authority.certificates_pem()),
            (kind.key_file(), &key),
        ];
        create(directory, &files).map(|_| authority)
    }

    #[test]
    fn an_authority_is_read_as_it_was_written_and_only_its_owner_may_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().join("a/b");
        let made = make(&home, AuthorityKind::Node).unwrap();
        let read = read(&home, AuthorityKind::Node, now()).unwrap();
        assert_eq!(read.digest(), made.digest());
        assert_eq!(mode(&home.join(CURRENT)), 0o700);
        assert_eq!(mode(&home.join(CURRENT).join("node-ca.key")), 0o600);
        fs::remove_file(home.join(CURRENT).join("node-ca.key")).unwrap();
        let public = read_certificate(&home, AuthorityKind::Node, now()).unwrap();
        assert_eq!(public.digest(), made.digest(), "it takes no key");
        let left: Vec<_> = fs::read_dir(&home).unwrap().collect();
        assert_eq!(left.len(), 1, "nothing unfinished stays: {left:?}");
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_key_goes_neither_into_a_file_that_others_made_nor_through_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let (path, target) = (
            directory.path().join("member.key"),
            directory.path().join("target"),
        );
        let unfinished = directory
            .path()
            .join(format!("member.{}.unfinished", std::process::id()));
        fs::write(&unfinished, "").unwrap();
        set_mode(&unfinished, 0o666);
        write_private(&path, "first").unwrap();
        assert_eq!(mode(&path), 0o600);
        symlink(&target, &unfinished).unwrap();
        write_private(&path, "second").unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        assert!(!target.exists(), "it was followed");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn new_authorities_go_into_no_directory_that_others_made() {
        let directory = tempfile::tempdir().unwrap();
        let unfinished = directory
            .path()
            .join(format!(".{CURRENT}.{}", std::process::id()));
        fs::create_dir(&unfinished).unwrap();
        set_mode(&unfinished, 0o777);
        fs::write(unfinished.join("left"), "").unwrap();
        make(directory.path(), AuthorityKind::Node).unwrap();
        let current = directory.path().join(CURRENT);
        assert_eq!(mode(&current), 0o700);
        assert_eq!(
            fs::read_dir(&current).unwrap().count(),
            2,
            "the certificate and the key"
        );
    }

    #[test]
    fn authorities_are_never_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let made = make(directory.path(), AuthorityKind::Etcd).unwrap();
        let again = make(directory.path(), AuthorityKind::Etcd).unwrap_err();
        assert!(matches!(again, DirectoryError::Exists(_)), "{again}");
        let read = read(directory.path(), AuthorityKind::Etcd, now()).unwrap();
        assert_eq!(read.digest(), made.digest());
    }

    #[test]
    fn the_next_authorities_take_the_place_of_the_former_ones_which_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let kind = AuthorityKind::Etcd;
        let former = make(directory.path(), kind).unwrap();
        let (next, key, cross) = Authority::create_after(kind, &former, now()).unwrap();
        let files = [
            (kind.certificate_file(), next.certificates_pem()),
            (kind.cross_file(), cross.as_str()),
            (kind.key_file(), key.as_str()),
        ];
        assert!(!has_next(directory.path()));
        create_next(directory.path(), &files).unwrap();
        let again = create_next(directory.path(), &files).unwrap_err();
        assert!(matches!(again, DirectoryError::Exists(_)), "{again}");
        let read_next = read_next(directory.path(), kind, now()).unwrap();
        assert_eq!(read_next.digest(), next.digest());
        let along = pem::parse_many(read_next.intermediates_pem()).unwrap();
        assert_eq!(along, pem::parse_many(&cross).unwrap());
        // It is copied right now, or is that of another key.
        let file = directory.path().join(NEXT).join(kind.cross_file());
        let (_, _, other) = Authority::create_after(kind, &former, now()).unwrap();
        for (wrong, expected) in [
            ("", Unusable::NoCertificate),
            (&cross[..cross.len() / 2], Unusable::NoCertificate),
            (&other, Unusable::OtherKey),
        ] {
            write_private(&file, wrong).unwrap();
            let refused = super::read_next(directory.path(), kind, now()).unwrap_err();
            match refused {
                DirectoryError::Unusable { path, unusable } => {
                    assert_eq!((path, unusable), (file.clone(), expected));
                }
                other => panic!("{other}"),
            }
        }
        write_private(&file, &cross).unwrap();
        let public = read_next_certificate(directory.path(), kind, now()).unwrap();
        assert_eq!(public.digest(), next.digest());
        let kept = take_next(directory.path(), now()).unwrap().unwrap();
        assert!(kept.join(kind.key_file()).exists());
        assert!(!has_next(directory.path()));
        let current = read(directory.path(), kind, now()).unwrap();
        assert_eq!(
            (current.digest(), current.intermediates_pem()),
            (next.digest(), "")
        );
        // It was interrupted between the two renames.
        fs::rename(directory.path().join(CURRENT), directory.path().join(NEXT)).unwrap();
        assert_eq!(take_next(directory.path(), now()).unwrap(), None);
        assert_eq!(
            read(directory.path(), kind, now()).unwrap().digest(),
            next.digest()
        );
    }

    #[test]
    fn a_missing_file_and_a_wrong_one_are_named() {
        let directory = tempfile::tempdir().unwrap();
        make(directory.path(), AuthorityKind::Etcd).unwrap();
        let missing = read(directory.path(), AuthorityKind::Node, now()).unwrap_err();
        assert!(missing.to_string().contains("current/node-ca.crt"), "{missing}");
        let file = directory.path().join(CURRENT).join("etcd-ca.crt");
        write_private(&file, "nothing").unwrap();
        let wrong = read(directory.path(), AuthorityKind::Etcd, now()).unwrap_err();
        assert!(
            wrong
                .to_string()
                .ends_with("current/etcd-ca.crt: it holds no certificate in PEM"),
            "{wrong}"
        );
    }
}
