//! A random run: volumes are created, published, unpublished, grown and deleted while leaders, the plugin and nodes come
//! and go and calls fail in every way. It ends with an empty backend, and every call that was made is checked.

use std::time::Instant;

use quorate::proto::publication_status::State;
use quorate::store::object::Object;
use quorate::store::object::publication::state;
use quorate::store::object::volume::required_bytes;
use quorate_dev::csi_plugin::faults::Fault;
use quorate_dev::csi_plugin::order::Order;

use super::*;
use crate::support::doomed::{LASTING_LEASES, expire_leases};
use crate::support::quorate::{Finished, TestReplica};
use crate::support::seeded_rng::{SeededRng, seed};

const STEPS: usize = 80;

/// Steps between two waits for everything that was requested. In between, leaders and plugins come and go faster than they
/// complete anything.
const ROUND: usize = 10;

/// For one round, with the delays that grew in it.
const LONG: Duration = Duration::from_secs(120);

const METHODS: [&str; 6] = [
    "CreateVolume",
    "DeleteVolume",
    "ControllerPublishVolume",
    "ControllerUnpublishVolume",
    "ControllerExpandVolume",
    "Probe",
];

/// The codes that are retried soon. Other tests cover the others.
const CODES: [&str; 5] = [
    "Canceled",
    "Unknown",
    "DeadlineExceeded",
    "Internal",
    "Unavailable",
];

struct Run {
    world: World,
    rng: SeededRng,
    replicas: Vec<TestReplica>,
}

impl Run {
    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        let place = self.rng.below(from.len() as u64);
        from[usize::try_from(place).unwrap()]
    }

    async fn step(&mut self) -> String {
        let volume = format!("v{}", self.rng.below(5));
        let node = self.pick(&["n1", "n2", "n3"]);
        match self.rng.below(16) {
            0..=2 => {
                let (many, size) = (self.rng.below(2) == 0, 1 + self.rng.below(4));
                let done = self.create(&volume, many, size).await;
                format!("create {volume} with {size}Mi, many {many}: {}", outcome(&done))
            }
            3..=6 => {
                let done = self.world.run(&["publish", &volume, node]).await;
                format!("publish {volume} to {node}: {}", outcome(&done))
            }
            7 | 8 => {
                let asked = ["unpublish", &volume, node, "--confirm"];
                let done = self.world.run(&asked).await;
                format!("unpublish {volume} from {node}: {}", outcome(&done))
            }
            9 => {
                let done = self.world.run(&["delete", "volume", &volume, "--yes"]).await;
                format!("delete {volume}: {}", outcome(&done))
            }
            10..=12 => self.fault().await,
            13 => {
                self.world.plugin.kill().await.unwrap();
                "the plugin is killed".to_owned()
            }
            14 => {
                let which = usize::try_from(self.rng.below(2)).unwrap();
                self.replicas[which].kill().await.unwrap();
                expire_leases(&self.world.store, &self.replicas[which].node_id).await;
                self.replicas[which].launch().unwrap();
                format!("replica {which} is killed")
            }
            _ => {
                let gone = self.world.run(&["delete", "node", node, "--yes"]).await;
                self.world.add_node(node).await;
                format!("node {node} is replaced by another: {}", outcome(&gone))
            }
        }
    }

    async fn fault(&mut self) -> String {
        let code = self.pick(&CODES);
        let text = "made up, with {secrets} in it";
        let happens = match self.rng.below(8) {
            0..=2 => Happening::Fails(answer(code, text)),
            3 => Happening::FailsAfter(answer(code, text)),
            4 => Happening::Hangs,
            5 => Happening::LosesReply,
            6 => Happening::DelaysMs(50 + self.rng.below(500)),
            _ => match self.rng.below(2) {
                0 => Happening::Crashes,
                _ => Happening::CrashesAfter,
            },
        };
        let method = self.pick(&METHODS);
        let times = 1 + u32::try_from(self.rng.below(3)).unwrap();
        let fault = Fault {
            method: Some(method.to_owned()),
            volume: None,
            node: None,
            times: Some(times),
            happens,
        };
        // A plugin that does not run cannot be reached.
        let outcome = self.world.plugin.send(&Order::Fault(fault.clone())).await;
        format!("{fault:?}: {outcome:?}")
    }

    async fn create(&self, name: &str, many: bool, mebibytes: u64) -> Finished {
        let more =
            format!("capacity: {{required: {mebibytes}Mi}}, secrets: [{{key: token, secret: backend}}],");
        let document = match many {
            true => shared_volume(name, &more),
            false => volume(name, &more),
        };
        self.world.run_with(&["apply", "-f", "-"], &document).await
    }

    /// Starts the plugin again, whatever it died of.
    async fn revive_plugin(&mut self) {
        self.world
            .plugin
            .launch()
            .await
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Waits until everything that was requested is done, despite the faults in force.
    async fn settle(&mut self, what: &str) {
        eventually(LONG, what, async || {
            self.revive_plugin().await;
            let keys = &self.world.store.keys;
            let volumes = self.world.list(&keys.volumes()).await.into_iter();
            let mut volumes: Vec<_> = volumes.map(|kv| Volume::decode(&*kv.value).unwrap()).collect();
            volumes.retain(|volume| !is_settled(volume));
            let published = self.world.list(&keys.publications()).await.into_iter();
            let published = published.map(|kv| Publication::decode(&*kv.value).unwrap());
            let mut publications: Vec<_> = published.collect();
            publications.retain(|publication| state(publication) != State::Published);
            match volumes.is_empty() && publications.is_empty() {
                true => Ok(()),
                false => Err(format!("{volumes:?} {publications:?}")),
            }
        })
        .await;
    }

    /// Requests the end of everything, until nothing is left.
    async fn wind_up(&mut self, what: &str) {
        self.revive_plugin().await;
        self.world.plugin.clear_faults().await;
        let world = &self.world;
        let keys = &world.store.keys;
        eventually(LONG, what, async || {
            for kv in world.list(&keys.publications()).await {
                let id = keys.parse_publication(&kv.key).unwrap();
                let (volume, node) = id.split_once('/').unwrap();
                outcome(&world.run(&["unpublish", volume, node, "--confirm"]).await);
            }
            for kv in world.list(&keys.volumes()).await {
                let name = keys.parse_volume(&kv.key).unwrap();
                outcome(&world.run(&["delete", "volume", name, "--yes"]).await);
            }
            let (records, ids) = (world.records().await, world.plugin.backend().ids().unwrap());
            match records.is_empty() && ids.is_empty() {
                true => Ok(()),
                false => Err(format!("{records:?} and at the backend {ids:?}")),
            }
        })
        .await;
    }
}

/// Whether every request about the volume itself is fulfilled.
fn is_settled(volume: &Volume) -> bool {
    let status = volume.status.clone().unwrap_or_default();
    let has = status.capacity_bytes.max(status.fulfilled_bytes);
    !status.volume_id.is_empty() && !volume.is_marked() && required_bytes(volume) <= has
}

/// How a command ended. Refused, not found and conflict count as answers here.
#[track_caller]
fn outcome(finished: &Finished) -> String {
    assert!([0, 3, 4, 5, 64].contains(&finished.code), "{finished:?}");
    match finished.code {
        0 => "done".to_owned(),
        code => format!(
            "{code}, {}",
            finished.stderr.lines().nth(1).unwrap_or(&finished.stderr).trim()
        ),
    }
}

async fn run(seed: u64) {
    let world = World::with(TestPlugin::start_with(|options| options.offers.expand = true).await).await;
    // A call that hangs costs one second.
    let objects = world.plugin_document("{\"timeout\": \"1s\"}") + &secret("backend", "token", "s3cr3t");
    world.apply(&objects).await;
    let launch = Launch::on(&world.etcd).flag(LASTING_LEASES);
    let mut run = Run {
        world,
        rng: SeededRng(seed),
        replicas: vec![launch.start("r0"), launch.start("r1")],
    };
    // The first steps need volumes.
    for n in 0..5 {
        let name = format!("v{n}");
        run.create(&name, n % 2 == 0, 1).await.expect_done();
        run.world.done(&["publish", &name, "n1"]).await;
    }
    let begun = Instant::now();
    for step in 0..STEPS {
        run.revive_plugin().await;
        let done = run.step().await;
        eprintln!("seed {seed} step {step} ({:?}): {done}", begun.elapsed());
        if step % ROUND == ROUND - 1 {
            run.settle(&format!("seed {seed}: all is done by step {step}"))
                .await;
        }
    }
    run.wind_up(&format!("seed {seed}: nothing is left")).await;
    let calls = run.world.plugin.calls().unwrap();
    eprintln!("seed {seed}: {} calls", calls.len());
    history::check(&calls, &format!("seed {seed}"));
    let about = calls.iter().filter(|call| !call.begun.volume.is_empty());
    assert!(
        about.clone().count() >= 20,
        "seed {seed}: fewer than five whole lives"
    );
    for call in about {
        assert_eq!(call.begun.secrets, ["token"], "seed {seed}: {call:?}");
    }
    // The secret is in no log of a replica, though the plugin printed it often.
    for replica in &mut run.replicas {
        let log = replica.log();
        assert!(!log.contains("s3cr3t"), "seed {seed}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_random_run_the_backend_is_empty_and_no_call_was_wrong() {
    // One run with a fixed seed, and one with a new seed.
    tokio::join!(run(1), run(seed()));
}
