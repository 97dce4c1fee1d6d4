//! What the conditions of a volume and its publications are to say. Pure.

use super::index::VolumeSnapshot;
use super::plan::{Decision, Step, Target, Wait};
use super::record::{self, Blocked};
use super::retry_state::RetryState;
use crate::proto::Condition;

/// Where the conditions do not say what is the case, and what they are to say: what failed, else what is waited for.
/// `unready` is why its plugin is not ready.
pub fn condition_changes(
    retry: Option<&RetryState>,
    seen: &VolumeSnapshot,
    decision: &Decision,
    unready: Option<&Blocked>,
) -> Vec<(Target, Option<Blocked>)> {
    let is_unknown = decision.step == Some(Step::Connect);
    let say = |target: Target, conditions: Option<&Vec<Condition>>| {
        if retry.is_some_and(|retry| retry.is_quiet(&target)) {
            return None;
        }
        let mut waits = decision.waits.iter();
        let wait = waits.find(|wait| wait.is_fault && wait.target == target);
        let failed = retry.and_then(|retry| retry.blocked(&target));
        let unready = unready.filter(|_| is_unknown && target == Target::Volume);
        let now = failed.or(unready).cloned().or_else(|| wait.map(blocked_by));
        // As long as the plugin was not asked, what stands may still be so.
        if now.is_none() && is_unknown {
            return None;
        }
        let stands = conditions.and_then(|conditions| record::blocked(conditions));
        let stands = stands.map(|condition| (&condition.reason, &condition.message));
        (now.as_ref().map(|now| (&now.reason, &now.message)) != stands).then_some((target, now))
    };
    let volume = seen.volume.status.as_ref();
    let volume = say(Target::Volume, volume.map(|status| &status.conditions));
    let nodes = seen.publications.iter().filter_map(|(node, publication)| {
        let status = publication.status.as_ref();
        say(
            Target::Node(node.clone()),
            status.map(|status| &status.conditions),
        )
    });
    volume.into_iter().chain(nodes).collect()
}

fn blocked_by(wait: &Wait) -> Blocked {
    Blocked {
        reason: wait.reason.to_owned(),
        message: wait.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::Revision;
    use crate::proto::{Publication, PublicationStatus, Volume, VolumeStatus};
    use crate::volumes::operation::Failure;
    use crate::volumes::retry::Pace;

    fn node() -> Target {
        Target::Node("n1".parse().unwrap())
    }

    fn why(reason: &str) -> Blocked {
        Blocked {
            reason: reason.to_owned(),
            message: "because".to_owned(),
        }
    }

    fn conditions(reason: Option<&str>) -> Vec<Condition> {
        let mut conditions = Vec::new();
        let why = reason.map(why);
        record::set_blocked(&mut conditions, why.as_ref(), 1, jiff::Timestamp::UNIX_EPOCH);
        conditions
    }

    /// A volume on the node n1, with these reasons in their conditions.
    fn seen(of_volume: Option<&str>, of_node: Option<&str>) -> VolumeSnapshot {
        let volume = Volume {
            status: Some(VolumeStatus {
                conditions: conditions(of_volume),
                ..VolumeStatus::default()
            }),
            ..Volume::default()
        };
        let publication = Publication {
            status: Some(PublicationStatus {
                conditions: conditions(of_node),
                ..PublicationStatus::default()
            }),
            ..Publication::default()
        };
        VolumeSnapshot {
            volume,
            revision: Revision(1),
            publications: [("n1".parse().unwrap(), publication)].into(),
            revisions: Default::default(),
            unreadable: Default::default(),
            nodes: Default::default(),
        }
    }

    fn failing(target: Target) -> RetryState {
        let mut retry = RetryState::default();
        let failure = Failure {
            why: why("Internal"),
            pace: Some(Pace::Quick),
            is_quiet: false,
        };
        retry.fail(target, failure);
        retry
    }

    fn waiting(is_fault: bool) -> Decision {
        let wait = Wait {
            target: node(),
            reason: "NodeIDMissing",
            message: "because".to_owned(),
            is_fault,
        };
        Decision {
            step: None,
            waits: vec![wait],
        }
    }

    fn unknown() -> Decision {
        Decision {
            step: Some(Step::Connect),
            waits: Vec::new(),
        }
    }

    #[test]
    fn what_failed_is_said_where_it_failed_and_only_once() {
        let retry = failing(node());
        let settled = Decision::default();
        let note = (node(), Some(why("Internal")));
        assert_eq!(
            condition_changes(Some(&retry), &seen(None, None), &settled, None),
            [note]
        );
        let said = seen(None, Some("Internal"));
        assert_eq!(condition_changes(Some(&retry), &said, &settled, None), []);
    }

    #[test]
    fn what_is_over_is_taken_back() {
        let stands = seen(Some("Internal"), Some("Internal"));
        let over = condition_changes(None, &stands, &Decision::default(), None);
        assert_eq!(over, [(Target::Volume, None), (node(), None)]);
    }

    #[test]
    fn a_wait_is_said_if_somebody_has_to_do_something_about_it() {
        let note = (node(), Some(why("NodeIDMissing")));
        assert_eq!(
            condition_changes(None, &seen(None, None), &waiting(true), None),
            [note]
        );
        assert_eq!(
            condition_changes(None, &seen(None, None), &waiting(false), None),
            []
        );
        let retry = failing(node());
        let both = condition_changes(Some(&retry), &seen(None, None), &waiting(true), None);
        assert_eq!(both, [(node(), Some(why("Internal")))], "what failed says more");
    }

    #[test]
    fn a_plugin_that_is_not_ready_is_said_of_the_volume_and_takes_nothing_back() {
        let starting = why("PluginStarting");
        let said = condition_changes(None, &seen(None, Some("NotFound")), &unknown(), Some(&starting));
        assert_eq!(said, [(Target::Volume, Some(starting.clone()))]);
        let stands = seen(Some("Internal"), Some("NotFound"));
        assert_eq!(
            condition_changes(None, &stands, &unknown(), None),
            [],
            "it was not asked yet"
        );
        let over = condition_changes(None, &stands, &Decision::default(), Some(&starting));
        assert_eq!(over, [(Target::Volume, None), (node(), None)], "nothing needs it");
    }

    #[test]
    fn a_quiet_failure_says_nothing_and_takes_nothing_back() {
        let mut retry = RetryState::default();
        retry.fail(Target::Volume, Failure::restless());
        let stands = seen(Some("Internal"), None);
        assert_eq!(
            condition_changes(Some(&retry), &stands, &Decision::default(), None),
            []
        );
    }
}
