//! What must hold of all calls that a plugin ever got, read from its own log.

use std::collections::BTreeMap;

use quorate::dev::csi_plugin::log::Call;

/// Panics at the first call that should not have been made.
pub fn check(calls: &[Call], what: &str) {
    let mut of_volume: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in calls {
        let begun = &call.begun;
        // INV-6: no empty node id, which would be every node.
        if begun.method.ends_with("publishVolume") || begun.method.ends_with("PublishVolume") {
            assert!(
                begun.node.as_deref().is_some_and(|node| !node.is_empty()),
                "{what}: without a node: {call:?}"
            );
        }
        // The plugin turns away a second call for a volume by itself; no test makes it say so.
        assert_ne!(
            call.code.as_deref(),
            Some("Aborted"),
            "{what}: two at a time: {call:?}"
        );
        if begun.method == "DeleteVolume" {
            // INV-6: never while a publication exists; nor is this code made up by a test.
            assert_ne!(
                call.code.as_deref(),
                Some("FailedPrecondition"),
                "{what}: it was published: {call:?}"
            );
        }
        if !begun.volume.is_empty() {
            assert_eq!(begun.secrets, ["token"], "{what}: {call:?}");
            of_volume.entry(&begun.volume).or_default().push(call);
        }
    }
    for (volume, calls) in of_volume {
        let mut deleted = false;
        for pair in calls.windows(2) {
            let [before, after] = pair else { continue };
            // INV-6: one at a time. A call without an end died with its plugin.
            match before.end {
                Some(end) => assert!(
                    end <= after.start,
                    "{what}: two calls at a time for {volume}: {before:?} and {after:?}"
                ),
                None => assert_ne!(before.run, after.run, "{what}: {before:?} and {after:?}"),
            }
        }
        for call in &calls {
            if deleted {
                assert_eq!(
                    call.begun.method, "DeleteVolume",
                    "{what}: {volume} was deleted before: {call:?}"
                );
            }
            deleted |= call.begun.method == "DeleteVolume" && call.code.as_deref() == Some("OK");
        }
    }
}
