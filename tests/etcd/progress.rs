//! How far a watch has come whose range does not change.

use quorate::etcd::{KeyRange, Revision};
use quorate::store::Follower;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::client::{connect, connect_to, metric, put};
use crate::support::etcd::{EtcdVersion, TestEtcd};
use crate::support::proxy::{Network, Proxy};
use crate::support::wait::{QUIET, SOON, eventually};

#[tokio::test]
async fn a_quiet_range_comes_to_the_revision_of_other_writes_and_not_beyond() {
    for version in [EtcdVersion::Installed, EtcdVersion::Next] {
        let etcd = TestEtcd::of(version, 1, &[]).await;
        let client = connect(&etcd).await;
        let (mut follower, mut following) = (quiet(&client), JoinSet::new());
        let progress = follower.progress();
        following.spawn(async move {
            loop {
                follower.next().await;
            }
        });
        for _ in 0..3 {
            let other = put(&client, "/q/other", "x").await.revision;
            let come = timeout(SOON, progress.come_to(other)).await;
            come.unwrap_or_else(|_| panic!("{version:?}: it does not come to {other}"));
            let beyond = progress.come_to(Revision(other.0 + 1));
            assert!(timeout(QUIET / 3, beyond).await.is_err(), "{version:?}");
        }
        let own = put(&client, "/q/quiet/key", "x").await.revision;
        timeout(SOON, progress.come_to(own)).await.expect("it changed");
    }
}

#[tokio::test]
async fn a_range_whose_member_is_out_of_reach_comes_no_further_and_its_silence_is_noticed_all_the_same() {
    let etcd = TestEtcd::start().await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let (client, other) = (connect_to(vec![proxy.url()]).await, connect(&etcd).await);
    let (mut follower, mut following) = (quiet(&client), JoinSet::new());
    let progress = follower.progress();
    following.spawn(async move {
        loop {
            follower.next().await;
        }
    });
    // A watch that begins at a revision to come, and has brought no change, is opened again without a word.
    for key in ["/q/other", "/q/quiet/key"] {
        let written = put(&other, key, "x").await.revision;
        let come = timeout(SOON, progress.come_to(written)).await;
        come.expect("it comes there");
    }
    proxy.set(Network::BlackHole);
    let written = put(&other, "/q/other", "y").await.revision;
    assert!(timeout(QUIET, progress.come_to(written)).await.is_err());
    // It is asked all the while.
    let asking = progress.come_to(written);
    let noticed = eventually(SOON, "the stream is opened again", async || {
        let silent = metric(&client, "quorate_watch_restarts_total{reason=\"silent\"}");
        if silent > 0.0 { Ok(()) } else { Err(silent) }
    });
    tokio::select! {
        () = noticed => {}
        () = asking => panic!("no answer came through"),
    }
    proxy.set(Network::Passes);
    timeout(SOON, progress.come_to(written))
        .await
        .expect("it catches up");
}

fn quiet(client: &quorate::etcd::Etcd) -> Follower {
    Follower::new(client, KeyRange::prefix("/q/quiet/"))
}
