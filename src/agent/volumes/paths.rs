//! The paths of the volumes on a node. Pure.
//!
//! ```text
//! DIR/<volume>                                    what programs use: a link to the target
//! DIR/.mounts/<volume uid>/staging                the agent makes it, the plugin stages there
//! DIR/.mounts/<volume uid>/<publication uid>      the target: the plugin makes it
//! DIR/.mounts/<volume uid>/<publication uid>.json what the agent has asked the plugin for
//! DIR/.plugins/<plugin>.json                      what the plugin last said of the node
//! ```
//!
//! The plugin gets paths with uids: a volume that is made again under a name, or published again, never meets what an earlier one
//! left. They stay below the 128 bytes that every plugin has to take, however long the name is. No volume has a name that begins
//! with a dot.

use std::path::{Path, PathBuf};

use crate::proto::NodePublication;
use crate::store::Name;

/// The directory of the volumes. Its path has no links, as those in the table of mounts.
#[derive(Clone, Debug)]
pub struct Layout {
    directory: PathBuf,
}

/// The paths of one publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// What programs use.
    pub link: PathBuf,
    /// The directory of the volume, which holds the other paths.
    pub home: PathBuf,
    /// Where the plugin stages the volume.
    pub staging: PathBuf,
    /// Where the plugin publishes the volume.
    pub target: PathBuf,
    /// What the agent has asked the plugin for.
    pub record: PathBuf,
}

impl Layout {
    /// The layout below a directory.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// The directory itself.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The directories of the volumes, by uid.
    pub fn mounts(&self) -> PathBuf {
        self.directory.join(MOUNTS)
    }

    /// What the plugins said of the node.
    pub fn plugins(&self) -> PathBuf {
        self.directory.join(".plugins")
    }

    /// The paths of a publication. `None` where a name or a uid is none: it would lead elsewhere.
    pub fn paths(&self, publication: &NodePublication) -> Option<Paths> {
        let volume: Name = publication.volume.parse().ok()?;
        let home = self.mounts().join(uid(&publication.volume_uid)?);
        let target = uid(&publication.publication_uid)?;
        Some(Paths {
            link: self.directory.join(volume.as_str()),
            staging: home.join(STAGING),
            target: home.join(target),
            record: home.join(format!("{target}.json")),
            home,
        })
    }
}

/// The name of the directory that holds the directories of the volumes.
pub const MOUNTS: &str = ".mounts";

/// The name of the directory where a volume is staged. No uid: those have digits.
pub const STAGING: &str = "staging";

fn uid(text: &str) -> Option<&str> {
    let is_plain = text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (is_plain && !text.is_empty() && text != STAGING).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publication(volume: &str, volume_uid: &str, publication_uid: &str) -> NodePublication {
        NodePublication {
            volume: volume.to_owned(),
            volume_uid: volume_uid.to_owned(),
            publication_uid: publication_uid.to_owned(),
            ..NodePublication::default()
        }
    }

    #[test]
    fn the_plugin_gets_paths_with_uids_and_programs_one_with_the_name() {
        let layout = Layout::new("/var/lib/quorate/volumes".into());
        let paths = layout.paths(&publication("data", "u-1", "p-1")).unwrap();
        assert_eq!(paths.link, Path::new("/var/lib/quorate/volumes/data"));
        let home = Path::new("/var/lib/quorate/volumes/.mounts/u-1");
        assert_eq!(paths.staging, home.join("staging"));
        assert_eq!(paths.target, home.join("p-1"));
        let again = layout.paths(&publication("data", "u-1", "p-2")).unwrap();
        assert_eq!(again.staging, paths.staging, "a volume is staged once");
        assert_ne!(again.target, paths.target);
        let uid = "123e4567-e89b-12d3-a456-426614174000";
        let long = layout.paths(&publication(&"x".repeat(63), uid, uid)).unwrap();
        assert!(long.target.as_os_str().len() <= 128, "{long:?}");
    }

    #[test]
    fn no_name_and_no_uid_leads_elsewhere() {
        let layout = Layout::new("/d".into());
        for (volume, volume_uid, publication_uid) in [
            ("../x", "u", "p"),
            ("", "u", "p"),
            (".mounts", "u", "p"),
            ("v", "..", "p"),
            ("v", "a/b", "p"),
            ("v", "", "p"),
            ("v", "u", ""),
            ("v", "u", "staging"),
            ("v", "u", "../../x"),
        ] {
            let found = layout.paths(&publication(volume, volume_uid, publication_uid));
            assert_eq!(found, None, "{volume:?} {volume_uid:?} {publication_uid:?}");
        }
    }
}
