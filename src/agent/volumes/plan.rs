//! The next step of one volume on a node, and why. Pure: what is seen and the time in, a step and its reason out.
//!
//! ```text
//!   publish:    stage ─▶ publish ─▶ link ─▶ expand ─▶ confirm
//!   unpublish:  unlink ─▶ unpublish ─▶ unstage ─▶ confirm
//! ```
//!
//! Staging and unstaging are left out where the plugin does not offer them. What was done in an earlier process of the agent or of
//! the plugin is done again: the calls are idempotent, and a plugin that restarted may have lost what it did. An absent mount makes
//! the calls be repeated, too. A mount that the agent did not ask for is never touched (INV-12), and nothing is confirmed while
//! anything is mounted where the volume was (INV-6). [`take_into_use`] says when a volume is not staged and published although the
//! view says so.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::mounts::At;
use crate::csi::NodeCapabilities;
use crate::proto::NodePublication;
use crate::proto::node_publication::Instruction;
use crate::volumes::request::reads_only;

/// A confirmation that was taken and does not show in the next view for this long is repeated: etcd may have been restored. Until then
/// a view that shows the publication as it was before counts as older than the confirmation.
pub const CONFIRMED_FOR: Duration = Duration::from_secs(60);

/// What the agent does about one volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// NodeStageVolume.
    Stage,
    /// NodePublishVolume.
    Publish,
    /// Make the path for programs.
    Link,
    /// NodeExpandVolume.
    Expand {
        /// The capacity to expand to.
        bytes: i64,
    },
    /// Confirm that what is on the volume has this capacity.
    ConfirmExpanded {
        /// The capacity.
        bytes: i64,
    },
    /// Remove the path for programs.
    Unlink,
    /// NodeUnpublishVolume.
    Unpublish,
    /// NodeUnstageVolume.
    Unstage,
    /// Confirm that the node no longer uses the volume.
    ConfirmUnpublished,
}

impl fmt::Display for Step {
    /// What the step does, in the imperative.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stage => "stage the volume",
            Self::Publish => "publish the volume",
            Self::Link => "make the volume's path",
            Self::Expand { .. } => "expand what is on the volume",
            Self::ConfirmExpanded { .. } => "confirm the expansion",
            Self::Unlink => "remove the volume's path",
            Self::Unpublish => "unpublish the volume",
            Self::Unstage => "unstage the volume",
            Self::ConfirmUnpublished => "confirm that the volume is not used here",
        })
    }
}

impl Step {
    /// What this step has done once it has succeeded, for the log.
    pub fn done_text(self) -> &'static str {
        match self {
            Self::Stage => "volume staged",
            Self::Publish => "volume published",
            Self::Link => "path of the volume made",
            Self::Expand { .. } => "expanded what is on the volume",
            Self::ConfirmExpanded { .. } => "expansion confirmed",
            Self::Unlink => "path of the volume removed",
            Self::Unpublish => "volume unpublished",
            Self::Unstage => "volume unstaged",
            Self::ConfirmUnpublished => "confirmed that the volume is not used here",
        }
    }
}

/// Why nothing can be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// One stable word.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

/// Why a volume is published again whose mount did not stay.
const GONE: &str = "nothing is mounted there any more";

/// A mount that is not the agent's is where a volume belongs.
pub const FOREIGN: &str = "ForeignMount";

/// What the plan decides about one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// This step, for this reason.
    Do(Step, &'static str),
    /// Nothing can be done now.
    Wait(Wait),
    /// This is a failure: the volume rests as after a failed step, and is then decided on again, with [`Done::has_rested`].
    Rest(Wait),
    /// Nothing is left to do.
    Settled,
}

/// The path for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// There is nothing at it, or a link of an earlier publication.
    Absent,
    /// It leads to the target.
    Ours,
    /// Something is there that the agent did not make.
    Taken,
}

/// What is seen of one publication on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What is mounted at the target.
    pub target: At,
    /// What is mounted where the volume is staged, or below that.
    pub staging: At,
    /// Something mounted elsewhere below the directory of the volume: of an earlier publication, or by a person.
    pub other: Option<PathBuf>,
    /// The path for programs.
    pub link: Link,
    /// Whether the agent has asked the plugin for the publication since the node was started. What is mounted at the target otherwise
    /// is foreign.
    pub asked: bool,
    /// Whether it has asked the plugin to stage the volume since then, for any publication: they share what is staged.
    pub asked_to_stage: bool,
}

/// The session of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Counts the sessions in this process.
    pub session: u64,
    /// What the plugin offers.
    pub offers: NodeCapabilities,
}

/// What this process has done about one publication since its last instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// The session in which the volume was last staged.
    pub staged: Option<u64>,
    /// The session in which the volume was last published.
    pub published: Option<u64>,
    /// Whether a mount was seen at the target after that. Some plugins publish without one.
    pub was_mounted: bool,
    /// Whether the volume has rested since that mount was gone.
    pub has_rested: bool,
    /// The capacity to which what is on the volume was expanded.
    pub expanded: i64,
    /// The capacity that was last confirmed, and when.
    pub expansion_confirmed: Option<(i64, Instant)>,
    /// NodeUnpublishVolume succeeded, and nothing was mounted at the target after it.
    pub unpublished: bool,
    /// NodeUnstageVolume succeeded, and nothing was mounted where the volume is staged after it; or there is nothing to unstage.
    pub unstaged: bool,
}

/// Everything that the plan of one volume depends on.
#[derive(Clone, Copy)]
pub struct Observed<'a> {
    /// What the cluster wants.
    pub publication: &'a NodePublication,
    /// The session of the plugin, or why there is none.
    pub plugin: Result<Ready, &'a Wait>,
    /// What is seen on the node; `None` if it cannot be read.
    pub seen: Option<&'a Seen>,
    /// What was done.
    pub done: &'a Done,
    /// Whether the view is that of a session.
    pub is_current: bool,
    /// When the node confirmed that it does not use the volume for this publication, if it did.
    pub was_confirmed: Option<Instant>,
}

impl Observed<'_> {
    fn was_just_confirmed(&self, now: Instant) -> bool {
        self.was_confirmed.is_some_and(|at| now < at + CONFIRMED_FOR)
    }
}

/// Decides the next step of one volume.
pub fn plan(observed: &Observed<'_>, now: Instant) -> Decision {
    let planned = match observed.publication.instruction() {
        Instruction::Publish => publish(observed, now),
        Instruction::Unpublish => unpublish(observed, now),
        // The view does not show all of it, or nothing is left to do: what is there stays.
        Instruction::Unspecified | Instruction::None => Ok(Decision::Settled),
    };
    planned.unwrap_or_else(Decision::Wait)
}

fn publish(observed: &Observed<'_>, now: Instant) -> Result<Decision, Wait> {
    let Observed { done, .. } = observed;
    let seen = seen(observed)?;
    if seen.link == Link::Taken {
        let message = "something else is at the volume's path, and is left there".to_owned();
        return Err(wait("PathInUse", message));
    }
    let ready = observed.plugin.map_err(Clone::clone)?;
    let in_session = |session: Option<u64>| session == Some(ready.session);
    let is_gone = in_session(done.published) && done.was_mounted && seen.target == At::Nothing;
    let because = |otherwise| {
        if is_gone { GONE } else { otherwise }
    };
    if ready.offers.stage && (is_gone || !in_session(done.staged)) {
        let because = because("the plugin has not staged it in this session");
        return take_into_use(observed, Step::Stage, because, now);
    }
    if is_gone || !in_session(done.published) {
        let because = because("the plugin has not published it in this session");
        return take_into_use(observed, Step::Publish, because, now);
    }
    if seen.link == Link::Absent {
        return Ok(Decision::Do(Step::Link, "the volume is published"));
    }
    expand(observed, ready, now)
}

/// A step that takes the volume into use, unless the volume may be another node's by now (INV-6), or has to rest first: something may
/// unmount it again and again (INV-9).
fn take_into_use(
    observed: &Observed<'_>,
    step: Step,
    because: &'static str,
    now: Instant,
) -> Result<Decision, Wait> {
    if observed.was_just_confirmed(now) {
        let message =
            "the node has just confirmed that it does not use the volume; the view may be older than that";
        return Err(wait("JustConfirmed", message.to_owned()));
    }
    if !observed.is_current {
        let message = "there is no session, and the volume may be another node's by now";
        return Err(wait("NoSession", message.to_owned()));
    }
    if because == GONE && !observed.done.has_rested {
        return Ok(Decision::Rest(wait("MountGone", GONE.to_owned())));
    }
    Ok(Decision::Do(step, because))
}

fn expand(observed: &Observed<'_>, ready: Ready, now: Instant) -> Result<Decision, Wait> {
    let Observed {
        publication, done, ..
    } = observed;
    let bytes = publication.capacity_bytes;
    if bytes <= publication.expanded_bytes {
        return Ok(Decision::Settled);
    }
    let confirmed = done.expansion_confirmed.as_ref();
    if confirmed.is_some_and(|(confirmed, at)| *confirmed >= bytes && now < *at + CONFIRMED_FOR) {
        return Ok(Decision::Settled);
    }
    let mode = publication.access_mode.as_ref();
    if mode.map_or(publication.read_only, |mode| {
        reads_only(mode, publication.read_only)
    }) {
        // No file system grows that is mounted read-only. A node that writes the volume expands it, and confirms it.
        return Ok(Decision::Settled);
    }
    if done.expanded >= bytes {
        return Ok(Decision::Do(Step::ConfirmExpanded { bytes }, "it is expanded"));
    }
    if !ready.offers.expand {
        let message = "the volume has grown, and the plugin does not offer EXPAND_VOLUME on the node; once it is expanded by \
                       other means, quorate expanded confirms it";
        return Err(wait("ExpansionNotOffered", message.to_owned()));
    }
    Ok(Decision::Do(Step::Expand { bytes }, "the volume has grown"))
}

fn unpublish(observed: &Observed<'_>, now: Instant) -> Result<Decision, Wait> {
    if observed.was_just_confirmed(now) {
        return Ok(Decision::Settled);
    }
    let (done, seen) = (observed.done, seen(observed)?);
    let is_back =
        (done.unpublished && seen.target != At::Nothing) || (done.unstaged && seen.staging != At::Nothing);
    if is_back {
        return Err(foreign());
    }
    if seen.link == Link::Ours {
        return Ok(Decision::Do(Step::Unlink, "the volume is wanted back"));
    }
    if !(done.unpublished && done.unstaged) {
        let ready = observed.plugin.map_err(Clone::clone)?;
        if !done.unpublished {
            return Ok(Decision::Do(Step::Unpublish, "the volume is wanted back"));
        }
        still_mounted(seen)?;
        if ready.offers.stage {
            return Ok(Decision::Do(Step::Unstage, "the volume is unpublished"));
        }
        if seen.asked_to_stage || seen.staging != At::Nothing {
            // It may be staged without a mount.
            let message = "the volume is staged, and the plugin does not offer STAGE_UNSTAGE_VOLUME any more";
            return Err(wait("StillStaged", message.to_owned()));
        }
    }
    still_mounted(seen)?;
    Ok(Decision::Do(
        Step::ConfirmUnpublished,
        "nothing of it is mounted any more",
    ))
}

/// Nothing of the volume may be left, of an earlier publication either: it is unstaged after its last use.
fn still_mounted(seen: &Seen) -> Result<(), Wait> {
    let Some(path) = &seen.other else {
        return Ok(());
    };
    let message = format!("{} is still mounted, which no publication has", path.display());
    Err(wait("StillMounted", message))
}

/// What is seen, where nothing foreign is in the way.
fn seen<'a>(observed: &Observed<'a>) -> Result<&'a Seen, Wait> {
    let Some(seen) = observed.seen else {
        let message = "what is mounted cannot be read".to_owned();
        return Err(wait("MountsUnknown", message));
    };
    let is_foreign = |at, asked: bool| match at {
        At::Nothing => false,
        At::Mounted => !asked,
        At::Covered => true,
    };
    if is_foreign(seen.target, seen.asked) || is_foreign(seen.staging, seen.asked_to_stage) {
        return Err(foreign());
    }
    Ok(seen)
}

fn foreign() -> Wait {
    let message = "something is mounted where the volume belongs that its plugin was not asked to mount; it is left there \
                   until it is unmounted by hand";
    wait(FOREIGN, message.to_owned())
}

fn wait(reason: &'static str, message: String) -> Wait {
    Wait { reason, message }
}

#[cfg(test)]
mod tests;
