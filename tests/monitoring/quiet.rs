//! Ordinary work with failovers and upgrades, under the rules as they are shipped: no alert fires.
//!
//! `make quiet` goes on for an hour, or for `MINUTES` of it. `make test` does each thing once and does not wait between them, so that this
//! proof stays whole; what an alert is pending for is over in the long run alone.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::time::sleep;

use super::prometheus::{Prometheus, Target};
use super::rules::rules;
use crate::support::base::{Base, document};
use crate::support::csi::TestPlugin;
use crate::support::directory::directory;
use crate::support::etcd::TestEtcd;
use crate::support::kubernetes::Kubernetes;
use crate::support::quorate::{Launch, Replicas};
use crate::support::wait::SOON;
use crate::upgrade::bundles::Release;
use crate::volumes::world::{World, volume};

/// For how many minutes it goes on; 0 without it.
const MINUTES: &str = "QUORATE_QUIET_MINUTES";

/// Between two rounds of work in the long run, for the sake of the machine.
const PAUSE: Duration = Duration::from_secs(10);

/// How long a machine that was killed is away, as with a kubelet that starts its pod again.
const AWAY: Duration = Duration::from_secs(20);

/// As by default: twice the TTL of a lease, and a second.
const TRIAL: Duration = Duration::from_secs(21);

/// What happens now and then.
#[derive(Clone, Copy, Debug)]
enum Event {
    LeaderIsKilled,
    Upgrade,
    PluginIsKilled,
    MemberRestarts,
}

/// The minutes of each [`CYCLE`] at which it happens. The failover changes the lead once, and the upgrade three times at most.
const EVENTS: [(u64, Event); 4] = [
    (10, Event::LeaderIsKilled),
    (25, Event::Upgrade),
    (45, Event::PluginIsKilled),
    (50, Event::MemberRestarts),
];

/// How many minutes lie between two events of a kind: more than an hour, over which the changes of the lead are counted.
const CYCLE: u64 = 75;

/// What fires where all that happens within an hour happens within minutes, once Prometheus has extrapolated it.
const OF_THE_SHORT_RUN: &str = "QuorateLeaderChangesOften";

/// An etcd of three members, an API server, a plugin, three replicas, and a Prometheus that watches these.
struct Site {
    prometheus: Prometheus,
    replicas: Replicas,
    /// The link to the bundle that replicas read at their start.
    current: PathBuf,
    /// Every release so far.
    releases: Vec<Release>,
    world: World,
    is_short: bool,
    _kubernetes: Kubernetes,
    _directory: TempDir,
}

fn release(number: usize) -> Release {
    Release::of("shop", &format!("{number}.0.0"), "1.0.0", "1.0.0")
}

/// Leads the link to this directory, in one step.
fn lead_to(link: &Path, directory: &Path) {
    let next = link.with_extension("next");
    symlink(directory, &next).unwrap();
    fs::rename(next, link).unwrap();
}

impl Site {
    async fn start(is_short: bool) -> Self {
        let kubernetes = Kubernetes::start().await;
        let base = Base::on(TestEtcd::with(3, &[]).await).await;
        let world = World::on(base, TestPlugin::start().await).await;
        let directory = directory();
        let current = directory.path().join("current");
        let first = release(1);
        lead_to(&current, first.bundle());
        let launch = Launch::on(&world.etcd)
            .kubeconfig(kubernetes.kubeconfig())
            .bundle(&current)
            .trial(TRIAL);
        let mut replicas = launch.start_all(&["r1", "r2", "r3"]);
        for replica in &mut replicas.0 {
            replica.wait_ready().await;
        }
        let targets: Vec<Target> = replicas.0.iter().map(Target::replica).collect();
        // The long run has that of the pod monitors. In the short one it would leave a handful of evaluations.
        let interval = if is_short { "5s" } else { "30s" };
        Self {
            prometheus: Prometheus::as_shipped(interval, &targets).await,
            replicas,
            current,
            releases: vec![first],
            world,
            is_short,
            _kubernetes: kubernetes,
            _directory: directory,
        }
    }

    /// What people and programs do all day: a volume's whole life, and a service with its network.
    async fn work(&self, round: usize) {
        let world = &self.world;
        let data = format!("data-{round}");
        world.apply(&volume(&data, "")).await;
        world.expect_created_within(3 * SOON, &data).await;
        world.publish(&data, "n1").await;
        world.unpublish(&data, "n1").await;
        world.delete(&data).await;
        let network = document("Network", "front", "{}");
        let service = document("Service", "web", "{networks: [front]}");
        world.apply(&format!("{network}{service}")).await;
        world.done_with(&["delete", "service", "web", "--yes"]).await;
        world.done_with(&["delete", "network", "front", "--yes"]).await;
    }

    async fn happens(&mut self, event: Event) {
        match event {
            Event::LeaderIsKilled => {
                let (leader, _) = self.replicas.leader().await;
                self.replicas.0[leader].kill().await.unwrap();
                self.replicas.leader().await;
                self.wait(AWAY).await;
                self.replicas.0[leader].launch().unwrap();
                self.replicas.0[leader].wait_ready().await;
            }
            Event::Upgrade => self.upgrade().await,
            Event::PluginIsKilled => {
                self.world.plugin.kill().await.unwrap();
                self.wait(AWAY).await;
                self.world.plugin.launch().await.unwrap();
            }
            Event::MemberRestarts => {
                let follower = (self.world.etcd.raft_leader().await + 1) % 3;
                self.world.etcd.members[follower].stop().await.unwrap();
                self.wait(AWAY).await;
                self.world.etcd.members[follower].start().await.unwrap();
            }
        }
    }

    /// One replica after the other gets the next release.
    async fn upgrade(&mut self) {
        let next = release(self.releases.len() + 1);
        lead_to(&self.current, next.bundle());
        for replica in &mut self.replicas.0 {
            replica.stop().await.unwrap();
            replica.launch().unwrap();
            replica.wait_ready().await;
        }
        self.replicas.leader().await;
        self.releases.push(next);
    }

    async fn wait(&self, time: Duration) {
        if !self.is_short {
            sleep(time).await;
        }
    }

    async fn is_quiet(&self) {
        let mut fired = self.prometheus.fired().await;
        if self.is_short {
            fired.remove(OF_THE_SHORT_RUN);
        }
        assert!(fired.is_empty(), "these alerts have fired: {fired:?}");
    }
}

#[tokio::test]
async fn ordinary_work_with_failovers_and_upgrades_raises_no_alert() {
    let minutes = std::env::var(MINUTES).map_or(0, |minutes| minutes.parse::<u64>().expect(MINUTES));
    let is_short = minutes == 0;
    let mut site = Site::start(is_short).await;
    assert_eq!(site.prometheus.rules().await, rules().len());
    let begun = Instant::now();
    let minute = || begun.elapsed().as_secs() / 60;
    let (mut happened, mut round) = (0, 0);
    while minute() < minutes || (is_short && happened < EVENTS.len()) {
        let (cycles, nth) = (happened / EVENTS.len(), happened % EVENTS.len());
        let (at, event) = EVENTS[nth];
        if is_short || minute() >= CYCLE * u64::try_from(cycles).unwrap() + at {
            eprintln!("minute {}, round {round}: {event:?}", minute());
            site.happens(event).await;
            happened += 1;
        }
        site.work(round).await;
        site.is_quiet().await;
        round += 1;
        site.wait(PAUSE).await;
    }
    // Prometheus saw it all: every replica to the end, and who led.
    site.prometheus.scrapes(site.replicas.0.len()).await;
    let led = site
        .prometheus
        .query("max_over_time(quorate_leader[1h]) == 1")
        .await;
    assert!(!led.unwrap().is_empty(), "no replica was seen to lead");
    site.is_quiet().await;
    eprintln!("{minutes} minutes, {round} rounds, {happened} events: no alert has fired");
}
