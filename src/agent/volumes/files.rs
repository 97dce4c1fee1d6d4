//! What the agent keeps on disk about its volumes: directories, links, and a record a publication.
//!
//! A record says that the plugin was asked to mount something, and since which start of the node. It is the one thing that neither the
//! table of mounts nor a repeated call can say: whether a mount at a target is the agent's or foreign. Everything else is asked
//! for again: the session brings the volumes, the table what is mounted, and the plugin's calls are idempotent. After a reboot
//! nothing that the agent mounted is left, so that a record of an earlier boot claims nothing.
//!
//! Directories are removed only where they are empty: what is in a volume is never removed, whatever is still mounted.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tracing::debug;

use super::mounts::Mounts;
use super::paths::{Layout, Paths, STAGING};
use super::plan::Link;
use crate::proto::CsiNode;

/// Others may pass through a directory on their way to a volume, and see nothing else there.
const PASSED_THROUGH: u32 = 0o711;

/// The directory is the plugin's.
const OWN: u32 = 0o700;

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
}

impl Files {
    /// Makes the directory of the volumes.
    ///
    /// # Errors
    /// What cannot be made or read, with its path.
    pub fn open(directory: &Path) -> io::Result<Self> {
        make(directory, PASSED_THROUGH)?;
        // The table of mounts has no links.
        let directory = fs::canonicalize(directory).map_err(|error| named(directory, error))?;
        if directory.to_str().is_none() {
            let error = io::Error::other("the path of the volumes must be text: it travels to the plugins");
            return Err(named(&directory, error));
        }
        let layout = Layout::new(directory);
        make(&layout.mounts(), PASSED_THROUGH)?;
        make(&layout.plugins(), OWN)?;
        let boot = Path::new("/proc/sys/kernel/random/boot_id");
        let boot = fs::read_to_string(boot).map_err(|error| named(boot, error))?;
        Ok(Self {
            layout,
            boot: boot.trim().to_owned(),
        })
    }

    /// The paths of the volumes.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Records that the plugin is asked to mount the volume, and makes what it expects: the directory to stage in, and the parent of
    /// the target.
    pub fn prepare(&self, paths: &Paths, volume: &str, plugin: &str, stages: bool) -> io::Result<()> {
        make(&paths.home, PASSED_THROUGH)?;
        let before = self.asked(&paths.record);
        if before.as_ref().is_none_or(|before| stages && !before.staged) {
            let asked = Asked {
                volume: volume.to_owned(),
                plugin: plugin.to_owned(),
                boot: self.boot.clone(),
                staged: stages,
            };
            write_json(&paths.record, &asked)?;
        }
        // Not recursively: that looks into a directory that is there, and a mount there may hang.
        match DirBuilder::new().mode(OWN).create(&paths.staging) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(named(&paths.staging, error)),
            _ => Ok(()),
        }
    }

    /// Whether the plugin was asked for the publication of this record since the node was started.
    pub fn has_asked(&self, record: &Path) -> bool {
        self.asked(record).is_some()
    }

    /// Whether it was asked to stage the volume since then, for any publication.
    pub fn has_asked_to_stage(&self, paths: &Paths) -> bool {
        let asked = records(&paths.home);
        let mut asked = asked.iter().filter_map(|record| self.asked(record));
        asked.any(|asked| asked.staged)
    }

    fn asked(&self, record: &Path) -> Option<Asked> {
        // A record that cannot be read claims no mount: what is there is left alone.
        let asked: Option<Asked> = read_json(record).unwrap_or_default();
        asked.filter(|asked| asked.boot == self.boot)
    }

    /// Where the path for programs leads.
    pub fn link(&self, paths: &Paths) -> Link {
        match fs::read_link(&paths.link) {
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
        remove_file(&new)?;
        std::os::unix::fs::symlink(self.relative(&paths.target), &new).map_err(|error| named(&new, error))?;
        fs::rename(&new, &paths.link).map_err(|error| named(&paths.link, error))
    }

    /// Removes the path for programs.
    pub fn remove_link(&self, paths: &Paths) -> io::Result<()> {
        match self.link(paths) {
            Link::Ours => remove_file(&paths.link),
            Link::Absent | Link::Taken => Ok(()),
        }
    }

    /// A link says where a path is from its own directory: an agent in a container may have the directory elsewhere.
    fn relative(&self, path: &Path) -> PathBuf {
        let relative = path.strip_prefix(self.layout.directory());
        relative.unwrap_or(path).to_owned()
    }

    /// Removes what is left of a publication, as far as it is empty.
    pub fn tidy(&self, paths: &Paths) {
        for left in [&paths.target, &paths.staging] {
            remove_empty(left);
        }
        _ = remove_file(&paths.record);
        remove_empty(&paths.home);
    }

    /// Removes what is left of volumes that no publication has, where nothing is mounted.
    pub fn tidy_unused(&self, used: impl Fn(&Path) -> bool, mounts: &Mounts) {
        let entries = fs::read_dir(self.layout.mounts()).into_iter().flatten();
        let homes = entries.flatten().map(|entry| entry.path());
        for home in homes.filter(|home| !used(home) && mounts.below(home).next().is_none()) {
            for record in records(&home) {
                _ = remove_file(&record);
            }
            remove_empty(&home.join(STAGING));
            remove_empty(&home);
        }
    }

    /// What a plugin last said of the node.
    ///
    /// # Errors
    /// It cannot be read, so that it may have been anything.
    pub fn known_node(&self, plugin: &str) -> io::Result<Option<CsiNode>> {
        let known: Option<KnownNode> = read_json(&self.of_plugin(plugin))?;
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
        write_json(&self.of_plugin(&node.plugin), &known)
    }

    fn of_plugin(&self, plugin: &str) -> PathBuf {
        // A name of a driver has no slash; one that has must not lead elsewhere.
        let name = plugin.replace('/', "_");
        self.layout.plugins().join(format!("{name}.json"))
    }
}

/// What is mounted now.
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

/// Whether a directory is there itself, and no link to one.
pub fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// The records of the publications of a volume.
fn records(home: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(home).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let is_record = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json");
    paths.filter(is_record).collect()
}

fn make(directory: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().recursive(true).mode(mode).create(directory) {
        // Of an earlier publication that is still mounted there, or of a plugin that has it as something else.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(|error| named(directory, error)),
    }
}

fn remove_empty(directory: &Path) {
    if let Err(error) = fs::remove_dir(directory)
        && error.kind() != io::ErrorKind::NotFound
    {
        debug!(directory = %directory.display(), %error, "left a directory of a volume");
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(named(path, error)),
        _ => Ok(()),
    }
}

/// `None` if the file does not exist.
fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a file by a rename, readable by its owner alone.
fn write_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let unfinished = path.with_extension("unfinished");
    let written = (|| {
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&unfinished)?;
        file.write_all(&serde_json::to_vec(value).map_err(io::Error::other)?)?;
        // After a power cut, the file is the one before or this one, and never an empty one.
        file.sync_all()?;
        fs::rename(&unfinished, path)
    })();
    written.map_err(|error| {
        _ = fs::remove_file(&unfinished);
        named(path, error)
    })
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::NodePublication;

    fn publication(volume: &str, publication_uid: &str) -> NodePublication {
        NodePublication {
            volume: volume.to_owned(),
            volume_uid: "u-1".to_owned(),
            publication_uid: publication_uid.to_owned(),
            ..NodePublication::default()
        }
    }

    struct World {
        _directory: tempfile::TempDir,
        files: Files,
        paths: Paths,
    }

    fn world() -> World {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::open(&directory.path().join("volumes")).unwrap();
        let paths = files.layout().paths(&publication("data", "p-1")).unwrap();
        World {
            _directory: directory,
            files,
            paths,
        }
    }

    #[test]
    fn a_record_claims_the_mounts_of_this_boot_alone() {
        let World {
            mut files,
            paths,
            _directory,
        } = world();
        assert!(!files.has_asked(&paths.record));
        files.prepare(&paths, "data", "p", true).unwrap();
        files.prepare(&paths, "data", "p", true).unwrap();
        assert!(files.has_asked(&paths.record) && paths.staging.is_dir() && !paths.target.exists());
        assert!(files.has_asked_to_stage(&paths));
        files.prepare(&paths, "data", "p", false).unwrap();
        assert!(files.has_asked_to_stage(&paths), "it was staged before");
        let later = files.layout().paths(&publication("data", "p-2")).unwrap();
        assert!(!files.has_asked(&later.record) && files.has_asked_to_stage(&later));
        files.boot = "another".to_owned();
        assert!(!files.has_asked(&paths.record), "the node was rebooted");
        assert!(!files.has_asked_to_stage(&later));
        files.prepare(&paths, "data", "p", true).unwrap();
        assert!(files.has_asked(&paths.record));
        fs::write(&paths.record, "{").unwrap();
        assert!(
            !files.has_asked(&paths.record),
            "a record that cannot be read claims nothing"
        );
    }

    #[test]
    fn the_path_for_programs_leads_to_the_target_of_the_latest_publication() {
        let World {
            files,
            paths,
            _directory,
        } = world();
        assert_eq!(files.link(&paths), Link::Absent);
        files.make_link(&paths).unwrap();
        assert_eq!(files.link(&paths), Link::Ours);
        fs::create_dir_all(&paths.target).unwrap();
        assert_eq!(fs::canonicalize(&paths.link).unwrap(), paths.target);

        let later = files.layout().paths(&publication("data", "p-2")).unwrap();
        assert_eq!(files.link(&later), Link::Absent, "that of an earlier one");
        files.remove_link(&later).unwrap();
        assert_eq!(
            files.link(&paths),
            Link::Ours,
            "it is not the later one's to remove"
        );
        files.make_link(&later).unwrap();
        assert_eq!(files.link(&later), Link::Ours);
        files.remove_link(&later).unwrap();
        assert_eq!(files.link(&later), Link::Absent);
    }

    /// INV-12.
    #[test]
    fn what_the_agent_did_not_make_is_never_replaced_or_removed() {
        let World {
            files,
            paths,
            _directory,
        } = world();
        fs::create_dir(&paths.link).unwrap();
        assert_eq!(files.link(&paths), Link::Taken);
        files.make_link(&paths).unwrap_err();
        files.remove_link(&paths).unwrap();
        assert!(paths.link.is_dir());
        fs::remove_dir(&paths.link).unwrap();
        std::os::unix::fs::symlink("/elsewhere", &paths.link).unwrap();
        assert_eq!(files.link(&paths), Link::Taken);
        files.make_link(&paths).unwrap_err();
    }

    #[test]
    fn what_is_in_a_directory_is_never_removed() {
        let World {
            files,
            paths,
            _directory,
        } = world();
        files.prepare(&paths, "data", "p", true).unwrap();
        fs::create_dir(&paths.target).unwrap();
        fs::write(paths.target.join("file"), "precious").unwrap();
        files.tidy(&paths);
        assert!(paths.target.join("file").exists() && !paths.staging.exists());
        fs::remove_file(paths.target.join("file")).unwrap();
        files.tidy(&paths);
        assert!(!paths.home.exists());
    }

    #[test]
    fn what_is_left_of_volumes_without_a_publication_is_removed_unless_something_is_mounted_or_kept_there() {
        let World {
            files,
            paths,
            _directory,
        } = world();
        let mounted = format!("1 0 0:1 / {} rw - t s rw\n", paths.target.display());
        let mounted = Mounts::parse(mounted.as_bytes()).unwrap();
        files.prepare(&paths, "data", "p", true).unwrap();
        files.tidy_unused(|_| false, &mounted);
        files.tidy_unused(|home| home == paths.home, &Mounts::default());
        assert!(files.has_asked(&paths.record), "mounted, or used");
        files.tidy_unused(|_| false, &Mounts::default());
        assert!(!paths.home.exists());
        files.prepare(&paths, "data", "p", true).unwrap();
        fs::write(paths.staging.join("file"), "precious").unwrap();
        files.tidy_unused(|_| false, &Mounts::default());
        assert!(paths.staging.join("file").exists());
    }

    #[test]
    fn the_node_of_a_plugin_is_known_to_the_next_process() {
        let World {
            files, _directory, ..
        } = world();
        assert_eq!(files.known_node("a/../b").unwrap(), None);
        let node = CsiNode {
            plugin: "a/../b".to_owned(),
            node_id: "n1".to_owned(),
            topology: [("zone".to_owned(), "a".to_owned())].into(),
        };
        files.keep_node(&node).unwrap();
        assert_eq!(files.known_node("a/../b").unwrap(), Some(node.clone()));
        fs::write(files.of_plugin("a/../b"), "").unwrap();
        files.known_node("a/../b").unwrap_err();
        files.keep_node(&node).unwrap();
        assert_eq!(files.known_node("a/../b").unwrap(), Some(node));
    }
}
