//! Answers that are lost, and leaders that die while a volume grows: nothing is forgotten (INV-3, INV-6).

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use quorate::dev::csi_plugin::faults::Happening;

use super::history;
use super::world::World;
use crate::support::csi::{LONG, answer};
use crate::support::etcd::TestEtcd;
use crate::support::wait::{SOON, eventually, same};

/// The backend has the volume, though no answer said so; from then on the plugin refuses the request before it looks.
#[tokio::test]
async fn a_volume_that_was_made_unnoticed_is_not_forgotten_because_the_plugin_refuses_to_make_it_again() {
    let etcd = TestEtcd::start().await;
    let world = World::start(&etcd, "/quorate", Duration::from_secs(2), |_| {}).await;
    world.plugin.fault("CreateVolume", 1, Happening::LosesReply).await;
    let refuses = Happening::Fails(answer("InvalidArgument", "no such tier any more"));
    world.plugin.fault("CreateVolume", None, refuses).await;
    let _replica = world.launch().start("r0");
    world.create_volume("one", false, 1).await.expect_done();
    eventually(SOON, "the plugin refuses", async || {
        let calls = world.plugin.calls_of("CreateVolume");
        let refused = calls
            .iter()
            .any(|call| call.code.as_deref() == Some("InvalidArgument"));
        if refused {
            Ok(())
        } else {
            Err(format!("{calls:?}"))
        }
    })
    .await;
    world
        .quorate(&["delete", "volume", "one", "--yes"])
        .await
        .expect_done();
    // Asked again, since that is a change, it refuses again: the record stays, and the volume is not lost.
    eventually(SOON, "it is asked once more", async || {
        let asked = world.plugin.calls_of("CreateVolume").len();
        if asked >= 3 {
            Ok(())
        } else {
            Err(asked.to_string())
        }
    })
    .await;
    assert_eq!(world.list("volumes").await.len(), 1);
    assert_eq!(world.plugin.backend().ids().unwrap().len(), 1);

    world.plugin.clear_faults().await;
    world.quorate(&["retry", "volume", "one"]).await.expect_done();
    eventually(SOON, "nothing is left", async || world.remains().await).await;
    let calls: Vec<_> = world.plugin.calls().unwrap();
    history::check(&calls, "a lost answer");
}

#[tokio::test]
async fn a_leader_that_dies_while_a_volume_grows_leaves_the_growth_to_the_next_one() {
    let etcd = TestEtcd::start().await;
    for point in ["volumes.expanding", "volumes.expanded"] {
        let prefix = format!("/{}", point.replace('.', "-"));
        let world = World::start(&etcd, &prefix, LONG, |options| options.offers.expand = true).await;
        let mut dying = world.launch().flag(format!("--crash-at={point}")).start("dying");
        dying.wait_leading().await;
        let _next = world.launch().start("next");
        world.create_volume("one", false, 1).await.expect_done();
        world
            .quorate(&["publish", "one", "a", "--wait", "--timeout=60s"])
            .await
            .expect_done();
        world.create_volume("one", false, 3).await.expect_done();
        eventually(SOON, &format!("{point}: it has grown"), async || {
            let volumes = world.list("volumes").await;
            same(volumes[0]["status"]["capacityBytes"].as_u64(), Some(3 << 20))
        })
        .await;
        let ended = dying.ended().await;
        assert_eq!(ended.signal(), Some(6), "{point}: {ended}");
        world
            .quorate(&["unpublish", "one", "a", "--confirm", "--wait", "--timeout=60s"])
            .await
            .expect_done();
        world
            .quorate(&["delete", "volume", "one", "--yes"])
            .await
            .expect_done();
        eventually(SOON, &format!("{point}: nothing is left"), async || {
            world.remains().await
        })
        .await;
        history::check(&world.plugin.calls().unwrap(), point);
    }
}
