//! Files below one directory, reached across no mount.
//!
//! What touches a mount whose server is gone waits in the kernel for as long as the server is away, and its thread with it. The table
//! of mounts says where mounts are, and may be out of date a moment later. So the kernel itself resolves each path here: with
//! RESOLVE_NO_XDEV it fails before it crosses a mount. The calls that make, rename or remove the last name of a path cross no mount
//! there. Thus a call waits for the disk of the directory itself, and never for a volume.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, Dir, Mode, OFlags, ResolveFlags, mkdirat, open, openat2, readlinkat, renameat, symlinkat,
    unlinkat,
};
use rustix::io::Errno;

/// The mode of a file: its owner alone reads it.
const PRIVATE: Mode = Mode::from_raw_mode(0o600);

/// The bits of a mode that are rights.
const RIGHTS: u32 = 0o7777;

/// A directory, whose files are reached across no mount. Every path is one below it, in the same spelling. All clones share the open
/// directory.
#[derive(Clone, Debug)]
pub struct Beneath {
    directory: PathBuf,
    opened: Arc<OwnedFd>,
}

impl Beneath {
    /// Opens the directory.
    ///
    /// # Errors
    /// It cannot be opened, or the kernel does not know `openat2`, which Linux has from 5.6 on.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = open(directory, flags, Mode::empty()).map_err(|error| named(directory, error.into()))?;
        let beneath = Self {
            directory: directory.to_owned(),
            opened: Arc::new(opened),
        };
        beneath.resolve(directory, OFlags::PATH)?;
        Ok(beneath)
    }

    /// Makes a directory with this mode, as far as the umask lets it, unless something is there.
    pub fn make_directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        match mkdirat(&parent, name, Mode::from_raw_mode(mode)) {
            Err(Errno::EXIST) => Ok(()),
            made => made.map_err(|error| named(path, error.into())),
        }
    }

    /// Gives a directory these rights where they are missing, and takes none.
    pub fn permit(&self, path: &Path, rights: u32) -> io::Result<()> {
        let directory = File::from(self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY)?);
        let permitted = directory.metadata().and_then(|found| {
            let before = found.mode() & RIGHTS;
            match before & rights == rights {
                true => Ok(()),
                false => directory.set_permissions(Permissions::from_mode(before | rights)),
            }
        });
        permitted.map_err(|error| named(path, error))
    }

    /// Whether a directory is there itself: no link to one, and no mount.
    pub fn is_directory(&self, path: &Path) -> bool {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY;
        self.resolve(path, flags).is_ok()
    }

    /// What is in a directory.
    pub fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let opened = self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let read = || -> Result<Vec<PathBuf>, Errno> {
            let mut found = Vec::new();
            for entry in Dir::new(opened)? {
                let name = OsString::from_vec(entry?.file_name().to_bytes().to_vec());
                if name != "." && name != ".." {
                    found.push(path.join(name));
                }
            }
            Ok(found)
        };
        read().map_err(|error| named(path, error.into()))
    }

    /// Reads a file; `None` if it does not exist.
    pub fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        // A pipe in its place is not waited for.
        let opened = self.resolve(path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK);
        let opened = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut bytes = Vec::new();
        let read = File::from(opened).read_to_end(&mut bytes);
        read.map_err(|error| named(path, error))?;
        Ok(Some(bytes))
    }

    /// Writes a file by a rename, readable by its owner alone. What is left of a writing that was cut off is at [`unfinished`].
    pub fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let unfinished = unfinished(Path::new(name));
        let write = || -> io::Result<()> {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW;
            let mut file = File::from(open_at(&parent, &unfinished, flags, PRIVATE)?);
            file.write_all(bytes)?;
            // After a power cut, the file is the one before or this one, and never an empty one.
            file.sync_all()?;
            Ok(renameat(&parent, &unfinished, &parent, name)?)
        };
        write().map_err(|error| {
            _ = unlinkat(&parent, &unfinished, AtFlags::empty());
            named(path, error)
        })
    }

    /// Where a link leads.
    pub fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        let link = self.resolve(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        match readlinkat(&link, "", Vec::new()) {
            Ok(to) => Ok(OsString::from_vec(to.into_bytes()).into()),
            // The kernel's answers for an open file that is no link.
            Err(Errno::NOENT | Errno::INVAL) => Err(named(path, io::Error::other("it is no link"))),
            Err(error) => Err(named(path, error.into())),
        }
    }

    /// Makes a link.
    pub fn make_link(&self, to: &Path, path: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        symlinkat(to, &parent, name).map_err(|error| named(path, error.into()))
    }

    /// Gives a file or a link another path, in place of a file or a link there.
    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let ((from, before), (parent, name)) = (self.parent(from)?, self.parent(to)?);
        renameat(&from, before, &parent, name).map_err(|error| named(to, error.into()))
    }

    /// Removes a file or a link, if there is one.
    pub fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.remove(path, AtFlags::empty())
    }

    /// Removes an empty directory, if there is one.
    pub fn remove_directory(&self, path: &Path) -> io::Result<()> {
        self.remove(path, AtFlags::REMOVEDIR)
    }

    fn remove(&self, path: &Path, flags: AtFlags) -> io::Result<()> {
        let (parent, name) = match self.parent(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            parent => parent?,
        };
        match unlinkat(&parent, name, flags) {
            Err(Errno::NOENT) => Ok(()),
            removed => removed.map_err(|error| named(path, error.into())),
        }
    }

    /// The directory of the last name of a path, and that name.
    fn parent<'p>(&self, path: &'p Path) -> io::Result<(OwnedFd, &'p OsStr)> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(named(path, io::ErrorKind::InvalidInput.into()));
        };
        let parent = self.resolve(parent, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok((parent, name))
    }

    fn resolve(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let mut below = path.strip_prefix(&self.directory).unwrap_or(path);
        if below.as_os_str().is_empty() {
            below = Path::new(".");
        }
        open_at(&self.opened, below, flags, Mode::empty()).map_err(|error| named(path, error))
    }
}

/// Where [`Beneath::write`] writes a file before it has its name.
pub fn unfinished(path: &Path) -> PathBuf {
    path.with_extension(UNFINISHED)
}

/// The extension of a file that was not written to its end.
pub const UNFINISHED: &str = "unfinished";

fn open_at(directory: &OwnedFd, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    openat2(directory, path, flags | OFlags::CLOEXEC, mode, resolve).map_err(|error| match error {
        Errno::XDEV => io::Error::new(
            io::ErrorKind::CrossesDevices,
            "something is mounted on the way to it",
        ),
        Errno::NOSYS => io::Error::new(
            io::ErrorKind::Unsupported,
            "the kernel has no openat2: volumes need Linux 5.6 or newer",
        ),
        other => other.into(),
    })
}

/// An error with the path that it is about.
pub fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn world() -> (tempfile::TempDir, PathBuf, Beneath) {
        let home = tempfile::tempdir().unwrap();
        let directory = fs::canonicalize(home.path()).unwrap();
        let beneath = Beneath::open(&directory).unwrap();
        (home, directory, beneath)
    }

    #[test]
    fn a_file_is_read_as_it_was_written_and_is_its_owners_alone() {
        let (_home, directory, beneath) = world();
        let path = directory.join("a/file.json");
        assert_eq!(beneath.read(&path).unwrap(), None);
        beneath.write(&path, b"one").unwrap_err();
        beneath.make_directory(&directory.join("a"), 0o711).unwrap();
        beneath.make_directory(&directory.join("a"), 0o711).unwrap();
        fs::write(unfinished(&path), "of a process that was killed").unwrap();
        for text in ["one", "two"] {
            beneath.write(&path, text.as_bytes()).unwrap();
            assert_eq!(beneath.read(&path).unwrap().as_deref(), Some(text.as_bytes()));
        }
        let listed = beneath.list(&directory.join("a")).unwrap();
        assert_eq!(listed, std::slice::from_ref(&path));
        beneath.remove_file(&unfinished(&path)).unwrap();
        let other = directory.join("a/other.json");
        beneath.write(&other, b"").unwrap();
        assert_eq!(fs::metadata(&other).unwrap().mode() & 0o777, 0o600);
        beneath.remove_directory(&directory.join("a")).unwrap_err();
        for path in [&path, &path, &other] {
            beneath.remove_file(path).unwrap();
        }
        for _ in 0..2 {
            beneath.remove_directory(&directory.join("a")).unwrap();
        }
        beneath.remove_file(&path).unwrap();
    }

    #[test]
    fn rights_are_given_and_none_is_taken() {
        let (_home, directory, beneath) = world();
        let path = directory.join("a");
        fs::create_dir(&path).unwrap();
        for (before, after) in [(0o700, 0o711), (0o755, 0o755), (0o1740, 0o1751)] {
            fs::set_permissions(&path, Permissions::from_mode(before)).unwrap();
            beneath.permit(&path, 0o711).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & RIGHTS, after, "{before:o}");
        }
    }

    #[test]
    fn a_link_is_read_and_replaced_and_never_followed() {
        let (_home, directory, beneath) = world();
        let (link, new) = (directory.join("link"), directory.join("new"));
        let missing = beneath.read_link(&link).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        for to in ["nowhere", "/"] {
            beneath.make_link(Path::new(to), &new).unwrap();
            beneath.rename(&new, &link).unwrap();
            assert_eq!(beneath.read_link(&link).unwrap(), Path::new(to));
        }
        assert!(!beneath.is_directory(&link), "it leads to one");
        beneath.read(&link.join("etc/passwd")).unwrap_err();
        beneath.list(&link).unwrap_err();
        fs::create_dir(&new).unwrap();
        assert!(beneath.is_directory(&new));
        let refused = beneath.read_link(&new).unwrap_err();
        assert!(refused.to_string().ends_with("new: it is no link"), "{refused}");
    }

    #[test]
    fn nothing_outside_the_directory_and_behind_a_link_on_the_way_is_reached() {
        let (_home, directory, beneath) = world();
        symlink("/etc", directory.join("out")).unwrap();
        for path in [
            Path::new("/etc/passwd"),
            &directory.join("out/passwd"),
            &directory.join("../x"),
        ] {
            beneath.read(path).unwrap_err();
            beneath.write(path, b"text").unwrap_err();
            beneath.remove_file(path).unwrap_err();
        }
    }

    /// `/proc` stands for a mount that hangs, which takes the right to mount.
    #[test]
    fn no_mount_is_crossed() {
        let beneath = Beneath::open(Path::new("/")).unwrap();
        let refused = beneath.read(Path::new("/proc/version")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::CrossesDevices);
        assert!(
            refused
                .to_string()
                .contains("/proc/version: something is mounted"),
            "{refused}"
        );
        assert!(!beneath.is_directory(Path::new("/proc")));
        beneath.read_link(Path::new("/proc")).unwrap_err();
        beneath.list(Path::new("/proc")).unwrap_err();
    }
}
