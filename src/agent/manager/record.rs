//! What the agent notes about its member, in a file beside the data directory: before etcd starts for the first time, and after each
//! step from which there is no way back. With it etcd starts again while no replica can be reached, as after the loss of power of all
//! machines of a cluster.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::plan::{Noted, OwnMember, Stage};
use crate::agent::state::StateError;
use crate::etcd::{ClusterId, MemberId};
use crate::identity::directory;

/// What is noted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The member, and how far it is.
    pub noted: Noted,
    /// The name of the member.
    pub name: String,
    /// The members that etcd starts with for the first time.
    pub initial_cluster: Option<String>,
    /// Its peer URLs and client URLs, as a replica knows them.
    pub peer_urls: Vec<String>,
    /// See `peer_urls`.
    pub client_urls: Vec<String>,
    /// The number of the last restart that the leader has permitted and that was carried out; 0 before the first one.
    pub restarted: u64,
}

/// The form of the file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    cluster: String,
    member: String,
    stage: StoredStage,
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    initial_cluster: Option<String>,
    #[serde(rename = "peerURLs")]
    peer_urls: Vec<String>,
    #[serde(rename = "clientURLs")]
    client_urls: Vec<String>,
    #[serde(default)]
    restarted: u64,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum StoredStage {
    New,
    Started,
    Ended,
}

/// The file.
#[derive(Clone, Debug)]
pub struct Notes {
    path: PathBuf,
}

impl Notes {
    /// The file beside this data directory: `<data directory>.json`.
    pub fn beside(data: &Path) -> Self {
        let mut name = data.as_os_str().to_owned();
        name.push(".json");
        Self { path: name.into() }
    }

    /// Reads it; `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read, or holds something else.
    pub fn load(&self) -> Result<Option<Record>, StateError> {
        let failed = |reason: String| StateError::Read {
            path: self.path.clone(),
            reason,
        };
        let text = match fs::read(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| failed(error.to_string()))?,
        };
        let stored: Stored = serde_json::from_slice(&text)
            .map_err(|error| failed(format!("it is no note of an agent: {error}")))?;
        let id = |text: &str| {
            u64::from_str_radix(text, 16).map_err(|_| failed(format!("{text:?} is not an id of etcd")))
        };
        let own = OwnMember {
            cluster: ClusterId(id(&stored.cluster)?),
            id: MemberId(id(&stored.member)?),
        };
        let stage = match stored.stage {
            StoredStage::New => Stage::New,
            StoredStage::Started => Stage::Started,
            StoredStage::Ended => Stage::Ended,
        };
        Ok(Some(Record {
            noted: Noted { own, stage },
            name: stored.name,
            initial_cluster: stored.initial_cluster,
            peer_urls: stored.peer_urls,
            client_urls: stored.client_urls,
            restarted: stored.restarted,
        }))
    }

    /// Replaces it: after a loss of power it is this one or the former one.
    ///
    /// # Errors
    /// If it cannot be written. The former one is then still there.
    pub fn save(&self, record: &Record) -> Result<(), StateError> {
        let Noted { own, stage } = record.noted;
        let stored = Stored {
            cluster: own.cluster.to_string(),
            member: own.id.to_string(),
            stage: match stage {
                Stage::New => StoredStage::New,
                Stage::Started => StoredStage::Started,
                Stage::Ended => StoredStage::Ended,
            },
            name: record.name.clone(),
            initial_cluster: record.initial_cluster.clone(),
            peer_urls: record.peer_urls.clone(),
            client_urls: record.client_urls.clone(),
            restarted: record.restarted,
        };
        // It holds nothing that JSON cannot.
        let text = serde_json::to_string_pretty(&stored).map_err(|error| self.failed(error.into()))?;
        directory::write_private(&self.path, &text)?;
        self.sync()
    }

    /// Removes it.
    ///
    /// # Errors
    /// If it is there and cannot be removed.
    pub fn remove(&self) -> Result<(), StateError> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.failed(error)),
            Ok(()) | Err(_) => self.sync(),
        }
    }

    fn sync(&self) -> Result<(), StateError> {
        if let Some(parent) = self.path.parent() {
            directory::sync(parent)?;
        }
        Ok(())
    }

    fn failed(&self, source: io::Error) -> StateError {
        StateError::Use {
            path: self.path.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(stage: Stage) -> Record {
        let own = OwnMember {
            cluster: ClusterId(0xcdf8),
            id: MemberId(0x8e9e_05c5_2164_694d),
        };
        Record {
            noted: Noted { own, stage },
            name: "n2".to_owned(),
            initial_cluster: Some("n2=https://10.0.0.2:2380".to_owned()),
            peer_urls: vec!["https://10.0.0.2:2380".to_owned()],
            client_urls: vec!["https://10.0.0.2:2379".to_owned()],
            restarted: 7,
        }
    }

    #[test]
    fn a_note_is_read_as_it_was_written_from_beside_the_directory_and_removed_at_once() {
        let home = tempfile::tempdir().unwrap();
        let notes = Notes::beside(&home.path().join("etcd"));
        assert_eq!(notes.load().unwrap(), None);
        for stage in [Stage::New, Stage::Started, Stage::Ended] {
            notes.save(&record(stage)).unwrap();
            assert_eq!(notes.load().unwrap(), Some(record(stage)));
        }
        assert!(home.path().join("etcd.json").exists());
        notes.remove().unwrap();
        assert_eq!(notes.load().unwrap(), None);
        notes.remove().unwrap();
    }

    #[test]
    fn a_note_that_cannot_be_read_is_an_error_and_never_none() {
        let home = tempfile::tempdir().unwrap();
        let notes = Notes::beside(&home.path().join("etcd"));
        notes.save(&record(Stage::Started)).unwrap();
        let file = home.path().join("etcd.json");
        let whole = fs::read_to_string(&file).unwrap();
        for bad in [
            String::new(),
            whole[..whole.len() / 2].to_owned(),
            whole.replace("started", "stopped"),
            whole.replace("cdf8", "x"),
        ] {
            fs::write(&file, &bad).unwrap();
            let error = notes.load().unwrap_err().to_string();
            assert!(error.contains("etcd.json"), "{error}");
        }
    }
}
