//! The directory of a development cluster's files. One cluster at a time uses it.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use super::Error;

/// The lock file. It marks a data directory, and holds the process id of its user.
const LOCK: &str = "quorate-dev.lock";

/// A directory that no other cluster uses while this value lives.
#[derive(Debug)]
pub struct DataDirectory {
    path: PathBuf,
    /// The kernel releases the lock when this process ends, however it ends.
    _lock: File,
    temporary: Option<TempDir>,
}

impl DataDirectory {
    /// Takes this directory, which may be missing, empty or of an earlier run.
    pub fn open(path: &Path) -> Result<Self, Error> {
        if path.exists() && !path.is_dir() {
            return Err(Error::NotADirectory {
                path: path.to_owned(),
            });
        }
        fs::create_dir_all(path).map_err(Error::write(path))?;
        // An absolute path: the servers' flags and the kubeconfig name files in it, whatever their working directory.
        let path = path.canonicalize().map_err(Error::read(path))?;
        let empty = fs::read_dir(&path).map_err(Error::read(&path))?.next().is_none();
        if !empty && !path.join(LOCK).exists() {
            return Err(Error::Foreign { path });
        }
        let lock = lock(&path)?;
        Ok(Self {
            path,
            _lock: lock,
            temporary: None,
        })
    }

    /// Makes a temporary directory, which [`close`](Self::close) removes.
    pub fn temporary() -> Result<Self, Error> {
        let parent = std::env::temp_dir();
        let directory = tempfile::Builder::new()
            .prefix("quorate-dev-")
            .tempdir()
            .map_err(Error::write(&parent))?;
        let mut taken = Self::open(directory.path())?;
        taken.temporary = Some(directory);
        Ok(taken)
    }

    /// The absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether [`close`](Self::close) removes it.
    pub fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }

    /// Releases it, and removes a temporary one.
    pub fn close(self) -> Result<(), Error> {
        match self.temporary {
            Some(directory) => directory.close().map_err(Error::write(&self.path)),
            None => Ok(()),
        }
    }
}

fn lock(directory: &Path) -> Result<File, Error> {
    let path = directory.join(LOCK);
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path)
        .map_err(Error::write(&path))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut holder = String::new();
        // For the message alone. Empty if the holder has not written its process id yet.
        let _ = file.read_to_string(&mut holder);
        return Err(Error::InUse {
            path: directory.to_owned(),
            holder: holder.trim().to_owned(),
        });
    }
    file.set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(Error::write(&path))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_used_by_one_cluster_at_a_time() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("new/data");
        let first = DataDirectory::open(&path).unwrap();
        let refused = DataDirectory::open(&path).unwrap_err();
        let own = std::process::id().to_string();
        assert!(
            matches!(&refused, Error::InUse { holder, .. } if *holder == own),
            "{refused}"
        );
        first.close().unwrap();
        DataDirectory::open(&path).unwrap();
    }

    #[test]
    fn a_directory_with_files_of_another_program_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("letter.txt"), "dear").unwrap();
        let refused = DataDirectory::open(home.path()).unwrap_err();
        assert!(matches!(refused, Error::Foreign { .. }), "{refused}");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_temporary_directory_is_gone_at_the_end_also_without_an_orderly_one() {
        let directory = DataDirectory::temporary().unwrap();
        let path = directory.path().to_owned();
        fs::create_dir(path.join("etcd")).unwrap();
        directory.close().unwrap();
        assert!(!path.exists());
        let directory = DataDirectory::temporary().unwrap();
        let path = directory.path().to_owned();
        drop(directory);
        assert!(!path.exists());
    }
}
