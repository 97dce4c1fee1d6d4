//! The state directory of an agent: who the node is, its key and its certificate. One agent at a time uses it, and its owner alone
//! reads its files. Others pass through, on their way to the volumes.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::passage;
use crate::identity::directory::{self, DirectoryError};

/// Holds everything that has to be replaced at once: a key without its certificate opens nothing.
const FILE: &str = "agent.json";

/// Is locked while an agent runs, and holds its process id.
const LOCK: &str = "agent.lock";

/// Rights of others to write.
const OTHERS_WRITE: u32 = 0o022;

/// What an agent remembers over a restart.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// The name of the node.
    pub name: String,
    /// The digest of the authority that servers are known by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
    /// The name of the servers, which says the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    /// The uid of the node, once it has joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The certificate with its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<StoredCertificate>,
    /// The key of the request that has no answer yet (PEM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_key: Option<String>,
}

/// A certificate with its key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredCertificate {
    /// The certificate and those above it (PEM).
    pub chain: String,
    /// Its key (PEM).
    pub key: String,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("name", &self.name)
            .field("uid", &self.uid)
            .finish_non_exhaustive()
    }
}

/// A failure with the state directory.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another agent uses it.
    #[error("{} is in use by process {holder}", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The id of the process that uses it.
        holder: String,
    },
    /// Others could replace its files.
    #[error("others may write to {} (mode {mode:o})", path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It cannot be made or locked.
    #[error("cannot use {}: {source}", path.display())]
    Use {
        /// The directory, or a file of it.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The state cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause, with nothing of what the file holds.
        reason: String,
    },
    /// The state cannot be written.
    #[error(transparent)]
    Write(#[from] DirectoryError),
}

/// A state directory that no other agent uses while this value lives.
#[derive(Debug)]
pub struct StateDirectory {
    path: PathBuf,
    /// The kernel releases the lock when this process ends, however it ends.
    _lock: File,
}

impl StateDirectory {
    /// Takes this directory, which is made if need be.
    ///
    /// # Errors
    /// If it cannot be made, others may write to it, or another agent uses it.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        let failed = |source| StateError::Use {
            path: path.to_owned(),
            source,
        };
        passage::make(path).map_err(failed)?;
        // The paths that a CSI plugin is given are absolute.
        let path = path.canonicalize().map_err(failed)?;
        let mode = fs::metadata(&path).map_err(failed)?.mode() & 0o777;
        if mode & OTHERS_WRITE != 0 {
            return Err(StateError::Open { path, mode });
        }
        let lock = lock(&path)?;
        remove_unfinished(&path).map_err(failed)?;
        Ok(Self { path, _lock: lock })
    }

    /// The absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the state; `None` before there is any.
    ///
    /// # Errors
    /// If the file cannot be read, or holds something else.
    pub fn load(&self) -> Result<Option<State>, StateError> {
        let path = self.path.join(FILE);
        let failed = |reason: String| StateError::Read {
            path: path.clone(),
            reason,
        };
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| failed(error.to_string()))?,
        };
        // serde_json says where a fault is, and may quote a value: it may be a key.
        let read = serde_json::from_slice(&text).map_err(|error| {
            failed(format!(
                "it is not the state of an agent (line {}, column {})",
                error.line(),
                error.column()
            ))
        })?;
        Ok(Some(read))
    }

    /// Replaces the state: after a loss of power it is this one or the former one.
    ///
    /// # Errors
    /// If it cannot be written. The former one is then still there.
    pub fn save(&self, state: &State) -> Result<(), StateError> {
        // A State holds nothing that JSON cannot.
        let text = serde_json::to_string_pretty(state).map_err(|error| StateError::Use {
            path: self.path.join(FILE),
            source: error.into(),
        })?;
        directory::write_private(&self.path.join(FILE), &text)?;
        directory::sync(&self.path)?;
        Ok(())
    }
}

/// Removes what an agent has left that ended while it wrote: a key may be in it.
fn remove_unfinished(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("agent.") && name.ends_with(".unfinished") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn lock(directory: &Path) -> Result<File, StateError> {
    let path = directory.join(LOCK);
    let failed = |source| StateError::Use {
        path: path.clone(),
        source,
    };
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut holder = String::new();
        // For the message alone. Empty if the holder has not written its process id yet.
        let _ = file.read_to_string(&mut holder);
        return Err(StateError::InUse {
            path: directory.to_owned(),
            holder: holder.trim().to_owned(),
        });
    }
    file.set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(failed)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn state() -> State {
        State {
            name: "n1".to_owned(),
            uid: Some("5d0b".to_owned()),
            requested_key: Some("s3cr3t".to_owned()),
            ..State::default()
        }
    }

    #[test]
    fn a_state_is_read_as_it_was_written_and_its_owner_alone_may_read_it_where_others_pass() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a/state");
        let directory = StateDirectory::open(&path).unwrap();
        assert_eq!(directory.load().unwrap(), None);
        directory.save(&state()).unwrap();
        assert_eq!(directory.load().unwrap(), Some(state()));
        for (file, mode) in [("", 0o711), (FILE, 0o600), (LOCK, 0o600)] {
            let found = fs::metadata(path.join(file)).unwrap().mode() & 0o777;
            assert_eq!(found, mode, "{file}");
        }
        assert_eq!(
            fs::read_dir(&path).unwrap().count(),
            2,
            "nothing unfinished stays"
        );
    }

    #[test]
    fn one_agent_at_a_time_uses_a_directory() {
        let home = tempfile::tempdir().unwrap();
        let first = StateDirectory::open(home.path()).unwrap();
        let refused = StateDirectory::open(home.path()).unwrap_err();
        let own = std::process::id().to_string();
        assert!(
            matches!(&refused, StateError::InUse { holder, .. } if *holder == own),
            "{refused}"
        );
        drop(first);
        StateDirectory::open(home.path()).unwrap();
    }

    #[test]
    fn what_an_agent_left_that_was_killed_while_it_wrote_is_removed() {
        let home = tempfile::tempdir().unwrap();
        let left = home.path().join("agent.4711.unfinished");
        fs::write(&left, "s3cr3t").unwrap();
        let directory = StateDirectory::open(home.path()).unwrap();
        assert!(!left.exists());
        directory.save(&state()).unwrap();
        assert_eq!(directory.load().unwrap(), Some(state()));
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused() {
        let home = tempfile::tempdir().unwrap();
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o775)).unwrap();
        let refused = StateDirectory::open(home.path()).unwrap_err();
        assert!(refused.to_string().ends_with("(mode 775)"), "{refused}");
    }

    #[test]
    fn neither_an_error_nor_the_debug_form_has_a_key_in_it() {
        let home = tempfile::tempdir().unwrap();
        let directory = StateDirectory::open(home.path()).unwrap();
        fs::write(home.path().join(FILE), r#"{"name": 7, "requestedKey": "s3cr3t"}"#).unwrap();
        let refused = directory.load().unwrap_err().to_string();
        assert!(refused.contains("not the state of an agent"), "{refused}");
        assert!(!refused.contains("s3cr3t"), "{refused}");
        assert!(!format!("{:?}", state()).contains("s3cr3t"));
    }
}
