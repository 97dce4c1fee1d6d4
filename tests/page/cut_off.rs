//! A replica that etcd does not answer.

use std::time::Duration;

use super::{content, page, pictures, shown, state};
use crate::support::base::{Base, document};
use crate::support::proxy::{Network, Proxy};
use crate::support::quorate::Launch;
use crate::support::wait::grows;

#[tokio::test]
async fn a_replica_that_is_cut_off_shows_its_last_picture_and_how_old_that_is() {
    let base = Base::start().await;
    base.apply(&document("Node", "n1", "{desiredRole: worker}")).await;
    let proxy = Proxy::in_front_of(&base.etcd.endpoints()[0]);
    let launch = Launch::on(&base.etcd)
        .endpoints(vec![proxy.url()])
        .flag("--etcd-sync-endpoints=false")
        .flag("--etcd-endpoint-interval-ms=300")
        .flag("--etcd-request-timeout-ms=1000")
        .flag("--lease-ttl=2");
    let mut replica = launch.start("r1");
    replica.wait_leading().await;
    let before = shown(&replica, "it shows everything", |state| {
        let parts = ["nodes", "volumes", "deletions", "releases"];
        let has_role = content(state, "nodes")["roles"]["worker"] == 1;
        // A replica registers after it leads, so that `releases` may be known and still be empty.
        let has_replica = content(state, "releases")["replicas"]["total"] == 1;
        has_role && has_replica && parts.iter().all(|part| state[part]["known"] == "now")
    })
    .await;

    proxy.set(Network::BlackHole);
    let cut = shown(&replica, "it is cut off and its term is over", |state| {
        state["picture"]["cutOff"] == true && state["replica"]["leads"] == false
    })
    .await;
    let as_of: jiff::Timestamp = cut["picture"]["asOf"].as_str().unwrap().parse().unwrap();
    let was_as_of: jiff::Timestamp = before["picture"]["asOf"].as_str().unwrap().parse().unwrap();
    assert!(as_of >= was_as_of, "{as_of} {was_as_of}");
    // What it knew is there, with its date, also what the leader alone knows.
    for part in ["nodes", "volumes", "deletions", "releases"] {
        assert_eq!(cut[part]["known"], "past", "{part}");
        let dated: jiff::Timestamp = cut[part]["asOf"].as_str().unwrap().parse().unwrap();
        assert!(
            dated <= as_of,
            "{part} is of {dated}, and etcd answered at {as_of}"
        );
        assert_eq!(content(&cut, part), content(&before, part), "{part}");
    }
    assert_eq!(cut["leader"]["isLastKnown"], true);
    let html = page(&replica).await;
    assert!(
        html.contains("Cut off: etcd does not answer this replica."),
        "{html}"
    );
    assert!(html.contains(" s ago;"), "{html}");
    pictures::take("cut-off", &replica).await;
    let age = async || {
        let state = state(&replica).await;
        assert_eq!(
            state["picture"]["asOf"], cut["picture"]["asOf"],
            "nothing was answered"
        );
        Duration::from_secs(state["picture"]["ageSeconds"].as_u64().unwrap())
    };
    grows("the picture grows older", age).await;

    proxy.set(Network::Passes);
    let again = shown(&replica, "it is up to date again", |state| {
        state["picture"]["cutOff"] == false && state["nodes"]["known"] == "now"
    })
    .await;
    assert_eq!(again["releases"]["known"], "now");
    assert!(page(&replica).await.contains("Up to date"));
}
