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
        for (place, after) in calls.iter().enumerate().skip(1) {
            // INV-6: one at a time. A call that the controller gave up at its limit, or that ended with its leader, may
            // go on at the plugin for a moment; the plugin then turns the next one away, which no test makes it say.
            let mut earlier = calls[..place].iter();
            let overlapped = earlier.find(|before| match before.end {
                Some(end) => end > after.start,
                // It died with its plugin.
                None => before.run == after.run,
            });
            if let Some(before) = overlapped {
                assert_eq!(
                    before.code.as_deref(),
                    Some("Canceled"),
                    "{what}: two calls at a time for {volume}: {before:?} and {after:?}"
                );
            } else {
                assert_ne!(after.code.as_deref(), Some("Aborted"), "{what}: {after:?}");
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
