//! One chain over every subject, with the real program: a node joins, a volume lives, a service goes, the leader dies, a member
//! comes and goes. And a term of the gate that has to restrict the status.

use std::time::{Duration, Instant};

use quorate::gate::status::State;
use quorate::proto::node_certificate;

use crate::agent::site::Site;
use crate::gate::term::{Cluster, bundle, release, status};
use crate::identity::authorities;
use crate::identity::site::read;
use crate::support::access::Access;
use crate::support::base::{Base, document};
use crate::support::csi::{DRIVER, TestPlugin};
use crate::support::directory::directory;
use crate::support::etcd::{EtcdVersion, TestEtcd};
use crate::support::quorate::Replicas;
use crate::support::wait::{SOON, eventually, same};

/// The leader is killed, and the test waits until its lease has ended.
const TTL: Duration = Duration::from_secs(8);

/// How often a hand-over, a promotion and a demotion are timed.
const ROUNDS: usize = 3;

/// The installed one, without credentials, unless `make matrix` says otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_chain_holds_on_the_etcd_of_this_run() {
    holds(EtcdVersion::Installed, Access::of_this_run()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_chain_holds_on_an_etcd_that_demands_a_password() {
    holds(EtcdVersion::Installed, Access::Password).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_chain_holds_on_an_etcd_that_demands_certificates() {
    holds(EtcdVersion::Installed, Access::Tls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_chain_holds_on_the_next_release_of_etcd() {
    holds(EtcdVersion::Next, Access::Plain).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_chain_holds_on_the_next_release_of_etcd_with_a_password() {
    holds(EtcdVersion::Next, Access::Password).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_chain_holds_on_the_next_release_of_etcd_with_certificates() {
    holds(EtcdVersion::Next, Access::Tls).await;
}

async fn holds(version: EtcdVersion, access: Access) {
    tokio::join!(gate(version, access), subjects(version, access));
}

/// A bundle that excludes a release waits for it, restricts the status before its pass, and is DONE after that.
async fn gate(version: EtcdVersion, access: Access) {
    let cluster = Cluster::on(TestEtcd::that_demands(access, version, 1, &[]).await).await;
    cluster.put_status(status(State::Done, 4, 1).encode()).await;
    cluster.register("old", release(2)).await;
    let term = cluster.term(&bundle(5, 3)).await;
    cluster
        .wait_for_status_json(|json| json["degraded"]["reason"] == "WaitingForNodes")
        .await;
    assert_eq!(cluster.status().await, Some(status(State::Done, 4, 1)));
    assert_eq!(term.recorder.passes().len(), 0, "nothing is reconciled before");
    cluster.unregister("old").await;
    let pass = term.recorder.pass(1).await;
    assert_eq!(pass.status, Some(status(State::Working, 4, 3).encode()));
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
    term.leadership.resign().await;
}

async fn subjects(version: EtcdVersion, access: Access) {
    let etcd = TestEtcd::that_demands(access, version, 1, &[]).await;
    let (base, home) = (Base::on(etcd).await, directory());
    let ca = authorities(&home).await;
    let ttl = format!("--lease-ttl={}", TTL.as_secs());
    let mut site = Site::on(base, home, ca, 2, |launch| launch.flag(&ttl)).await;
    let token = site.token().await;
    let mut agent = site.agent("n1", &token);
    agent.ready().await;
    has_a_certificate(&site).await;
    volume_lives(&site).await;
    service_goes(&site).await;
    let handovers = leader_changes(&mut site).await;
    let [promotions, demotions] = member_comes_and_goes(&mut site).await;
    // With the leader, its agents changed the replica.
    site.shows("n1", "READY", "yes").await;
    let version = site.etcd.etcdctl(&["version"]);
    let version = version
        .lines()
        .next()
        .and_then(|line| line.split(' ').next_back());
    println!(
        "figures: etcd {} {access:?}: hand-over after SIGTERM {handovers}, promotion {promotions}, demotion {demotions}",
        version.unwrap_or_default(),
    );
}

/// INV-13.
async fn has_a_certificate(site: &Site) {
    site.shows("n1", "READY", "yes").await;
    let uid = site.uid("n1").await;
    let record = site.record(&uid).await;
    assert_eq!(record.state(), node_certificate::State::Issued);
    let cluster = site.store.etcd.cluster_id().unwrap();
    assert_eq!(
        read(&record.chain).0,
        format!("CN={uid}, O={cluster}, OU=quorate-worker")
    );
}

async fn volume_lives(site: &Site) {
    let plugin = TestPlugin::start().await;
    let endpoint = format!("{{endpoint: {:?}}}", plugin.endpoint().to_string());
    let spec = format!(
        "{{driver: {{name: {DRIVER}}}, accessMode: {{scope: singleNode, sharing: none, mount: {{}}}}}}"
    );
    let node = document("Node", "v1", "{desiredRole: worker}");
    let documents = document("Plugin", DRIVER, &endpoint) + &node + &document("Volume", "data", &spec);
    site.apply(&documents).await;
    let report = format!(
        "apiVersion: quorate.dev/v1\nkind: Node\nmetadata: {{name: v1}}\nstatus: {{csi: [{{plugin: {DRIVER}, nodeID: csi-v1}}]}}\n"
    );
    site.run_with(&["apply", "--subresource", "status", "-f", "-"], &report)
        .await
        .expect_done();
    site.done_with(&["publish", "data", "v1"]).await;
    site.expect_state("data", "v1", "published").await;
    site.done_with(&["unpublish", "data", "v1", "--confirm"]).await;
    site.expect_state("data", "v1", "").await;
    site.done_with(&["delete", "volume", "data", "--yes"]).await;
    assert!(site.volume("data").await.is_none());
    for method in [
        "CreateVolume",
        "ControllerPublishVolume",
        "ControllerUnpublishVolume",
        "DeleteVolume",
    ] {
        assert_eq!(plugin.calls_of(method).len(), 1, "{method}");
    }
    // Nothing is left that would have the next leader ask a plugin that is gone.
    site.done(&["delete", "plugin", DRIVER, "--yes"]).await;
}

async fn service_goes(site: &Site) {
    let documents = document("Network", "front", "{}") + &document("Service", "web", "{networks: [front]}");
    site.apply(&documents).await;
    site.done(&["delete", "network/front", "--yes"]).await;
    assert_eq!(site.etcd.keys("/quorate/networks/").len(), 1, "a service uses it");
    site.done_with(&["delete", "service/web", "--yes"]).await;
    eventually(SOON, "the network goes", async || {
        same(site.etcd.keys("/quorate/networks/").len(), 0)
    })
    .await;
}

/// How long each took.
struct Times(Vec<Duration>);

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut sorted = self.0.clone();
        sorted.sort();
        let milliseconds = |time: &Duration| format!("{:.0}", time.as_secs_f64() * 1e3);
        let (least, greatest) = (&sorted[0], &sorted[sorted.len() - 1]);
        let median = milliseconds(&sorted[sorted.len() / 2]);
        write!(
            f,
            "{median} ms ({}..{})",
            milliseconds(least),
            milliseconds(greatest)
        )
    }
}

/// The leader dies by SIGKILL, and then the leaders in turn by SIGTERM: how long it took after each of these.
async fn leader_changes(site: &mut Site) -> Times {
    let replicas = Replicas(std::mem::take(&mut site.replicas));
    let (leading, _) = replicas.leader().await;
    let mut replicas = replicas.0;
    let killed = Instant::now();
    replicas[leading].kill().await.unwrap();
    let led = other_leads(&replicas, leading).await;
    let gap = led - killed;
    // Its last renewal was up to a sixth of the TTL earlier.
    assert!(gap > TTL / 2, "{gap:?}: its lease has not ended before");
    assert!(gap < TTL + SOON / 2, "{gap:?}");
    replicas[leading].launch().unwrap();
    let mut times = Vec::new();
    let (mut leading, mut standby) = (1 - leading, leading);
    for _ in 0..ROUNDS {
        replicas[standby].wait_ready().await;
        candidates(site, 2).await;
        let asked = Instant::now();
        replicas[leading].terminate();
        times.push(other_leads(&replicas, leading).await - asked);
        assert!(replicas[leading].ended().await.success());
        replicas[leading].launch().unwrap();
        (leading, standby) = (standby, leading);
    }
    replicas[standby].wait_ready().await;
    site.replicas = replicas;
    Times(times)
}

async fn candidates(site: &Site, count: usize) {
    eventually(SOON, "the replicas stand for election", async || {
        let keys = site.etcd.keys("/quorate/kubernetes/reconciler/leader/");
        same(keys.len(), count)
    })
    .await;
}

async fn other_leads(replicas: &[crate::support::quorate::TestReplica], gone: usize) -> Instant {
    let next = &replicas[1 - gone];
    eventually(SOON, "the other replica leads", async || {
        match next.leads().await {
            true => Ok(Instant::now()),
            false => Err("it does not"),
        }
    })
    .await
}

/// INV-5: a node is promoted, its member joins and votes, is demoted, and its member is removed. How long promotions (from the
/// request to join on) and demotions took.
async fn member_comes_and_goes(site: &mut Site) -> [Times; 2] {
    site.done(&["adopt"]).await;
    let member = site.etcd_mut().add().unwrap();
    let (name, peer_url) = (member.name.clone(), member.peer_url.clone());
    let client_url = member.client_url.clone();
    site.apply(&document("Node", &name, "{desiredRole: worker}"))
        .await;
    let (mut promotions, mut demotions) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        site.done_with(&["promote", &name]).await;
        let begun = Instant::now();
        let join = [
            "join",
            &name,
            "--peer-url",
            &peer_url,
            "--client-url",
            &client_url,
        ];
        let printed = site
            .done(&[&join[..], &["-o", "env", "--timeout=60s"]].concat())
            .await;
        let initial = printed
            .lines()
            .find_map(|line| line.strip_prefix("ETCD_INITIAL_CLUSTER="))
            .expect(&printed);
        let last = site.etcd.members.len() - 1;
        site.etcd_mut().members[last].join(initial).unwrap();
        site.done_with(&join).await;
        promotions.push(begun.elapsed());
        assert_eq!(voters(site).await.len(), 2);
        let begun = Instant::now();
        site.demoted(&name, &["--wait", "--timeout=60s"]).await;
        demotions.push(begun.elapsed());
        assert_eq!(voters(site).await, ["etcd-1"]);
        site.etcd_mut().members[last].kill().await.unwrap();
    }
    let refused = site.run(&["demote", "etcd-1", "--yes"]).await.expect_code(4);
    assert!(refused.contains("LastManager"), "{refused}");
    [Times(promotions), Times(demotions)]
}

async fn voters(site: &Site) -> Vec<String> {
    // While raft elects another leader, etcd refuses the request.
    let list = eventually(SOON, "the member list", async || {
        site.store.etcd.list_members().await
    })
    .await;
    list.voters().map(|member| member.name.clone()).collect()
}
