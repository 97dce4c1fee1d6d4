//! What the leader counts of volumes.

use quorate_dev::observe::sample;

use super::*;
use crate::support::leader::Leader;

fn blocked(kind: &str, reason: &str) -> String {
    format!("quorate_volumes_blocked{{kind=\"{kind}\",reason=\"{reason}\"}}")
}

fn oldest(kind: &str) -> String {
    format!("quorate_volumes_blocked_oldest_seconds{{kind=\"{kind}\"}}")
}

/// Waits until a series has this value; `None`: until there is no such series.
async fn shows(leader: &Leader, series: &str, expected: Option<f64>) {
    eventually(SOON, &format!("{series} is {expected:?}"), async || {
        same(sample(&leader.metrics(), series), expected)
    })
    .await;
}

#[tokio::test]
async fn what_is_blocked_is_counted_by_kind_and_reason_with_the_longest_wait() {
    let world = World::start().await;
    let leader = world.leader().await;
    for name in ["a", "b"] {
        let without = volume(name, "").replace(DRIVER, "missing.csi");
        world.apply(&without).await;
    }
    world.apply(&volume("data", "")).await;
    world
        .apply(&document("Node", "n9", "{desiredRole: worker}"))
        .await;
    world.done(&["publish", "data", "n9"]).await;
    let (of_volumes, of_nodes) = (
        blocked("volume", "PluginMissing"),
        blocked("publication", "NodeIDMissing"),
    );
    shows(&leader, &of_volumes, Some(2.0)).await;
    shows(&leader, &of_nodes, Some(1.0)).await;
    for kind in ["volume", "publication"] {
        eventually(
            SOON,
            &format!("the wait of a {kind} is counted"),
            async || match leader.metric(&oldest(kind)) {
                1.0.. => Ok(()),
                seconds => Err(seconds),
            },
        )
        .await;
    }
    world.done(&["unpublish", "data", "n9"]).await;
    shows(&leader, &of_nodes, None).await;
    shows(&leader, &oldest("publication"), Some(0.0)).await;
    world.delete("a").await;
    shows(&leader, &of_volumes, Some(1.0)).await;
    leader.resign().await;
    let ended = world.store.etcd.metrics().encode();
    assert_eq!(sample(&ended, &of_volumes), None, "another replica leads");
    assert_eq!(sample(&ended, &oldest("volume")), Some(0.0));
}
