//! Replicas whose wall clocks differ by more than any limit of time. None of them decides by what another one's clock said.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost::Message;
use quorate::proto::{Member, Role};

use super::tour::{demote, joined, voters, votes};
use super::{Site, free_url, keys};
use crate::support::clock::off_by;
use crate::support::doomed::expire_leases;
use crate::support::quorate::{Launch, TestReplica};

const HOUR: Duration = Duration::from_secs(3600);

/// A leader whose clock is off.
async fn led_at(site: &Site, offset: &str, name: &str) -> TestReplica {
    let mut replica = off_by(offset, Launch::on(&site.etcd)).start(name);
    replica.wait_leading().await;
    replica
}

/// The leader dies, and its leases with it.
async fn ends(site: &Site, mut leader: TestReplica) {
    leader.kill().await.unwrap();
    expire_leases(&site.store, &leader.node_id).await;
}

/// INV-5
#[tokio::test]
async fn leaders_whose_clocks_differ_by_days_neither_hurry_nor_hold_back_what_the_other_began() {
    let site = Site::adopted(1).await;
    let behind = led_at(&site, "-1d", "behind").await;
    let peer_url = free_url();
    let environment = joined(&site, "n2", &peer_url).await;
    let records = site.list(&keys().members()).await;
    let joined_at = records
        .iter()
        .map(|kv| Member::decode(&*kv.value).unwrap())
        .find(|member| member.node == "n2")
        .and_then(|member| member.joined_at)
        .expect("the learner has a record");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let written = Duration::from_secs(joined_at.seconds.try_into().unwrap());
    assert!(
        now - written > 23 * HOUR,
        "the clock of the leader is a day behind"
    );
    ends(&site, behind).await;

    // For the clock of this one, the learner has not started for two days.
    let ahead = led_at(&site, "+1d", "ahead").await;
    let _running = site.start_etcd("n2", &environment);
    votes(&site, "n2", &peer_url).await;
    assert_eq!(voters(&site).await, ["etcd-1", "n2"]);
    assert_eq!(site.observed("n2").await, Role::Manager);
    ends(&site, ahead).await;

    // For the clock of this one, all of that comes in two days.
    let _behind = led_at(&site, "-1d", "behind-again").await;
    demote(&site, "n2").await;
    assert_eq!(voters(&site).await, ["etcd-1"]);
}
