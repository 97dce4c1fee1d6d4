//! Every gRPC code of every call, through the controller: which call follows, what the records say meanwhile, and that a
//! change ends the wait.

use std::collections::HashMap;

use futures::future::join_all;
use quorate::csi::class::{classify, effect};
use quorate::csi::{Class, Code, Effect, Method};
use quorate::grpc_code;

use super::world::blocked;
use super::*;

/// The calls about a volume, each with the prefix of its volumes' names.
const MOVING: [(Method, &str); 5] = [
    (Method::CreateVolume, "create"),
    (Method::DeleteVolume, "delete"),
    (Method::ControllerPublishVolume, "publish"),
    (Method::ControllerUnpublishVolume, "unpublish"),
    (Method::ControllerExpandVolume, "expand"),
];

/// The first rest under the quick policy and under the slow one, in milliseconds, without the jitter.
const QUICK: u64 = 200;
const SLOW: u64 = 25_600;

/// Longer than a slow rest.
const LIMIT: Duration = Duration::from_secs(120);

/// One volume. The plugin answers its call of this method with this code.
struct Case {
    method: Method,
    code: Code,
    name: String,
    id: String,
}

/// The records and calls of all volumes at one moment, by their names and ids.
struct Now {
    volumes: HashMap<String, Volume>,
    publications: HashMap<String, Publication>,
    calls: HashMap<(String, String), Vec<Call>>,
}

impl Now {
    async fn of(world: &World) -> Self {
        let keys = &world.store.keys;
        let volumes = world.list(&keys.volumes()).await.into_iter();
        let publications = world.list(&keys.publications()).await.into_iter();
        let mut calls = HashMap::<_, Vec<Call>>::new();
        for call in world.plugin.calls().unwrap() {
            let about = (call.begun.method.clone(), call.begun.volume.clone());
            calls.entry(about).or_default().push(call);
        }
        Self {
            volumes: volumes
                .map(|kv| {
                    let name = keys.parse_volume(&kv.key).unwrap().to_owned();
                    (name, Volume::decode(&*kv.value).unwrap())
                })
                .collect(),
            publications: publications
                .map(|kv| {
                    let name = keys
                        .parse_publication(&kv.key)
                        .unwrap()
                        .split_once('/')
                        .unwrap()
                        .0;
                    (name.to_owned(), Publication::decode(&*kv.value).unwrap())
                })
                .collect(),
            calls,
        }
    }

    fn calls(&self, case: &Case) -> &[Call] {
        let about = (case.method.name().to_owned(), case.id.clone());
        self.calls.get(&about).map_or(&[], Vec::as_slice)
    }

    /// The condition that blocks the volume or the publication that the call is about.
    fn blocked(&self, case: &Case) -> Condition {
        let of_volume = || Some(self.volumes.get(&case.name)?.status.clone()?.conditions);
        let of_node = || Some(self.publications.get(&case.name)?.status.clone()?.conditions);
        let conditions = match case.method {
            Method::ControllerPublishVolume | Method::ControllerUnpublishVolume => of_node(),
            _ => of_volume(),
        };
        blocked(&conditions.unwrap_or_default())
    }

    /// Whether the request is fulfilled, and no condition blocks it.
    fn is_done(&self, case: &Case) -> bool {
        let volume = self
            .volumes
            .get(&case.name)
            .and_then(|volume| volume.status.clone());
        let publication = self.publications.get(&case.name);
        let done = match case.method {
            Method::CreateVolume => volume.is_some_and(|status| !status.volume_id.is_empty()),
            Method::DeleteVolume => volume.is_none(),
            Method::ControllerPublishVolume => publication.is_some_and(|publication| {
                let state = quorate::store::object::publication::state(publication);
                quorate::store::object::publication::state_word(state) == "published"
            }),
            Method::ControllerUnpublishVolume => publication.is_none(),
            _ => volume.is_some_and(|status| status.capacity_bytes == 2 << 20),
        };
        done && self.blocked(case) == Condition::default()
    }
}

impl Case {
    fn class(&self) -> Class {
        classify(self.method, self.code)
    }

    fn what(&self) -> String {
        format!("{} {}", self.method, grpc_code::name(self.code))
    }

    /// Whether everything that follows at once has followed.
    fn has_begun(&self, now: &Now) -> bool {
        let calls = now.calls(self).len();
        let message = format!("{}: {}: for a reason", self.method, grpc_code::name(self.code));
        let blocked = now.blocked(self);
        let is_said = blocked.reason == grpc_code::name(self.code) && blocked.message == message;
        match self.class() {
            Class::Done => now.is_done(self),
            Class::Retry | Class::InProgress => is_said && calls >= 3,
            Class::RetrySlowly | Class::WaitForOther | Class::Final => is_said && calls >= 1,
        }
    }

    /// Whether the call was retried, if it is retried without a change.
    fn has_returned(&self, now: &Now) -> bool {
        !matches!(self.class(), Class::RetrySlowly | Class::WaitForOther) || now.calls(self).len() >= 2
    }

    /// Checks when the calls came, and what the record says of them.
    fn check(&self, now: &Now) {
        let what = self.what();
        let calls = now.calls(self);
        let gaps: Vec<u64> = calls
            .windows(2)
            .map(|pair| (pair[1].start - pair[0].start) / 1000)
            .collect();
        match self.class() {
            Class::Done | Class::Final => assert_eq!(gaps, [0; 0], "{what}: called once"),
            Class::Retry | Class::InProgress => {
                assert!(gaps[0] >= QUICK && gaps[1] >= 2 * QUICK, "{what}: {gaps:?}");
                assert!(gaps[0] < SLOW, "{what}: {gaps:?}");
            }
            Class::RetrySlowly | Class::WaitForOther => {
                // Each volume that is deleted makes room.
                let may_be_woken = matches!(
                    (self.method, self.code),
                    (
                        Method::CreateVolume | Method::ControllerExpandVolume,
                        Code::ResourceExhausted
                    )
                );
                assert!(gaps[0] >= SLOW || may_be_woken, "{what}: {gaps:?}");
            }
        }
        if self.method == Method::CreateVolume {
            let create = now.volumes[&self.name].status.as_ref().unwrap().create.unwrap();
            // Only then may the record go without a call.
            let nothing_there = effect(self.method, self.code) == Effect::None;
            assert_eq!(create.refused, nothing_there, "{what}");
        }
    }
}

/// Waits until this holds for all cases.
async fn wait_for(world: &World, cases: &[Case], what: &str, holds: impl Fn(&Case, &Now) -> bool) -> Now {
    eventually(LIMIT, what, async || {
        // Each look costs time: the volumes are many, and the log is long.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = Now::of(world).await;
        let missing: Vec<_> = cases
            .iter()
            .filter(|case| !holds(case, &now))
            .map(Case::what)
            .collect();
        if missing.is_empty() {
            Ok(now)
        } else {
            Err(missing.join(", "))
        }
    })
    .await
}

/// Runs this command for the volumes of a method, a few at a time.
async fn ask(world: &World, cases: &[Case], method: Method, args: impl Fn(&str) -> Vec<String>) {
    let cases: Vec<_> = cases.iter().filter(|case| case.method == method).collect();
    for some in cases.chunks(4) {
        join_all(some.iter().map(|case| async {
            let args = args(&case.name);
            let args: Vec<_> = args.iter().map(String::as_str).collect();
            world.done(&args).await;
        }))
        .await;
    }
}

#[tokio::test]
async fn every_code_of_every_call_has_the_consequences_that_the_table_gives_it() {
    let world = World::with(TestPlugin::start_with(|options| options.offers.expand = true).await).await;
    let names: Vec<_> = MOVING
        .into_iter()
        .flat_map(|(method, word)| (1..=16).map(move |code| (method, code, format!("{word}-{code}"))))
        .collect();
    let small = "capacity: {required: 1Mi},";
    let documents: String = names.iter().map(|(.., name)| volume(name, small)).collect();
    world.apply(&documents).await;
    let mut cases = Vec::new();
    for (method, code, name) in names {
        let (code, id) = (Code::from_i32(code), world.backend_id(&name).await);
        let fails = Happening::Fails(answer(grpc_code::name(code), "for a reason"));
        world
            .plugin
            .fault_for(method.name(), Some(&id), None, None, fails)
            .await;
        cases.push(Case {
            method,
            code,
            name,
            id,
        });
    }
    let leader = world.leader().await;
    let of = |method: Method| cases.iter().filter(move |case| case.method == method);
    for case in cases.iter().filter(|case| case.method != Method::CreateVolume) {
        world.expect_created(&case.name).await;
    }
    let words = |args: &[&str]| args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>();
    let publish = |name: &str| words(&["publish", name, "n1"]);
    ask(&world, &cases, Method::ControllerUnpublishVolume, publish).await;
    for case in of(Method::ControllerUnpublishVolume) {
        world.expect_state(&case.name, "n1", "published").await;
    }
    ask(&world, &cases, Method::ControllerPublishVolume, publish).await;
    ask(&world, &cases, Method::ControllerUnpublishVolume, |name| {
        words(&["unpublish", name, "n1", "--confirm"])
    })
    .await;
    ask(&world, &cases, Method::DeleteVolume, |name| {
        words(&["delete", "volume", name, "--yes"])
    })
    .await;
    let larger =
        of(Method::ControllerExpandVolume).map(|case| volume(&case.name, "capacity: {required: 2Mi},"));
    world.apply(&larger.collect::<String>()).await;

    wait_for(
        &world,
        &cases,
        "every failure is recorded, and the quick ones are retried",
        Case::has_begun,
    )
    .await;
    let now = wait_for(&world, &cases, "it is tried again slowly", Case::has_returned).await;
    for case in &cases {
        case.check(&now);
    }
    world.plugin.clear_faults().await;
    // A change of the Plugin object concerns all of its volumes, also those with a final answer.
    world
        .apply(&world.plugin_document("{\"timeout\": \"20s\"}"))
        .await;
    let now = wait_for(&world, &cases, "all is done", |case, now| now.is_done(case)).await;
    let deleted = now
        .calls
        .keys()
        .filter(|(method, _)| method == "DeleteVolume")
        .count();
    assert_eq!((cases.len(), deleted), (80, 16));
    leader.resign().await;
}
