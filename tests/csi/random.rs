//! A random run: volumes are created, published, unpublished, grown and deleted while leaders, the plugin and nodes come
//! and go and calls fail in every way. It ends with an empty backend, and every call that was made is checked.

use std::time::{Duration, Instant};

use quorate::dev::csi_plugin::control::Order;
use quorate::dev::csi_plugin::faults::{Fault, Happening};

use super::history;
use super::world::{NODES, World};
use crate::support::csi::answer;
use crate::support::dice::{Dice, seed};
use crate::support::etcd::TestEtcd;
use crate::support::quorate::{Finished, TestReplica};
use crate::support::wait::eventually;

const STEPS: usize = 80;

/// A call that hangs costs this.
const LIMIT: Duration = Duration::from_secs(1);

/// For the end, with every delay that has grown until then.
const END: Duration = Duration::from_secs(90);

const METHODS: [&str; 6] = [
    "CreateVolume",
    "DeleteVolume",
    "ControllerPublishVolume",
    "ControllerUnpublishVolume",
    "ControllerExpandVolume",
    "Probe",
];

/// What the history takes for a sign of a fault of the controller is not made up: Aborted and FailedPrecondition.
const CODES: [&str; 12] = [
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
];

struct Run<'e> {
    world: World<'e>,
    dice: Dice,
    replicas: Vec<TestReplica>,
}

impl Run<'_> {
    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        let place = self.dice.roll(from.len() as u64);
        from[usize::try_from(place).unwrap()]
    }

    async fn step(&mut self) -> String {
        let volume = format!("v{}", self.dice.roll(5));
        let node = self.pick(&NODES);
        match self.dice.roll(16) {
            0..=2 => {
                let (many, size) = (self.dice.roll(2) == 0, 1 + self.dice.roll(4));
                let done = self.world.create_volume(&volume, many, size).await;
                format!("create {volume} with {size}Mi, many {many}: {}", told(&done))
            }
            3..=6 => {
                let done = self.world.quorate(&["publish", &volume, node]).await;
                format!("publish {volume} to {node}: {}", told(&done))
            }
            7 | 8 => {
                let done = self
                    .world
                    .quorate(&["unpublish", &volume, node, "--confirm"])
                    .await;
                format!("unpublish {volume} from {node}: {}", told(&done))
            }
            9 => {
                let done = self.world.quorate(&["delete", "volume", &volume, "--yes"]).await;
                format!("delete {volume}: {}", told(&done))
            }
            10..=12 => self.fault().await,
            13 => {
                self.world.plugin.kill().await.unwrap();
                "the plugin is killed".to_owned()
            }
            14 => {
                let which = usize::try_from(self.dice.roll(2)).unwrap();
                self.replicas[which].kill().await.unwrap();
                self.replicas[which].launch().unwrap();
                format!("replica {which} is killed")
            }
            _ => {
                let gone = self.world.quorate(&["delete", "node", node, "--yes"]).await;
                let back = self.world.create_node(node).await;
                format!(
                    "node {node} is replaced by another: {}, {}",
                    told(&gone),
                    told(&back)
                )
            }
        }
    }

    async fn fault(&mut self) -> String {
        let code = self.pick(&CODES);
        let text = "made up, with {secrets} in it";
        let happens = match self.dice.roll(8) {
            0..=2 => Happening::Fails(answer(code, text)),
            3 => Happening::FailsAfter(answer(
                self.pick(&["Unavailable", "Internal", "DeadlineExceeded"]),
                text,
            )),
            4 => Happening::Hangs,
            5 => Happening::LosesReply,
            6 => Happening::DelaysMs(50 + self.dice.roll(500)),
            _ => match self.dice.roll(2) {
                0 => Happening::Crashes,
                _ => Happening::CrashesAfter,
            },
        };
        let method = self.pick(&METHODS);
        let times = 1 + u32::try_from(self.dice.roll(3)).unwrap();
        let fault = Fault {
            method: Some(method.to_owned()),
            volume: None,
            node: None,
            times: Some(times),
            happens,
        };
        // Where it is not there just now, it is not told.
        let outcome = self.world.plugin.tell(&Order::Fault(fault.clone())).await;
        format!("{fault:?}: {outcome:?}")
    }

    /// Whatever it died of.
    async fn revive_plugin(&mut self) {
        self.world
            .plugin
            .launch()
            .await
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Everybody asks for everything to go, until it has.
    async fn wind_up(&mut self, what: &str) {
        self.revive_plugin().await;
        self.world.plugin.clear_faults().await;
        let world = &self.world;
        eventually(END, what, async || {
            for (volume, node, _) in world.publications().await {
                world.quorate(&["unpublish", &volume, &node, "--confirm"]).await;
            }
            for volume in world.list("volumes").await {
                let name = volume["metadata"]["name"].as_str().unwrap();
                world.quorate(&["delete", "volume", name, "--yes"]).await;
                world.quorate(&["retry", "volume", name]).await;
            }
            // Between two rounds, so that the delays that begin anew have their turn.
            tokio::time::sleep(Duration::from_millis(300)).await;
            world.remains().await
        })
        .await;
    }
}

/// How a command ended. Refused, not found and in conflict are answers like any other here.
#[track_caller]
fn told(finished: &Finished) -> String {
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
    let etcd = TestEtcd::start().await;
    let world = World::start(&etcd, "/quorate", LIMIT, |options| options.offers.expand = true).await;
    let launch = world.launch();
    let mut run = Run {
        world,
        dice: Dice(seed),
        replicas: vec![launch.start("r0"), launch.start("r1")],
    };
    let begun = Instant::now();
    for step in 0..STEPS {
        run.revive_plugin().await;
        let told = run.step().await;
        eprintln!("seed {seed} step {step} ({:?}): {told}", begun.elapsed());
    }
    run.wind_up(&format!("seed {seed}: nothing is left")).await;
    let calls = run.world.plugin.calls().unwrap();
    eprintln!("seed {seed}: {} calls", calls.len());
    history::check(&calls, &format!("seed {seed}"));
    // The secret is in no log of a replica, however often the plugin printed it.
    for replica in &mut run.replicas {
        let log = replica.log();
        assert!(!log.contains("s3cr3t"), "seed {seed}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_the_backend_is_empty_in_the_end_and_no_call_was_wrong() {
    // One run that is always the same, and one that seldom is.
    let chance = seed();
    for seed in [1, chance] {
        run(seed).await;
    }
}
