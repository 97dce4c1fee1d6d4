//! Leaders that die at every step, and a random run. The backend is empty at the end, whatever happened.

use std::collections::{BTreeMap, BTreeSet};

use quorate::dev::csi_plugin::faults::Happening;

use super::*;
use crate::support::csi::answer;
use crate::support::dice::{Dice, seed};
use crate::support::quorate::{Launch, TestReplica};

/// A leader dies at this point of a volume's life; the next one carries on.
async fn die_at(point: &str) {
    let world = World::start().await;
    let launch = Launch::on(&world.etcd).flag("--lease-ttl=2");
    let mut dying = launch.clone().flag(format!("--crash-at={point}")).start("r0");
    // It leads before there is another, so that it is the one that gets there.
    if point != "volumes.listed" {
        dying.wait_leading().await;
    }
    world.apply(&volume("data", "")).await;
    world.done(&["publish", "data", "n1"]).await;
    // It dies on the way there, or later.
    let replica = launch.start("r1");
    world.expect_state("data", "n1", "published").await;
    assert_eq!(
        world.attached(&world.backend_id("data").await),
        ["csi-n1"],
        "{point}"
    );
    world
        .done(&["unpublish", "data", "n1", "--confirm", "--wait", "--timeout=60s"])
        .await;
    world
        .done(&["delete", "volume", "data", "--yes", "--wait", "--timeout=60s"])
        .await;
    world.expect_empty_backend().await;
    assert!(!dying.ended().await.success(), "{point} was never reached");
    check(&world.plugin.calls().unwrap(), |call| {
        call.code.as_deref() != Some("Canceled")
    });
    drop(replica);
}

#[tokio::test]
async fn a_leader_that_dies_while_it_creates_leaves_nothing_behind() {
    for point in ["volumes.listed", "volumes.creating", "volumes.create-intended"] {
        die_at(point).await;
    }
}

#[tokio::test]
async fn a_leader_that_dies_before_it_records_a_creation_leaves_nothing_behind() {
    for point in [
        "volumes.create-called",
        "volumes.create-recorded",
        "volumes.publishing",
    ] {
        die_at(point).await;
    }
}

#[tokio::test]
async fn a_leader_that_dies_while_it_publishes_leaves_nothing_behind() {
    for point in [
        "volumes.publish-intended",
        "volumes.publish-called",
        "volumes.publish-recorded",
    ] {
        die_at(point).await;
    }
}

#[tokio::test]
async fn a_leader_that_dies_while_it_unpublishes_leaves_nothing_behind() {
    for point in [
        "volumes.unpublishing",
        "volumes.unpublished",
        "volumes.unpublish-recorded",
    ] {
        die_at(point).await;
    }
}

#[tokio::test]
async fn a_leader_that_dies_while_it_deletes_leaves_nothing_behind() {
    for point in [
        "volumes.deleting",
        "volumes.delete-intended",
        "volumes.delete-called",
        "volumes.delete-recorded",
    ] {
        die_at(point).await;
    }
}

const STEPS: usize = 60;

/// What is asked for may be refused, by the state that things are in; nothing else may go wrong.
async fn ask(world: &World, args: &[&str]) {
    let finished = world.run(args).await;
    assert!(matches!(finished.code, 0 | 3 | 4 | 5), "{args:?}: {finished:?}");
}

async fn step(world: &World, dice: &mut Dice, replicas: &mut [TestReplica], launch: &Launch) {
    let name = format!("v{}", dice.roll(4));
    let node = format!("n{}", 1 + dice.roll(3));
    match dice.roll(14) {
        0..=3 => {
            let document = shared_volume(&name, "");
            let applied = world.run_with(&["apply", "-f", "-"], &document).await;
            assert_eq!(applied.code, 0, "{applied:?}");
        }
        4..=6 => ask(world, &["publish", &name, &node]).await,
        7 | 8 => ask(world, &["unpublish", &name, &node, "--confirm"]).await,
        9 => ask(world, &["delete", "volume", &name, "--yes"]).await,
        10 => {
            let methods = [
                "CreateVolume",
                "DeleteVolume",
                "ControllerPublishVolume",
                "ControllerUnpublishVolume",
            ];
            let method = methods[usize::try_from(dice.roll(4)).unwrap()];
            let happens = match dice.roll(4) {
                0 => Happening::Fails(answer("Unavailable", "not now")),
                1 => Happening::FailsAfter(answer("DeadlineExceeded", "too late")),
                2 => Happening::LosesReply,
                _ => Happening::DelaysMs(700),
            };
            world.plugin.fault(method, Some(1), happens).await;
        }
        11 => {
            // A node that is created anew is another one: what was published to it is taken from it.
            ask(world, &["delete", "node", &node, "--yes", "--force"]).await;
            world.add_node(&node).await;
        }
        12 => ask(world, &["retry", "volume", &name]).await,
        _ => {
            let victim = usize::try_from(dice.roll(2)).unwrap();
            replicas[victim].kill().await.unwrap();
            replicas[victim] = launch.start(&format!("r{victim}"));
        }
    }
}

/// Waits until everything that was asked for is done.
async fn settled(world: &World, seed: u64) {
    let limit = Duration::from_secs(120);
    eventually(limit, &format!("seed {seed}: all is done"), async || {
        for name in ["v0", "v1", "v2", "v3"] {
            let Some(volume) = world.volume(name).await else {
                continue;
            };
            let status = volume.status.unwrap_or_default();
            if status.volume_id.is_empty() || status.delete_requested.is_some() {
                return Err(format!("{name}: {status:?}"));
            }
            for node in ["n1", "n2", "n3"] {
                let publication = world.publication(name, node).await;
                let state =
                    publication.map(|publication| quorate::store::object::publication::state(&publication));
                let published = quorate::proto::publication_status::State::Published;
                if state.is_some_and(|state| state != published) {
                    return Err(format!("{name} on {node}: {state:?}"));
                }
            }
        }
        Ok(())
    })
    .await;
}

/// INV-6, over the whole log: a volume was deleted only when it was published nowhere.
fn check_deletions(calls: &[Call], seed: u64) {
    let mut attached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for call in calls {
        let (volume, node) = (
            call.begun.volume.as_str(),
            call.begun.node.as_deref().unwrap_or_default(),
        );
        let code = call.code.as_deref();
        match call.begun.method.as_str() {
            // One whose end is not known may have attached it.
            "ControllerPublishVolume" if code != Some("Unavailable") => {
                attached.entry(volume).or_default().insert(node);
            }
            "ControllerUnpublishVolume" if code == Some("OK") => {
                attached.entry(volume).or_default().remove(node);
            }
            "DeleteVolume" => {
                let left = attached.get(volume).cloned().unwrap_or_default();
                assert!(left.is_empty(), "seed {seed}: deleted while on {left:?}");
                assert_ne!(code, Some("FailedPrecondition"), "seed {seed}");
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_random_run_with_crashing_leaders_and_a_failing_plugin_leaves_the_backend_empty() {
    let seed = seed();
    let mut dice = Dice(seed);
    let world = World::start().await;
    world.apply(&world.plugin_document("{\"timeout\": \"2s\"}")).await;
    let launch = Launch::on(&world.etcd).flag("--lease-ttl=2");
    let mut replicas = vec![launch.start("r0"), launch.start("r1")];
    replicas[0].wait_ready().await;
    for number in 1..=STEPS {
        step(&world, &mut dice, &mut replicas, &launch).await;
        // Some leader is to get somewhere, however often they die.
        if number % 10 == 0 {
            settled(&world, seed).await;
        }
    }
    // Everything goes, and nothing fails any more.
    world.plugin.clear_faults().await;
    for name in ["v0", "v1", "v2", "v3"] {
        eventually(
            Duration::from_secs(120),
            &format!("seed {seed}: {name} goes"),
            async || {
                for node in ["n1", "n2", "n3"] {
                    ask(&world, &["unpublish", name, node, "--confirm"]).await;
                }
                ask(&world, &["delete", "volume", name, "--yes"]).await;
                match world.volume(name).await {
                    None => Ok(()),
                    Some(volume) => Err(format!("{volume:?}")),
                }
            },
        )
        .await;
    }
    world.expect_empty_backend().await;
    let calls = world.plugin.calls().unwrap();
    check(&calls, |call| call.code.as_deref() != Some("Canceled"));
    check_deletions(&calls, seed);
    assert!(calls.len() > 20, "seed {seed}: {} calls", calls.len());
    for replica in &mut replicas {
        replica.stop().await.unwrap();
    }
}
