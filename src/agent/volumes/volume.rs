//! One volume of the view: what this process has done about it, what is seen of it, and its state.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, warn};

use super::files::Files;
use super::mounts::{At, Mounts};
use super::operation::{After, Named};
use super::paths::Paths;
use super::plan::{Done, FOREIGN, Seen, Step, Wait};
use super::states::State;
use crate::proto::node_publication::Instruction;

/// A mount that goes sooner is made again after growing delays (INV-9).
const STEADY: Duration = Duration::from_secs(60);

/// A volume that the view has.
pub(super) struct Volume {
    /// Its place in the view.
    pub at: usize,
    pub publication: Named,
    pub paths: Paths,
    pub done: Done,
    pub state: State,
    /// When it was last published.
    published_at: Option<Instant>,
    /// What was last logged about it.
    problem: Option<Wait>,
}

impl Volume {
    /// One about which nothing was done.
    pub fn new(at: usize, publication: Named, paths: Paths) -> Self {
        Self {
            at,
            publication,
            paths,
            done: Done::default(),
            state: State::Publishing,
            published_at: None,
            problem: None,
        }
    }

    /// Whether what was done about it counts for this publication as well. One that the view does not show whole is `unknown`.
    pub fn is_for(&self, publication: &Named, unknown: bool) -> bool {
        let Named { uid, instruction, .. } = &self.publication;
        *uid == publication.uid && (*instruction == publication.instruction || unknown)
    }

    /// Takes over what another view says of the publication.
    pub fn update(&mut self, publication: Named) {
        if self.publication.usage != publication.usage {
            // The plugin may do something else with it now.
            (self.done.staged, self.done.published) = (None, None);
        }
        self.publication = publication;
    }

    /// What is seen of it on the node: its mounts and its files.
    pub fn look(&mut self, mounts: &Mounts, files: &Files) -> Seen {
        let Paths {
            home,
            target,
            staging,
            record,
            ..
        } = &self.paths;
        let others = mounts.of_volume(home).map(|mount| &mount.path);
        let mut others = others.filter(|path| *path != target && !path.starts_with(staging));
        // What is mounted on the whole directory of the volume hides both.
        let is_hidden = mounts.at(home) != At::Nothing;
        let seen = |at: At| if is_hidden { At::Covered } else { at };
        if mounts.at(target) != At::Nothing {
            self.done.was_mounted |= self.done.published.is_some();
            self.done.has_rested = false;
        }
        Seen {
            target: seen(mounts.at(target)),
            staging: seen(mounts.within(staging)),
            other: others.next().cloned(),
            link: files.link(&self.paths),
            asked: files.has_asked(record),
            asked_to_stage: files.has_asked_to_stage(&self.paths),
        }
    }

    /// Whether it stays as it is: a mount that goes soon is a failure, however often it is made.
    pub fn is_steady(&self) -> bool {
        self.published_at.is_none_or(|at| at.elapsed() >= STEADY)
    }

    /// Nothing is left to do.
    pub fn settled(&mut self, instruction: Instruction) {
        self.problem = None;
        self.state = match instruction {
            Instruction::Publish => State::Published,
            Instruction::Unpublish => State::Unpublishing,
            Instruction::Unspecified | Instruction::None => self.state,
        };
    }

    /// It does not get on. Logs why, once.
    pub fn blocked(&mut self, why: Wait) {
        self.state = match why.reason {
            FOREIGN => State::Foreign,
            _ => State::Blocked,
        };
        let (name, Wait { reason, message }) = (&self.publication.volume, &why);
        let before = self.problem.as_ref().map(|before| before.reason);
        if before == Some(*reason) {
            debug!(volume = name, "{reason}: {message}");
        } else {
            warn!(volume = name, "{reason}: {message}");
        }
        self.problem = Some(why);
    }

    /// A step begins.
    pub fn began(&mut self, step: Step, has_failed: bool) {
        self.state = match step {
            _ if has_failed => State::Blocked,
            Step::Stage | Step::Publish | Step::Link => State::Publishing,
            // It is used while it grows.
            Step::Expand { .. } | Step::ConfirmExpanded { .. } => State::Published,
            Step::Unlink | Step::Unpublish | Step::Unstage | Step::ConfirmUnpublished => State::Unpublishing,
        };
    }

    /// A step has succeeded, in this session of the plugin.
    pub fn succeeded(&mut self, step: Step, session: Option<u64>, after: After) {
        let done = &mut self.done;
        match step {
            Step::Stage => (done.staged, done.published, done.was_mounted) = (session, None, false),
            Step::Publish => {
                (done.published, done.was_mounted, done.has_rested) = (session, after.is_mounted, false);
                self.published_at = Some(Instant::now());
            }
            Step::Expand { bytes } => done.expanded = bytes,
            Step::ConfirmExpanded { bytes } => {
                done.expansion_confirmed = Some((bytes, Instant::now().into_std()));
            }
            Step::Unpublish => (done.unpublished, done.unstaged) = (true, after.is_unstaged),
            Step::Unstage => done.unstaged = true,
            Step::Link | Step::Unlink | Step::ConfirmUnpublished => {}
        }
        if after.is_bare {
            warn!(
                volume = self.publication.volume,
                "the plugin has published the volume, and nothing is mounted at its path: does it mount where the agent sees it \
                 (mountPropagation: Bidirectional)?"
            );
        }
    }

    /// A step has failed.
    pub fn failed(&mut self, step: Step, why: Wait) {
        if step == Step::Publish {
            // The plugin may have lost what it staged.
            self.done.staged = None;
        }
        self.blocked(why);
        self.state = State::Blocked;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::proto::NodePublication;

    fn world() -> (tempfile::TempDir, Files, Volume) {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::open(&directory.path().join("volumes")).unwrap();
        let publication = NodePublication {
            volume: "data".to_owned(),
            volume_uid: "u".to_owned(),
            publication_uid: "p".to_owned(),
            ..NodePublication::default()
        };
        let paths = files.layout().paths(&publication).unwrap();
        (directory, files, Volume::new(0, Named::of(&publication), paths))
    }

    fn mounted(path: &Path) -> Mounts {
        let line = format!("1 0 0:1 / {} rw - t s rw\n", path.display());
        Mounts::parse(line.as_bytes()).unwrap()
    }

    /// INV-12.
    #[test]
    fn a_mount_on_the_directory_of_a_volume_hides_its_paths() {
        let (_directory, files, mut volume) = world();
        let home = volume.paths.home.clone();
        let seen = volume.look(&mounted(&home), &files);
        assert_eq!((seen.target, seen.staging), (At::Covered, At::Covered));
        assert_eq!(seen.other, Some(home));
    }

    #[test]
    fn a_mount_below_the_staging_path_is_that_of_the_staged_volume() {
        let (_directory, files, mut volume) = world();
        let below = volume.paths.staging.join("id");
        let seen = volume.look(&mounted(&below), &files);
        assert_eq!((seen.staging, seen.other), (At::Mounted, None));
    }

    /// INV-9: a mount that comes back by itself and goes again is another one.
    #[test]
    fn a_rest_counts_until_something_is_mounted_again() {
        let (_directory, files, mut volume) = world();
        let target = mounted(&volume.paths.target);
        volume.done.published = Some(1);
        volume.done.has_rested = true;
        volume.look(&Mounts::default(), &files);
        assert!(volume.done.has_rested && !volume.done.was_mounted);
        volume.look(&target, &files);
        assert!(!volume.done.has_rested && volume.done.was_mounted);
    }

    #[tokio::test]
    async fn another_usage_makes_the_calls_be_repeated_and_a_failed_publication_the_staging() {
        let (_directory, _files, mut volume) = world();
        let published = |volume: &mut Volume| {
            volume.succeeded(Step::Stage, Some(1), After::default());
            volume.succeeded(Step::Publish, Some(1), After::default());
            assert_eq!((volume.done.staged, volume.done.published), (Some(1), Some(1)));
            assert!(!volume.is_steady());
        };
        published(&mut volume);
        let same = volume.publication.clone();
        volume.update(same.clone());
        assert_eq!(volume.done.published, Some(1));
        volume.update(Named {
            usage: same.usage.wrapping_add(1),
            ..same
        });
        assert_eq!((volume.done.staged, volume.done.published), (None, None));
        published(&mut volume);
        let why = Wait {
            reason: FOREIGN,
            message: String::new(),
        };
        volume.failed(Step::Publish, why.clone());
        assert_eq!((volume.done.staged, volume.state), (None, State::Blocked));
        volume.blocked(why);
        assert_eq!(volume.state, State::Foreign);
    }
}
