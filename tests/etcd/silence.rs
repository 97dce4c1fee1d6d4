//! The looks at endpoints on behalf of processes that make no requests.

use std::time::Duration;

use quorate::etcd::Config;
use quorate::grpc_code::Code;

use super::following;
use super::hanging::connected_to_all;
use crate::support::client::requests_so_far;
use crate::support::etcd::TestEtcd;
use crate::support::proxy::{Network, Proxy};
use crate::support::wait::SOON;

/// INV-9: all of etcd may be slow, and the checks of many processes would slow it down further.
#[tokio::test]
async fn an_endpoint_that_is_slow_at_every_look_is_checked_ever_more_rarely() {
    let etcd = TestEtcd::with(3, &[]).await;
    let slow = Proxy::in_front_of(&etcd.endpoints()[0]);
    let mut config = Config::new([vec![slow.url()], etcd.endpoints()].concat());
    // Each check lists the members once, and none comes by itself.
    config.endpoint_interval = 10 * SOON;
    let client = connected_to_all(config).await;
    let _following = following(&client);
    let checks = || requests_so_far(&client, "member_list", Code::Ok);
    let before = checks();
    // Too slow for a look, and in time for a check, which leaves it in use.
    slow.set(Network::Delays(Duration::from_millis(350)));
    // The measured time.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let made = checks() - before;
    // After about 2, 4, 8 and 14 s. Without the growing pause there would be one every two seconds.
    assert!((1.0..=4.0).contains(&made), "{made} checks");
}
