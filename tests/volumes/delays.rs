//! When failed calls are repeated, and what else they delay.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use quorate::volumes::lanes::BESIDE_CALLS;
use quorate_dev::observe::sample;

use super::*;

/// Milliseconds between the beginnings of consecutive calls.
fn gaps(calls: &[Call]) -> Vec<u64> {
    let pairs = calls.windows(2);
    pairs.map(|pair| (pair[1].start - pair[0].start) / 1000).collect()
}

/// The rests between the first calls, in milliseconds, without the jitter.
fn rests() -> impl Iterator<Item = u64> {
    (1..).map(|failed| 100 << failed)
}

#[tokio::test]
async fn calls_that_keep_failing_come_after_growing_delays_though_each_writes_a_message() {
    let world = World::start().await;
    // Each failure has a message of its own, so that each is written into the record.
    for n in 1..=5 {
        let fails = Happening::Fails(answer("Internal", &format!("failure {n}")));
        world.plugin.fault("CreateVolume", Some(1), fails).await;
    }
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    let calls = world.plugin.calls_of("CreateVolume");
    assert_eq!(calls.len(), 6);
    for (gap, rest) in gaps(&calls).into_iter().zip(rests()) {
        assert!(gap >= rest, "{gap} ms instead of {rest}");
    }
    // 6.2 s and the jitter. The remainder is for a busy machine, and shorter than one slow rest.
    let took = (calls[5].start - calls[0].start) / 1000;
    assert!(took < 6200 + 1550 + 10_000, "{took} ms");
    world.expect_blocked("data", None, "").await;
    assert_eq!(
        sample(&leader.metrics(), "quorate_volume_retries_total"),
        Some(5.0)
    );
    leader.resign().await;
}

/// A change, and the volumes whose delay it ends.
type Change<'a> = (&'a str, Vec<String>, &'a [&'a str]);

pub fn micros_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_micros()).unwrap()
}

/// Only a change by another client ends a delay; no write of the leader does.
#[tokio::test]
async fn a_change_by_a_person_ends_a_delay_and_the_next_delays_are_short_again() {
    let world = World::start().await;
    let uses = volume("by-secret", "secrets: [{key: token, secret: backend}],");
    let others = ["by-retry", "by-label", "untouched"].map(|name| volume(name, ""));
    world
        .apply(&(secret("backend", "token", "x") + &uses + &others.concat()))
        .await;
    let mut ids = BTreeMap::new();
    for name in ["by-retry", "by-label", "by-secret", "untouched"] {
        ids.insert(name, world.backend_id(name).await);
    }
    let fails = Happening::Fails(answer("Unavailable", "not yet"));
    world.plugin.fault("CreateVolume", None, fails).await;
    let leader = world.leader().await;
    let calls = |name: &str| {
        let mut calls = world.plugin.calls_of("CreateVolume");
        calls.retain(|call| call.begun.volume == ids[name]);
        calls
    };
    // The next rest is one of 6.4 s.
    eventually(SOON, "each call was made six times", async || {
        let tried = ids.keys().map(|name| calls(name).len()).min();
        if tried >= Some(6) {
            Ok(())
        } else {
            Err(format!("{tried:?}"))
        }
    })
    .await;
    let labelled = volume("by-label", "").replace("{name: by-label}", "{name: by-label, labels: {tier: db}}");
    let changes: [Change<'_>; 4] = [
        ("retry", vec![], &["by-retry"]),
        ("label", vec![labelled], &["by-label"]),
        ("secret", vec![secret("backend", "token", "y")], &["by-secret"]),
        (
            "plugin",
            vec![world.plugin_document("{\"timeout\": \"20s\"}")],
            &["by-retry", "by-label", "by-secret", "untouched"],
        ),
    ];
    for (what, documents, names) in changes {
        if what == "plugin" {
            // No change so far concerned this volume: none of its rests was cut short.
            for (gap, rest) in gaps(&calls("untouched")).into_iter().zip(rests()) {
                assert!(gap >= rest, "{gap} ms instead of {rest}");
            }
        }
        let changed = micros_now();
        match documents.first() {
            Some(documents) => world.apply(documents).await,
            None => world.done(&["retry", "volume", names[0]]).await,
        };
        for name in names {
            eventually(SOON, &format!("{what}: {name} is retried twice"), async || {
                let mut calls = calls(name);
                calls.retain(|call| call.start > changed);
                // A retry that fell due at this moment may come first.
                match gaps(&calls).into_iter().take(2).min() {
                    Some(gap) if gap < 3000 => Ok(()),
                    gap => Err(format!("{gap:?}")),
                }
            })
            .await;
        }
    }
    leader.resign().await;
}

#[tokio::test]
async fn of_ten_publications_seven_succeed_three_say_why_and_only_those_are_retried() {
    let world = World::start().await;
    for n in 4..=10 {
        world.add_node(&format!("n{n}")).await;
    }
    let bad = [2, 5, 9];
    for n in bad {
        let node = format!("csi-n{n}");
        let fails = Happening::Fails(answer("Unavailable", &format!("{node} does not answer")));
        world
            .plugin
            .fault_for("ControllerPublishVolume", None, Some(&node), None, fails)
            .await;
    }
    world.apply(&shared_volume("data", "")).await;
    for n in 1..=10 {
        world.done(&["publish", "data", &format!("n{n}")]).await;
    }
    let leader = world.leader().await;
    for n in (1..=10).filter(|n| !bad.contains(n)) {
        world.expect_state("data", &format!("n{n}"), "published").await;
    }
    for n in bad {
        let blocked = world
            .expect_blocked("data", Some(&format!("n{n}")), "Unavailable")
            .await;
        assert!(
            blocked.message.contains(&format!("csi-n{n} does not answer")),
            "{blocked:?}"
        );
    }
    eventually(SOON, "the three are retried", async || {
        match world.plugin.calls_of("ControllerPublishVolume").len() {
            13.. => Ok(()),
            calls => Err(calls),
        }
    })
    .await;
    let mut count = BTreeMap::<String, usize>::new();
    for call in world.plugin.calls_of("ControllerPublishVolume") {
        *count.entry(call.begun.node.unwrap()).or_default() += 1;
    }
    let again: Vec<_> = count.iter().filter(|(_, calls)| **calls > 1).collect();
    let again: Vec<_> = again.into_iter().map(|(node, _)| node.as_str()).collect();
    assert_eq!(again, ["csi-n2", "csi-n5", "csi-n9"], "{count:?}");
    world.plugin.clear_faults().await;
    world.done(&["retry", "volume", "data"]).await;
    for n in bad {
        world.expect_state("data", &format!("n{n}"), "published").await;
    }
    world.check_calls();
    leader.resign().await;
}

/// The plugin may be at work on the volume still, and a good one answers Aborted to whatever else it is asked about it.
#[tokio::test]
async fn after_a_call_without_an_answer_the_next_one_about_its_volume_waits_and_no_node_is_left_out() {
    let world = World::start().await;
    let limits = "{\"timeouts\": {\"publish\": \"1s\"}}";
    world.apply(&world.plugin_document(limits)).await;
    world
        .plugin
        .fault_for(
            "ControllerPublishVolume",
            None,
            Some("csi-n1"),
            None,
            Happening::Hangs,
        )
        .await;
    world.apply(&shared_volume("data", "")).await;
    for node in ["n1", "n2"] {
        world.done(&["publish", "data", node]).await;
    }
    let leader = world.leader().await;
    world.expect_state("data", "n2", "published").await;
    let calls = world.plugin.calls_of("ControllerPublishVolume");
    let nodes: Vec<_> = calls.iter().map(|call| call.begun.node.as_deref()).collect();
    assert_eq!(nodes[..2], [Some("csi-n1"), Some("csi-n2")], "{nodes:?}");
    // The plugin may notice the begin of a call late, and its end as well.
    let since_end = calls[0]
        .end
        .map_or(0, |end| calls[1].start.saturating_sub(end) / 1000);
    let rested = since_end.max(gaps(&calls)[0].saturating_sub(1000));
    assert!(rested >= 200, "{rested} ms after the limit of the call");
    world.expect_blocked("data", Some("n1"), "DeadlineExceeded").await;
    leader.resign().await;
}

#[tokio::test]
async fn a_final_answer_is_not_retried_until_something_changes() {
    let world = World::start().await;
    let fails = Happening::Fails(answer("InvalidArgument", "no such tier"));
    world.plugin.fault("CreateVolume", None, fails).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_blocked("data", None, "InvalidArgument").await;
    // Nothing may happen in this time; a retry would come after 200 ms.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.plugin.calls_of("CreateVolume").len(), 1);
    // The backend has nothing of it, so it goes without a call.
    world.delete("data").await;
    assert_eq!(world.plugin.calls_of("DeleteVolume"), []);
    assert_eq!(world.plugin.calls_of("CreateVolume").len(), 1);
    leader.resign().await;
}

#[tokio::test]
async fn a_change_during_a_call_with_a_final_answer_has_the_call_repeated() {
    let world = World::start().await;
    world.plugin.fault("CreateVolume", 1, Happening::Waits).await;
    let refuses = Happening::Fails(answer("InvalidArgument", "no such tier"));
    world.plugin.fault("CreateVolume", 1, refuses).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_calls("CreateVolume", 1).await;
    let labelled = volume("data", "").replace("{name: data}", "{name: data, labels: {tier: db}}");
    world.apply(&labelled).await;
    world.plugin.release().await;
    world.expect_created("data").await;
    let calls = world.check_calls();
    let codes = calls.iter().filter(|call| call.begun.method == "CreateVolume");
    let codes: Vec<_> = codes.map(|call| call.code.as_deref().unwrap()).collect();
    assert_eq!(codes, ["InvalidArgument", "OK"]);
    leader.resign().await;
}

/// The second failure says what the first one said, so that the leader writes nothing that would show it the change.
#[tokio::test]
async fn a_change_during_a_call_that_fails_as_before_has_the_call_repeated_at_once() {
    let world = World::start().await;
    let fails = Happening::Fails(answer("PermissionDenied", "not yet"));
    world.plugin.fault("CreateVolume", 1, fails.clone()).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_blocked("data", None, "PermissionDenied").await;
    world.plugin.fault("CreateVolume", 1, Happening::Waits).await;
    world.plugin.fault("CreateVolume", 1, fails).await;
    world.done(&["retry", "volume", "data"]).await;
    world.expect_calls("CreateVolume", 2).await;
    let labelled = volume("data", "").replace("{name: data}", "{name: data, labels: {tier: db}}");
    world.apply(&labelled).await;
    world.plugin.release().await;
    world.expect_created("data").await;
    let calls = world.plugin.calls_of("CreateVolume");
    assert_eq!(calls.len(), 3);
    // The rest after that code is 25 s.
    let rested = calls[2].start - calls[1].end.unwrap();
    assert!(rested < 20_000_000, "{rested} µs");
    leader.resign().await;
}

/// Ten volumes more than have operations, where two calls are made at a time.
const STUCK: usize = 2 + BESIDE_CALLS + 10;

/// INV-8. The calls that hang here hang for longer than any wait of this test.
#[tokio::test]
async fn a_plugin_that_hangs_delays_no_other_plugin_and_a_volume_that_hangs_or_fails_no_other_volume() {
    let world = World::start().await;
    world.apply(&world.plugin_document("{\"timeout\": \"5m\"}")).await;
    let other = "hanging.csi.quorate.dev";
    let hanging = TestPlugin::start_with(|options| options.driver = other.to_owned()).await;
    hanging.fault("CreateVolume", None, Happening::Hangs).await;
    let spec = format!(
        "{{endpoint: {}, timeout: 5m, concurrency: 2}}",
        hanging.endpoint()
    );
    world.apply(&document("Plugin", other, &spec)).await;
    let stuck = (0..STUCK).map(|n| volume(&format!("stuck-{n}"), "").replace(DRIVER, other));
    world.apply(&stuck.collect::<String>()).await;
    world.apply(&(volume("hangs", "") + &volume("fails", ""))).await;
    for (name, happens) in [
        ("hangs", Happening::Hangs),
        ("fails", Happening::Fails(answer("Internal", "no"))),
    ] {
        let id = world.backend_id(name).await;
        world
            .plugin
            .fault_for("CreateVolume", Some(&id), None, None, happens)
            .await;
    }
    let leader = world.leader().await;
    eventually(
        SOON,
        "it hangs, with as many calls as it takes at a time",
        async || same(hanging.calls_of("CreateVolume").len(), 2),
    )
    .await;
    let good: String = (0..40).map(|n| volume(&format!("good-{n}"), "")).collect();
    world.apply(&good).await;
    for n in 0..40 {
        world.expect_created(&format!("good-{n}")).await;
    }
    assert_eq!(
        hanging.calls_of("CreateVolume").len(),
        2,
        "more calls than it takes at a time"
    );
    // Two are in their calls, and others have done everything before theirs. Ten wait for their turn.
    for (name, value) in [
        ("quorate_volume_queue_depth", 10.0),
        ("quorate_volumes{state=\"creating\"}", (STUCK + 2) as f64),
        ("quorate_volumes{state=\"created\"}", 40.0),
    ] {
        eventually(SOON, name, async || {
            same(sample(&leader.metrics(), name), Some(value))
        })
        .await;
    }
    world.check_calls();
    leader.resign().await;
}
