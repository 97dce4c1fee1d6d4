//! What the agent keeps on disk about its volumes: directories, links, and a record a publication.
//!
//! A record says that the plugin was asked to mount something, and since which start of the node. It is the one thing that neither the
//! table of mounts nor a repeated call can say: whether a mount at a target is the agent's or foreign. Everything else is asked
//! for again: the session brings the volumes, the table what is mounted, and the plugin's calls are idempotent. After a reboot
//! nothing that the agent mounted is left, so that a record of an earlier boot claims nothing.
//!
//! Directories are removed only where they are empty: what is in a volume is never removed, whatever is still mounted. Nothing here
//! reaches across a mount: see [`beneath`](super::beneath).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tracing::debug;

use super::beneath::{Beneath, UNFINISHED, named};
use super::mounts::Mounts;
use super::paths::{Layout, Paths, STAGING};
use super::plan::Link;
use crate::agent::passage;
use crate::proto::CsiNode;

/// The directory is the plugin's, or the agent's alone.
const OWN: u32 = 0o700;

/// The extension of a record.
const RECORD: &str = "json";

/// The readings of the table of mounts until two in a row are the same. The kernel may leave out a mount where the table changes
/// while it is read.
const READINGS: usize = 10;

/// That the plugin was asked to mount a volume.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
    volume: String,
    plugin: String,
    /// The start of the node that it was asked in.
    boot: String,
    /// Whether it was asked to stage the volume, too.
    staged: bool,
}

/// The answer to NodeGetInfo.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct KnownNode {
    #[serde(rename = "nodeID")]
    node_id: String,
    topology: std::collections::BTreeMap<String, String>,
}

/// The files of the volumes of this node.
#[derive(Clone, Debug)]
pub struct Files {
    layout: Layout,
    boot: String,
    beneath: Beneath,
}

impl Files {
    /// Makes the directory of the volumes.
    ///
    /// # Errors
    /// What cannot be made or read, with its path.
    pub fn open(directory: &Path) -> io::Result<Self> {
        passage::make(directory).map_err(|error| named(directory, error))?;
        // The table of mounts has no links.
        let directory = fs::canonicalize(directory).map_err(|error| named(directory, error))?;
        if directory.to_str().is_none() {
            let error = io::Error::other("the path of the volumes must be text: it travels to the plugins");
            return Err(named(&directory, error));
        }
        let beneath = Beneath::open(&directory)?;
        let layout = Layout::new(directory);
        beneath.permit(layout.directory(), passage::MODE)?;
        make_passage(&beneath, &layout.mounts())?;
        beneath.make_directory(&layout.plugins(), OWN)?;
        let boot = Path::new("/proc/sys/kernel/random/boot_id");
        let boot = fs::read_to_string(boot).map_err(|error| named(boot, error))?;
        Ok(Self {
            layout,
            boot: boot.trim().to_owned(),
            beneath,
        })
    }

    /// The paths of the volumes.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Records that the plugin is asked to mount the volume, and makes what it expects: the directory to stage in, and the parent of
    /// the target.
    pub fn prepare(&self, paths: &Paths, volume: &str, plugin: &str, stages: bool) -> io::Result<()> {
        make_passage(&self.beneath, &paths.home)?;
        let before = self.asked(&paths.record);
        if before.as_ref().is_none_or(|before| stages && !before.staged) {
            let asked = Asked {
                volume: volume.to_owned(),
                plugin: plugin.to_owned(),
                boot: self.boot.clone(),
                staged: stages,
            };
            self.write_json(&paths.record, &asked)?;
        }
        self.beneath.make_directory(&paths.staging, OWN)
    }

    /// Whether the plugin was asked for the publication of this record since the node was started.
    pub fn has_asked(&self, record: &Path) -> bool {
        self.asked(record).is_some()
    }

    /// Whether it was asked to stage the volume since then, for any publication.
    pub fn has_asked_to_stage(&self, paths: &Paths) -> bool {
        let mut records = self.with_extension(&paths.home, RECORD);
        records.any(|record| self.asked(&record).is_some_and(|asked| asked.staged))
    }

    fn asked(&self, record: &Path) -> Option<Asked> {
        // A record that cannot be read claims no mount: what is there is left alone.
        let asked: Option<Asked> = self.read_json(record).unwrap_or_default();
        asked.filter(|asked| asked.boot == self.boot)
    }

    /// Where the path for programs leads.
    pub fn link(&self, paths: &Paths) -> Link {
        match self.beneath.read_link(&paths.link) {
            Ok(to) if to == self.relative(&paths.target) => Link::Ours,
            // Of an earlier publication of the volume, or of an earlier volume of its name.
            Ok(to) if to.starts_with(self.relative(&self.layout.mounts())) => Link::Absent,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Link::Absent,
            Ok(_) | Err(_) => Link::Taken,
        }
    }

    /// Makes the path for programs, in place of one that is left of an earlier publication.
    pub fn make_link(&self, paths: &Paths) -> io::Result<()> {
        if self.link(paths) == Link::Taken {
            return Err(named(&paths.link, io::ErrorKind::AlreadyExists.into()));
        }
        // By a rename: no program finds the path missing in between.
        let new = self.layout.mounts().join(".link");
        self.beneath.remove_file(&new)?;
        self.beneath.make_link(&self.relative(&paths.target), &new)?;
        self.beneath.rename(&new, &paths.link)
    }

    /// Removes the path for programs.
    pub fn remove_link(&self, paths: &Paths) -> io::Result<()> {
        match self.link(paths) {
            Link::Ours => self.beneath.remove_file(&paths.link),
            Link::Absent | Link::Taken => Ok(()),
        }
    }

    /// A link says where a path is from its own directory: an agent in a container may have the directory elsewhere.
    fn relative(&self, path: &Path) -> PathBuf {
        let relative = path.strip_prefix(self.layout.directory());
        relative.unwrap_or(path).to_owned()
    }

    /// Whether there is a directory itself: no link to one, and no mount.
    pub fn is_directory(&self, path: &Path) -> bool {
        self.beneath.is_directory(path)
    }

    /// Removes what is left of a publication, as far as it is empty.
    pub fn tidy(&self, paths: &Paths) {
        for left in [&paths.target, &paths.staging] {
            self.remove_empty(left);
        }
        _ = self.beneath.remove_file(&paths.record);
        self.remove_unfinished(&paths.home);
        self.remove_empty(&paths.home);
    }

    /// Removes what is left of volumes that no publication has, where nothing is mounted.
    pub fn tidy_unused(&self, used: impl Fn(&Path) -> bool, mounts: &Mounts) {
        let homes = self.beneath.list(&self.layout.mounts()).unwrap_or_default();
        for home in homes {
            // A home is a directory by its uid, and a link that was not finished is none.
            if used(&home) || mounts.below(&home).next().is_some() || !self.is_directory(&home) {
                continue;
            }
            for record in self.with_extension(&home, RECORD) {
                // The target has the name of its record.
                self.remove_empty(&record.with_extension(""));
                _ = self.beneath.remove_file(&record);
            }
            self.remove_unfinished(&home);
            self.remove_empty(&home.join(STAGING));
            self.remove_empty(&home);
        }
    }

    /// Removes what a process left that was killed while it wrote.
    fn remove_unfinished(&self, home: &Path) {
        for left in self.with_extension(home, UNFINISHED) {
            _ = self.beneath.remove_file(&left);
        }
    }

    fn remove_empty(&self, directory: &Path) {
        if let Err(error) = self.beneath.remove_directory(directory) {
            debug!(%error, "left a directory of a volume");
        }
    }

    /// The files of a volume with this extension.
    fn with_extension(&self, home: &Path, extension: &'static str) -> impl Iterator<Item = PathBuf> {
        let found = self.beneath.list(home).unwrap_or_default().into_iter();
        found.filter(move |path| path.extension().is_some_and(|found| found == extension))
    }

    /// What a plugin last said of the node.
    ///
    /// # Errors
    /// It cannot be read, so that it may have been anything.
    pub fn known_node(&self, plugin: &str) -> io::Result<Option<CsiNode>> {
        let known: Option<KnownNode> = self.read_json(&self.of_plugin(plugin))?;
        Ok(known.map(|known| CsiNode {
            plugin: plugin.to_owned(),
            node_id: known.node_id,
            topology: known.topology,
        }))
    }

    /// Keeps what a plugin says of the node: a plugin that is away when the agent starts has the node id that it had.
    pub fn keep_node(&self, node: &CsiNode) -> io::Result<()> {
        if self
            .known_node(&node.plugin)
            .is_ok_and(|known| known.as_ref() == Some(node))
        {
            return Ok(());
        }
        let known = KnownNode {
            node_id: node.node_id.clone(),
            topology: node.topology.clone(),
        };
        self.write_json(&self.of_plugin(&node.plugin), &known)
    }

    fn of_plugin(&self, plugin: &str) -> PathBuf {
        // A name of a driver has no slash; one that has must not lead elsewhere.
        let name = plugin.replace('/', "_");
        self.layout.plugins().join(format!("{name}.json"))
    }

    /// `None` if the file does not exist.
    fn read_json<T: DeserializeOwned>(&self, path: &Path) -> io::Result<Option<T>> {
        let bytes = self.beneath.read(path)?;
        let read = bytes.map(|bytes| serde_json::from_slice(&bytes)).transpose();
        read.map_err(|error| named(path, error.into()))
    }

    fn write_json<T: Serialize>(&self, path: &Path, value: &T) -> io::Result<()> {
        let bytes = serde_json::to_vec(value).map_err(|error| named(path, error.into()))?;
        self.beneath.write(path, &bytes)
    }
}

/// Makes a directory through which others pass, also where an earlier process made it under a umask that forbids that.
fn make_passage(beneath: &Beneath, path: &Path) -> io::Result<()> {
    beneath.make_directory(path, passage::MODE)?;
    beneath.permit(path, passage::MODE)
}

/// What is mounted now. Waits for no mount: the kernel answers from memory.
///
/// # Errors
/// The table cannot be read, or is another one at every reading.
pub fn look() -> io::Result<Mounts> {
    let table = Path::new("/proc/self/mountinfo");
    let mut before = fs::read(table)?;
    for _ in 1..READINGS {
        let now = fs::read(table)?;
        if now == before {
            return Mounts::parse(&now).map_err(io::Error::other);
        }
        before = now;
    }
    Err(io::Error::other("the table of mounts changes while it is read"))
}

#[cfg(test)]
mod tests;
