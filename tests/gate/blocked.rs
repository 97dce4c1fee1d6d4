//! Which nodes keep the status from being restricted, and the proof that none does.

use quorate::etcd::Revision;
use quorate::gate::plan::BundleVersions;
use quorate::gate::releases::Releases;
use quorate::gate::status::State;
use quorate::grpc_code::Code;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::term::{Cluster, TIMES, Term, bundle, only, read_status, registration, release, status};
use crate::support::access::Access;
use crate::support::client::{put, requests_so_far};
use crate::support::etcd::{EtcdVersion, TestEtcd, USER};
use crate::support::wait::{QUIET, SOON, eventually, same};

/// A leader at 0.5.0 that excludes releases below 0.3.0, over a status that admits them from 0.1.0 on.
async fn restricting(cluster: &Cluster) -> (BundleVersions, Term) {
    cluster.put_status(status(State::Done, 4, 1).encode()).await;
    let bundle = bundle(5, 3);
    let term = cluster.term(&bundle).await;
    (bundle, term)
}

/// Waits until the term is blocked by exactly this, and shows so everywhere.
async fn wait_blocked(cluster: &Cluster, term: &Term, message: &str) {
    let message = format!("waiting for {message}");
    let status_json = cluster
        .wait_for_status_json(|json| json["degraded"]["message"] == message.as_str())
        .await;
    assert_eq!(status_json["degraded"]["reason"], "WaitingForNodes");
    assert_eq!(
        (&status_json["state"], &status_json["version"]),
        (&"DONE".into(), &"0.4.0".into())
    );
    eventually(SOON, "an announcement", async || {
        same(term.recorder.announced().last().cloned(), Some(message.clone()))
    })
    .await;
    assert_eq!(cluster.gate_blocked(), 1);
    assert_eq!(
        cluster.status().await.unwrap(),
        status(State::Done, 4, 1),
        "nothing is restricted yet"
    );
    assert_eq!(term.recorder.passes().len(), 0, "and nothing reconciled");
}

async fn wait_done(cluster: &Cluster, term: &Term) {
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
    let during = term.recorder.passes()[0].status.clone().unwrap();
    assert_eq!(during, status(State::Working, 4, 3).encode(), "restricted first");
    cluster
        .wait_for_status_json(|json| json["degraded"].is_null())
        .await;
    assert_eq!(cluster.gate_blocked(), 0);
}

#[tokio::test]
async fn a_replica_of_an_incompatible_release_blocks_until_it_is_gone() {
    let cluster = Cluster::start().await;
    cluster.register("c2", release(2)).await;
    let (_, term) = restricting(&cluster).await;
    wait_blocked(&cluster, &term, "node c2 at 0.2.0, needs 0.3.0").await;
    cluster.unregister("c2").await;
    wait_done(&cluster, &term).await;
}

#[tokio::test]
async fn a_node_that_stays_in_the_way_is_announced_once_when_the_status_is_planned_again() {
    let cluster = Cluster::start().await;
    cluster.register("c2", release(2)).await;
    let (_, term) = restricting(&cluster).await;
    wait_blocked(&cluster, &term, "node c2 at 0.2.0, needs 0.3.0").await;
    let blocked = cluster.wait_for_status_json(|_| true).await;
    let announced = term.recorder.announcing();
    cluster.put_status(status(State::Done, 4, 2).encode()).await;
    let replanned = cluster
        .wait_for_status_json(|json| json["minimumCompatibleRelease"] == "0.2.0")
        .await;
    assert_eq!(replanned["degraded"], blocked["degraded"]);
    assert_eq!(term.recorder.announcing(), announced);
    assert_eq!(cluster.gate_blocked(), 1);
    // The new state needs no more of the nodes than this one.
    cluster.put_status(status(State::Done, 4, 3).encode()).await;
    let admitted = cluster
        .wait_for_status_json(|json| json["minimumCompatibleRelease"] == "0.3.0")
        .await;
    assert!(admitted["degraded"].is_null(), "{admitted}");
    assert_eq!(cluster.gate_blocked(), 0);
}

/// `status.json` shows that there was a status: replicas that it admitted may run.
#[tokio::test]
async fn a_status_that_was_deleted_is_no_way_round_a_replica_that_the_new_state_excludes() {
    let cluster = Cluster::start().await;
    cluster.register("c2", release(2)).await;
    let status_json = cluster.store.keys.status_json();
    put(
        &cluster.store.etcd,
        std::str::from_utf8(&status_json).unwrap(),
        "{}",
    )
    .await;
    let term = cluster.term(&bundle(5, 3)).await;
    let waiting = "waiting for node c2 at 0.2.0, needs 0.3.0";
    cluster
        .wait_for_status_json(|json| json["degraded"]["message"] == waiting)
        .await;
    assert_eq!(term.recorder.passes().len(), 0, "nothing is reconciled");
    cluster.unregister("c2").await;
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
    assert_eq!(
        term.recorder.passes()[0].status,
        None,
        "nothing was admitted meanwhile"
    );
}

#[tokio::test]
async fn at_a_first_start_no_node_is_waited_for() {
    let cluster = Cluster::start().await;
    cluster.register("c2", release(2)).await;
    let _term = cluster.term(&bundle(5, 3)).await;
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
}

#[tokio::test]
async fn a_node_flagged_as_controller_blocks_until_it_is_upgraded() {
    let cluster = Cluster::start().await;
    cluster.put_node("n1", release(2)).await;
    cluster.register("c2", release(1)).await;
    let (_, term) = restricting(&cluster).await;
    wait_blocked(
        &cluster,
        &term,
        "node c2 at 0.1.0, needs 0.3.0; node n1 at 0.2.0, needs 0.3.0",
    )
    .await;
    cluster.register("c2", release(5)).await;
    wait_blocked(&cluster, &term, "node n1 at 0.2.0, needs 0.3.0").await;
    cluster.put_node("n1", release(3)).await;
    wait_done(&cluster, &term).await;
}

#[tokio::test]
async fn a_newer_node_blocks_because_it_should_reconcile_instead() {
    let cluster = Cluster::start().await;
    cluster.register("new", release(6)).await;
    let (_, term) = restricting(&cluster).await;
    wait_blocked(&cluster, &term, "node new at 0.6.0, which is newer").await;
    cluster.unregister("new").await;
    wait_done(&cluster, &term).await;
}

#[tokio::test]
async fn an_older_node_that_the_status_already_excludes_blocks_nothing() {
    let cluster = Cluster::start().await;
    cluster.register("old", release(1)).await;
    cluster.put_status(status(State::Done, 4, 3).encode()).await;
    let term = cluster.term(&bundle(5, 3)).await;
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
    assert!(term.recorder.announced().is_empty());
    assert_eq!(cluster.gate_blocked(), 0);
}

#[tokio::test]
async fn a_record_that_cannot_be_parsed_blocks_by_name_until_it_is_corrected() {
    let cluster = Cluster::start().await;
    put(&cluster.client, "/q/nodes/garbage", [0xff, 0xff]).await;
    put(&cluster.client, &registration("empty"), [0xff, 0xff]).await;
    cluster.put_node_called("one", "another", release(5)).await;
    let (_, term) = restricting(&cluster).await;
    let unreadable = |name: &str| format!("node {name}, whose record cannot be parsed");
    let all = ["empty", "garbage", "one"].map(unreadable).join("; ");
    wait_blocked(&cluster, &term, &all).await;
    cluster.put_node("garbage", release(5)).await;
    cluster.register("empty", release(5)).await;
    wait_blocked(&cluster, &term, &unreadable("one")).await;
    cluster.put_node("one", release(5)).await;
    wait_done(&cluster, &term).await;
}

#[tokio::test]
async fn a_node_that_changes_after_the_releases_were_read_refuses_the_restriction() {
    let cluster = Cluster::start().await;
    cluster.put_status(status(State::Done, 4, 1).encode()).await;
    let bundle = bundle(5, 3);
    let read_at = cluster.register("c2", release(5)).await;
    // An incompatible node comes just after the releases were read.
    cluster.register("old", release(1)).await;
    let (published, releases) = watch::channel(Some(only("c2", read_at)));
    let term = cluster.term_refused_twice(&bundle, releases).await;
    assert_eq!(
        cluster.status().await.unwrap(),
        status(State::Done, 4, 1),
        "refused"
    );
    assert_eq!(term.recorder.passes().len(), 0);
    assert!(
        term.leadership.fence().window().is_open(),
        "a refusal for nodes does not end the term"
    );
    // The node goes. A delete leaves no revision in the range, so the last write is the one before it.
    cluster.unregister("old").await;
    published.send_replace(Some(only("c2", read_at)));
    wait_done(&cluster, &term).await;
}

/// As after a restore: the sum is of a history in which c2 was upgraded, and its revisions are yet to come in this one.
/// Roles go on meanwhile: no write of a node is why it is refused.
#[tokio::test]
async fn nodes_are_written_while_etcd_refuses_the_restricted_status_for_another_reason() {
    let etcd = TestEtcd::that_demands(Access::Password, EtcdVersion::Installed, 1, &[]).await;
    let cluster = Cluster::on(etcd).await;
    cluster.put_status(status(State::Done, 4, 1).encode()).await;
    let read_at = cluster.register("c1", release(5)).await;
    // The user may write everything but the status from now on.
    let grant = |args: &[&str]| {
        cluster
            .etcd
            .etcdctl(&[&["role", "grant-permission"], args].concat())
    };
    grant(&["--prefix=true", USER, "read", "/q/"]);
    grant(&[USER, "readwrite", "/q/", "/q/kubernetes/reconciler/status"]);
    grant(&[USER, "readwrite", "/q/kubernetes/reconciler/status0", "/q0"]);
    cluster.etcd.etcdctl(&["user", "revoke-role", USER, "root"]);
    let (_published, releases) = watch::channel(Some(only("c1", read_at)));
    let term = cluster.term_on(&bundle(5, 3), TIMES, releases).await;
    eventually(SOON, "the restriction is refused twice", async || {
        let refused = requests_so_far(&cluster.client, "txn", Code::PermissionDenied);
        same(refused >= 2.0, true)
    })
    .await;
    let allowed = timeout(SOON, term.node_writes.allowed()).await;
    assert!(allowed.is_ok(), "they are held back");
}

#[tokio::test]
async fn a_sum_of_another_history_of_the_store_restricts_nothing() {
    let cluster = Cluster::start().await;
    cluster.put_status(status(State::Done, 4, 1).encode()).await;
    let bundle = bundle(5, 3);
    let now = cluster.register("c2", release(1)).await;
    let ahead = Revision(now.0 + 1000);
    let (_published, releases) = watch::channel(Some(only("c2", ahead)));
    let term = cluster.term_refused_twice(&bundle, releases).await;
    assert_eq!(cluster.status().await.unwrap(), status(State::Done, 4, 1));
    assert!(term.recorder.passes().is_empty());
}

/// As after a restore that took the deletion of a node back: the last write is the same, and none came since.
#[tokio::test]
async fn a_node_whose_deletion_was_taken_back_refuses_the_restriction() {
    let cluster = Cluster::start().await;
    cluster.put_status(status(State::Done, 4, 1).encode()).await;
    let bundle = bundle(5, 3);
    cluster.register("old", release(1)).await;
    let revision = cluster.register("c2", release(5)).await;
    let mut sum = only("c2", revision);
    sum.last_write.as_mut().unwrap().keys = 1;
    let (_published, releases) = watch::channel(Some(sum));
    let term = cluster.term_on(&bundle, TIMES, releases).await;
    // The time in which the status would be restricted.
    sleep(QUIET).await;
    assert_eq!(cluster.status().await.unwrap(), status(State::Done, 4, 1));
    assert!(term.recorder.passes().is_empty());
    cluster.unregister("old").await;
    wait_done(&cluster, &term).await;
}

/// The releases while these nodes at 0.1.0 are in the way.
fn blocked_by(nodes: &[&str], revision: Revision) -> Option<Releases> {
    let outside: Vec<_> = nodes.iter().map(|node| (release(1), node.to_string())).collect();
    Some(Releases {
        outside: outside.into(),
        ..only("c2", revision)
    })
}

#[tokio::test]
async fn the_same_blocker_that_comes_back_is_shown_again() {
    let cluster = Cluster::start().await;
    cluster.put_status(status(State::Done, 4, 1).encode()).await;
    let bundle = bundle(5, 3);
    let read_at = cluster.register("c2", release(5)).await;
    let came = cluster.register("old", release(1)).await;
    let (published, releases) = watch::channel(blocked_by(&["old"], came));
    let term = cluster.term_on(&bundle, TIMES, releases).await;
    wait_blocked(&cluster, &term, "node old at 0.1.0, needs 0.3.0").await;
    // Releases without the node: the attempt is refused, and then the node is in the way again.
    published.send_replace(Some(only("c2", read_at)));
    eventually(SOON, "the attempt is refused", async || {
        same(cluster.gate_blocked(), 0)
    })
    .await;
    published.send_replace(blocked_by(&["old"], came));
    eventually(SOON, "blocked again", async || same(cluster.gate_blocked(), 1)).await;
    assert_eq!(term.recorder.announced().len(), 2);
}

#[tokio::test]
async fn an_announcement_that_hangs_is_not_cut_short_and_delays_no_restriction() {
    let cluster = Cluster::start().await;
    cluster.put_status(status(State::Done, 4, 1).encode()).await;
    let bundle = bundle(5, 3);
    let revision = cluster.register("leader", release(5)).await;
    let recorder = cluster.recorder();
    recorder.let_announcements_end(false);
    let (published, releases) = watch::channel(blocked_by(&["a"], revision));
    let term = cluster.term_of(&bundle, TIMES, releases, recorder).await;
    let one = "waiting for node a at 0.1.0, needs 0.3.0";
    let two = "waiting for node a at 0.1.0, needs 0.3.0; node b at 0.1.0, needs 0.3.0";
    eventually(SOON, "the first announcement is under way", async || {
        same(term.recorder.announcing(), vec![one.to_owned()])
    })
    .await;
    published.send_replace(blocked_by(&["a", "b"], revision));
    cluster
        .wait_for_status_json(|json| json["degraded"]["message"] == two)
        .await;
    assert_eq!(term.recorder.announcing(), [one], "the next one waits its turn");
    term.recorder.let_announcements_end(true);
    eventually(SOON, "both are announced", async || {
        same(term.recorder.announced(), vec![one.to_owned(), two.to_owned()])
    })
    .await;

    term.recorder.let_announcements_end(false);
    published.send_replace(blocked_by(&["b"], revision));
    eventually(SOON, "another announcement hangs", async || {
        same(term.recorder.announcing().len(), 3)
    })
    .await;
    published.send_replace(Some(only("leader", revision)));
    wait_done(&cluster, &term).await;
    assert_eq!(
        term.recorder.announced().len(),
        2,
        "the restriction did not wait for it"
    );
}

#[tokio::test]
async fn a_term_that_ends_while_it_is_blocked_leaves_no_metric_behind() {
    let cluster = Cluster::start().await;
    cluster.register("old", release(1)).await;
    let (_, term) = restricting(&cluster).await;
    wait_blocked(&cluster, &term, "node old at 0.1.0, needs 0.3.0").await;
    term.die(&cluster.etcd).await;
    assert_eq!(cluster.gate_blocked(), 0);
    assert_eq!(
        read_status(&cluster.store).await.unwrap().value,
        status(State::Done, 4, 1).encode()
    );
}
