//! Volumes as directories: `<id>/volume.json`, `<id>/data/` for a mount or `<id>/device` for a block volume, and a file
//! in `<id>/nodes/` for every node that it is published to. A volume appears and goes with one rename, so that a plugin
//! which dies leaves whole volumes or none.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Prefix of volumes that are being created or removed.
const UNFINISHED: &str = ".";

/// The record of a volume, `volume.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// The name of its CreateVolume request.
    pub name: String,
    /// Its capacity in bytes.
    pub capacity: u64,
    /// Whether it is a block device instead of a directory.
    pub block: bool,
    /// Number of the access mode.
    pub mode: i32,
    /// The parameters of its CreateVolume request.
    pub parameters: BTreeMap<String, String>,
    /// Segments of the topology from which it is accessible; empty: from everywhere.
    pub place: Option<BTreeMap<String, String>>,
}

/// How a volume is published to one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Published {
    /// Whether the node may only read it.
    pub read_only: bool,
}

/// A directory of volumes.
#[derive(Clone, Debug)]
pub struct Backend(PathBuf);

/// The id of the volume with this name.
pub fn id_of(name: &str) -> String {
    format!("vol-{name}")
}

impl Backend {
    /// Opens the directory, creates it if need be, and removes volumes that an earlier run did not finish.
    pub fn open(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(Self(directory.to_owned()))
    }

    /// The same without changes to the directory, for other processes than the plugin.
    pub fn at(directory: &Path) -> Self {
        Self(directory.to_owned())
    }

    /// The ids of all volumes.
    pub fn ids(&self) -> io::Result<BTreeSet<String>> {
        let mut ids = BTreeSet::new();
        for entry in fs::read_dir(&self.0)? {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            if !name.starts_with(UNFINISHED) {
                ids.insert(decoded(&name));
            }
        }
        Ok(ids)
    }

    /// The record of a volume; none if it does not exist.
    pub fn volume(&self, id: &str) -> io::Result<Option<Volume>> {
        read_json(&self.home(id).join("volume.json"))
    }

    /// The path of the volume's data.
    pub fn data(&self, id: &str, volume: &Volume) -> PathBuf {
        self.home(id).join(if volume.block { "device" } else { "data" })
    }

    /// Creates a volume, which must not exist.
    pub fn create(&self, id: &str, volume: &Volume) -> io::Result<()> {
        let unfinished = self.unfinished(id);
        let made = (|| {
            fs::create_dir(&unfinished)?;
            fs::create_dir(unfinished.join("nodes"))?;
            if volume.block {
                File::create(unfinished.join("device"))?.set_len(volume.capacity)?;
            } else {
                fs::create_dir(unfinished.join("data"))?;
            }
            write_json(&unfinished.join("volume.json"), volume)?;
            fs::rename(&unfinished, self.home(id))
        })();
        if made.is_err() {
            // The next start removes what this leaves.
            let _ = fs::remove_dir_all(&unfinished);
        }
        made
    }

    /// Removes a volume, if it exists.
    pub fn delete(&self, id: &str) -> io::Result<()> {
        let unfinished = self.unfinished(id);
        match fs::rename(self.home(id), &unfinished) {
            Ok(()) => fs::remove_dir_all(unfinished),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The nodes that a volume is published to.
    pub fn nodes(&self, id: &str) -> io::Result<BTreeMap<String, Published>> {
        let entries = match fs::read_dir(self.home(id).join("nodes")) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            Err(error) => return Err(error),
        };
        let mut nodes = BTreeMap::new();
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !name.starts_with(UNFINISHED)
                && let Some(published) = read_json(&path)?
            {
                nodes.insert(decoded(&name), published);
            }
        }
        Ok(nodes)
    }

    /// Publishes a volume to a node.
    pub fn publish(&self, id: &str, node: &str, published: Published) -> io::Result<()> {
        write_json(&self.node(id, node), &published)
    }

    /// Ends a publication, if it exists.
    pub fn unpublish(&self, id: &str, node: &str) -> io::Result<()> {
        match fs::remove_file(self.node(id, node)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Changes the capacity of a volume.
    pub fn resize(&self, id: &str, mut volume: Volume, capacity: u64) -> io::Result<()> {
        volume.capacity = capacity;
        if volume.block {
            File::options()
                .write(true)
                .open(self.data(id, &volume))?
                .set_len(capacity)?;
        }
        write_json(&self.home(id).join("volume.json"), &volume)
    }

    fn home(&self, id: &str) -> PathBuf {
        self.0.join(encoded(id))
    }

    fn unfinished(&self, id: &str) -> PathBuf {
        self.0.join(format!("{UNFINISHED}{}", encoded(id)))
    }

    fn node(&self, id: &str, node: &str) -> PathBuf {
        self.home(id).join("nodes").join(encoded(node))
    }
}

/// A file name for any id: bytes other than letters, digits and the like become `%` and two hex digits.
fn encoded(id: &str) -> String {
    let mut name = String::new();
    for (place, byte) in id.bytes().enumerate() {
        let plain =
            byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' || (byte == b'.' && place > 0);
        if plain {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("%{byte:02x}"));
        }
    }
    name
}

/// The id of a file name. A name that [`encoded`] did not make is returned unchanged.
fn decoded(name: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = name.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match hex.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn read_json<T: for<'a> Deserialize<'a>>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a file by a rename, so that no reader sees a part of it.
fn write_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let half = path.with_file_name(format!("{UNFINISHED}{name}"));
    fs::write(&half, serde_json::to_vec(value).map_err(io::Error::other)?)?;
    fs::rename(half, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> Volume {
        Volume {
            name: "a".to_owned(),
            capacity: 1 << 20,
            block: true,
            mode: 1,
            parameters: BTreeMap::new(),
            place: None,
        }
    }

    #[test]
    fn a_volume_is_created_expanded_published_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let backend = Backend::open(directory.path()).unwrap();
        let id = id_of("x/../y");
        backend.create(&id, &volume()).unwrap();
        assert_eq!(backend.volume(&id).unwrap(), Some(volume()));
        assert_eq!(backend.ids().unwrap(), BTreeSet::from([id.clone()]));
        backend.resize(&id, volume(), 2 << 20).unwrap();
        let grown = backend.volume(&id).unwrap().unwrap();
        assert_eq!(fs::metadata(backend.data(&id, &grown)).unwrap().len(), 2 << 20);

        let published = Published { read_only: true };
        backend.publish(&id, "node/1.a", published).unwrap();
        let nodes = backend.nodes(&id).unwrap();
        assert_eq!(nodes, BTreeMap::from([("node/1.a".to_owned(), published)]));
        backend.unpublish(&id, "node/1.a").unwrap();
        backend.unpublish(&id, "node/1.a").unwrap();
        assert!(backend.nodes(&id).unwrap().is_empty());

        backend.delete(&id).unwrap();
        backend.delete(&id).unwrap();
        assert!(backend.ids().unwrap().is_empty() && backend.volume(&id).unwrap().is_none());
    }

    #[test]
    fn an_unfinished_volume_of_an_earlier_run_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join(".vol-half/data")).unwrap();
        let backend = Backend::open(directory.path()).unwrap();
        assert!(backend.ids().unwrap().is_empty());
        assert!(!directory.path().join(".vol-half").exists());
    }
}
