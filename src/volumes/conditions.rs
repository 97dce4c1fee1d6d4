//! What the conditions of a volume and of its publications should say. Pure.

use jiff::Timestamp;

use super::index::VolumeSnapshot;
use super::plan::{Decision, Step, Target, Wait};
use super::record::{BLOCKED, Blocked, Conditions, DRIFTED, capacity_accepted};
use super::retry_state::RetryState;
use crate::proto::Condition;
use crate::proto::condition::Status;
use crate::store::object::{Object, condition};

/// The conditions that are out of date: why a target failed, or else why it waits, and how the plugin's list differs. That a
/// plugin is not ready is in its own status, to which people are referred.
pub fn condition_changes(
    state: Option<&RetryState>,
    snapshot: &VolumeSnapshot,
    decision: &Decision,
) -> Conditions {
    let is_unknown = decision.step == Some(Step::Connect);
    let status = snapshot.volume.status.as_ref();
    let strays = status.into_iter().flat_map(|status| &status.detach_node_ids);
    // Those that the record has yet to take.
    let unrecorded = state.into_iter().flat_map(|state| &state.compensations);
    let unrecorded = unrecorded.filter_map(|one| Some(&one.publication.as_ref()?.csi_node_id));
    let strays = strays.chain(unrecorded).map(|id| Target::Stray(id.clone()));
    let change = |target: Target, conditions: Option<&Vec<Condition>>| {
        if state.is_some_and(|state| state.is_quiet(&target)) {
            return None;
        }
        let mut waits = decision.waits.iter();
        let wait = waits.find(|wait| wait.reason.is_fault() && wait.target == target);
        let failed = state.and_then(|state| match &target {
            // A node id that no publication stores has no record of its own.
            Target::Volume => state
                .blocked(&target)
                .or_else(|| strays.clone().find_map(|id| state.blocked(&id))),
            _ => state.blocked(&target),
        });
        let now = failed.cloned().or_else(|| wait.map(blocked_by));
        // Until the plugin has answered, what the condition says may still be true.
        if now.is_none() && is_unknown {
            return None;
        }
        changed(BLOCKED, conditions, now)
    };
    let of_volume = status.map(|status| &status.conditions);
    let drift = state.and_then(|state| state.drift.as_ref());
    let nodes = snapshot.publications.iter().filter_map(|(node, publication)| {
        let status = publication.status.as_ref();
        let of_node = status.map(|status| &status.conditions);
        Some((node.clone(), change(Target::Node(node.clone()), of_node)?))
    });
    Conditions {
        volume: change(Target::Volume, of_volume),
        drift: drift.and_then(|drift| changed(DRIFTED, of_volume, drift.why(snapshot.volume.name()))),
        capacity_accepted: capacity_accepted(&snapshot.volume, Timestamp::UNIX_EPOCH).is_some(),
        nodes: nodes.collect(),
    }
}

/// The waits that the conditions say from now on. A failed call was reported when it failed; that something cannot even be tried
/// is in no log otherwise.
pub fn new_waits<'d>(changes: &Conditions, decision: &'d Decision) -> Vec<&'d Wait> {
    let is_new = |wait: &&Wait| {
        let said = match &wait.target {
            Target::Volume => changes.volume.as_ref(),
            Target::Node(node) => {
                let mut nodes = changes.nodes.iter();
                nodes.find(|(other, _)| other == node).map(|(_, why)| why)
            }
            // Without conditions of their own.
            Target::Stray(_) | Target::Orphaned => None,
        };
        wait.reason.is_fault() && said == Some(&Some(blocked_by(wait)))
    };
    decision.waits.iter().filter(is_new).collect()
}

/// What a condition should say, unless it says so already.
fn changed(
    r#type: &str,
    conditions: Option<&Vec<Condition>>,
    now: Option<Blocked>,
) -> Option<Option<Blocked>> {
    let stored = conditions.and_then(|conditions| condition::find(conditions, r#type));
    let stored = stored.filter(|condition| condition.status() == Status::True);
    let stored = stored.map(|condition| (&condition.reason, &condition.message));
    (now.as_ref().map(|now| (&now.reason, &now.message)) != stored).then_some(now)
}

/// Why it waits, as the condition says it.
pub fn blocked_by(wait: &Wait) -> Blocked {
    Blocked {
        reason: wait.reason.as_str().to_owned(),
        message: wait.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Publication, PublicationStatus, Volume, VolumeStatus};
    use crate::volumes::drift::Drift;
    use crate::volumes::operation::{Failure, QUICK};
    use crate::volumes::plan::WaitReason;
    use crate::volumes::record::{set_blocked, volume_drifted};
    use crate::volumes::retry_state::Unsettled;

    fn node() -> Target {
        Target::Node("n1".parse().unwrap())
    }

    /// Changes of `Blocked` alone.
    fn changes<const N: usize>(
        volume: Option<Option<Blocked>>,
        nodes: [(Target, Option<Blocked>); N],
    ) -> Conditions {
        let nodes = nodes.into_iter().map(|(target, why)| match target {
            Target::Node(node) => (node, why),
            other => panic!("{other:?}"),
        });
        Conditions {
            volume,
            drift: None,
            capacity_accepted: false,
            nodes: nodes.collect(),
        }
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
        set_blocked(&mut conditions, why.as_ref(), 1, jiff::Timestamp::UNIX_EPOCH);
        conditions
    }

    /// A volume on the node n1, with these reasons in the conditions of the two.
    fn stored(of_volume: Option<&str>, of_node: Option<&str>) -> VolumeSnapshot {
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
            publications: [("n1".parse().unwrap(), publication)].into(),
            ..VolumeSnapshot::default()
        }
    }

    /// The changes for a volume whose target failed.
    fn changes_after(
        target: Target,
        failure: Failure,
        snapshot: &VolumeSnapshot,
        decision: &Decision,
    ) -> Conditions {
        let (mut unsettled, name) = (Unsettled::default(), "data".parse().unwrap());
        unsettled.fail(&name, target, failure);
        condition_changes(unsettled.get(&name), snapshot, decision)
    }

    fn internal() -> Failure {
        Failure {
            why: why("Internal"),
            retry: Some(QUICK),
            is_quiet: false,
            code: None,
            waits_for: None,
        }
    }

    fn waiting(reason: WaitReason) -> Decision {
        let wait = Wait {
            target: node(),
            reason,
            message: "because".to_owned(),
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
    fn a_failure_is_written_to_its_target_alone_and_only_once() {
        let settled = Decision::default();
        let seen = changes_after(node(), internal(), &stored(None, None), &settled);
        assert_eq!(seen, changes(None, [(node(), Some(why("Internal")))]));
        let written = stored(None, Some("Internal"));
        assert_eq!(
            changes_after(node(), internal(), &written, &settled),
            changes(None, [])
        );
    }

    #[test]
    fn what_is_over_is_cleared() {
        let written = stored(Some("Internal"), Some("Internal"));
        let seen = condition_changes(None, &written, &Decision::default());
        assert_eq!(seen, changes(Some(None), [(node(), None)]));
    }

    #[test]
    fn a_wait_is_written_if_a_person_has_to_act() {
        let (fault, ordinary) = (
            waiting(WaitReason::NodeIDMissing),
            waiting(WaitReason::NodeUnpublish),
        );
        let nothing = stored(None, None);
        let seen = condition_changes(None, &nothing, &fault);
        assert_eq!(seen, changes(None, [(node(), Some(why("NodeIDMissing")))]));
        assert_eq!(condition_changes(None, &nothing, &ordinary), changes(None, []));
        let seen = changes_after(node(), internal(), &nothing, &fault);
        let failure = changes(None, [(node(), Some(why("Internal")))]);
        assert_eq!(seen, failure, "a failure says more than a wait");
    }

    #[test]
    fn a_wait_is_news_once_it_is_written_and_a_failure_that_hides_it_is_none() {
        let news = |snapshot: &VolumeSnapshot, decision: &Decision, failed: bool| {
            let mut unsettled = Unsettled::default();
            let name = "data".parse().unwrap();
            if failed {
                unsettled.fail(&name, node(), internal());
            }
            let changes = condition_changes(unsettled.get(&name), snapshot, decision);
            new_waits(&changes, decision).len()
        };
        let (fault, ordinary) = (
            waiting(WaitReason::NodeIDMissing),
            waiting(WaitReason::NodeUnpublish),
        );
        let nothing = stored(None, None);
        assert_eq!(news(&nothing, &fault, false), 1);
        assert_eq!(news(&nothing, &ordinary, false), 0, "it ends by itself");
        assert_eq!(news(&nothing, &fault, true), 0, "it was reported when it failed");
        assert_eq!(news(&stored(None, Some("NodeIDMissing")), &fault, false), 0);
        assert_eq!(news(&stored(None, Some("Internal")), &fault, false), 1);
        // Of two, the condition says the first.
        let mut two = fault.clone();
        two.waits.extend(waiting(WaitReason::NodePaused).waits);
        assert_eq!(news(&nothing, &two, false), 1);
    }

    #[test]
    fn a_plugin_that_is_not_ready_is_written_to_no_volume_and_clears_nothing() {
        let written = stored(Some("Internal"), Some("NotFound"));
        let seen = condition_changes(None, &written, &unknown());
        assert_eq!(seen, changes(None, []), "the plugin has not answered yet");
        let seen = condition_changes(None, &stored(None, None), &unknown());
        assert_eq!(seen, changes(None, []));
        let seen = condition_changes(None, &written, &Decision::default());
        assert_eq!(
            seen,
            changes(Some(None), [(node(), None)]),
            "nothing needs the plugin"
        );
    }

    #[test]
    fn a_quiet_failure_writes_and_clears_nothing() {
        let written = stored(Some("Internal"), None);
        let seen = changes_after(
            Target::Volume,
            Failure::restless(),
            &written,
            &Decision::default(),
        );
        assert_eq!(seen, changes(None, []));
    }

    #[test]
    fn drift_is_written_once_and_cleared_once_the_list_agrees() {
        let (mut unsettled, name) = (Unsettled::default(), "data".parse().unwrap());
        let mut snapshot = stored(None, None);
        let drift = Drift {
            strays: ["csi-n9".to_owned()].into(),
            ..Drift::default()
        };
        let said = drift.why("").unwrap();
        unsettled.state(&name).drift = Some(drift);
        let drifted = |unsettled: &Unsettled, snapshot: &VolumeSnapshot| {
            condition_changes(unsettled.get(&name), snapshot, &Decision::default()).drift
        };
        assert_eq!(drifted(&unsettled, &snapshot), Some(Some(said.clone())));
        let now = jiff::Timestamp::UNIX_EPOCH;
        snapshot.volume = volume_drifted(&snapshot.volume, Some(&said), now).unwrap();
        assert_eq!(drifted(&unsettled, &snapshot), None);
        assert_eq!(
            drifted(&Unsettled::default(), &snapshot),
            None,
            "not compared yet"
        );
        unsettled.state(&name).drift = Some(Drift::default());
        assert_eq!(drifted(&unsettled, &snapshot), Some(None));
    }
}
