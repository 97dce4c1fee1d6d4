//! What must hold of all calls that a plugin received, read from its own log (INV-6).

use std::collections::{BTreeMap, BTreeSet};

use quorate_dev::csi_plugin::log::Call;

/// Panics at the first call that should not have been made. No test that uses this makes the plugin answer Aborted or
/// FailedPrecondition without a cause.
pub fn check(calls: &[Call], what: &str) {
    let mut of_volume: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in calls {
        let begun = &call.begun;
        if matches!(
            begun.method.as_str(),
            "ControllerPublishVolume" | "ControllerUnpublishVolume"
        ) {
            let node = begun.node.as_deref().unwrap_or_default();
            assert_ne!(
                node, "",
                "{what}: without a node, which means every node: {call:?}"
            );
        }
        if !begun.volume.is_empty() {
            of_volume.entry(&begun.volume).or_default().push(call);
        }
    }
    for (volume, calls) in of_volume {
        check_one_at_a_time(&calls, &format!("{what}: {volume}"));
        check_order(&calls, &format!("{what}: {volume}"));
    }
}

/// A call that the controller gave up at its limit, or that ended with its leader, may go on at the plugin for a moment.
/// The plugin then rejects the next one.
fn check_one_at_a_time(calls: &[&Call], what: &str) {
    for (place, after) in calls.iter().enumerate().skip(1) {
        let overlapped = calls[..place].iter().find(|before| match before.end {
            Some(end) => end > after.start,
            // The call died with its plugin.
            None => before.run == after.run,
        });
        match overlapped {
            Some(before) => assert_eq!(
                before.code.as_deref(),
                Some("Canceled"),
                "{what}: two calls at a time: {before:?} and {after:?}"
            ),
            None => assert_ne!(after.code.as_deref(), Some("Aborted"), "{what}: {after:?}"),
        }
    }
}

/// A volume is deleted only after it was unpublished from every node that may have it, and no call follows.
fn check_order(calls: &[&Call], what: &str) {
    let mut attached = BTreeSet::new();
    let mut deleted = false;
    for call in calls {
        let (method, code) = (call.begun.method.as_str(), call.code.as_deref());
        let node = call.begun.node.as_deref().unwrap_or_default();
        assert!(
            !deleted || method == "DeleteVolume",
            "{what}: the volume was deleted before: {call:?}"
        );
        match method {
            // Whatever the answer was, the node may have it.
            "ControllerPublishVolume" => {
                attached.insert(node);
            }
            "ControllerUnpublishVolume" if code == Some("OK") => {
                attached.remove(node);
            }
            "DeleteVolume" => {
                assert!(
                    attached.is_empty(),
                    "{what}: deleted while on {attached:?}: {call:?}"
                );
                assert_ne!(code, Some("FailedPrecondition"), "{what}: {call:?}");
                deleted |= code == Some("OK");
            }
            _ => {}
        }
    }
}
