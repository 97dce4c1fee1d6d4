//! What operators are shown of volumes beside their conditions: lines of the log, and Events.

use tracing::warn;

use super::TermState;
use crate::kube::events::{Notice, Severity};
use crate::store::Name;
use crate::volumes::conditions::blocked_by;
use crate::volumes::plan::{Target, Wait};
use crate::volumes::record::Blocked;

/// What is wrong with a part of a volume, in a line.
pub(super) fn note(name: &Name, target: &Target, why: &Blocked) -> String {
    let place = match target {
        Target::Volume => String::new(),
        Target::Node(node) => format!(" on node {node}"),
        Target::Stray(id) => format!(" on node id {id}"),
        Target::Orphaned => ", whose record is gone".to_owned(),
    };
    format!("volume {name}{place}: {}: {}", why.reason, why.message)
}

impl TermState {
    /// Something that is wanted cannot be done.
    pub(super) fn report_blocked(&self, note: String) {
        self.report("VolumeBlocked", note);
    }

    /// The same where nothing was tried.
    pub(super) fn report_wait(&self, name: &Name, wait: &Wait) {
        self.report_blocked(note(name, &wait.target, &blocked_by(wait)));
    }

    /// The plugin has the volume published otherwise than the records say.
    pub(super) fn report_drift(&self, name: &Name, why: &Blocked) {
        self.report("VolumeDrifted", note(name, &Target::Volume, why));
    }

    fn report(&self, reason: &'static str, note: String) {
        warn!("{note}");
        self.notices.send(Notice {
            severity: Severity::Warning,
            reason,
            action: "Volumes",
            note,
        });
    }
}
