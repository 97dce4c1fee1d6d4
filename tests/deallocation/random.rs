//! A random run: services, networks and tasks are created, updated, marked and finished, while leaders crash. It ends with
//! exactly the objects that a model says should be there, and its whole history is checked.

use std::collections::{BTreeMap, BTreeSet};

use quorate::proto::task_status::State;

use super::{World, history, network, service};
use crate::support::doomed::{LASTING_LEASES, expire_leases};
use crate::support::quorate::{Launch, TestReplica};
use crate::support::seeded_rng::{SeededRng, seed};

#[derive(Default)]
struct ModelService {
    networks: Vec<String>,
    marked: bool,
    tasks: BTreeSet<String>,
}

/// The objects that should exist.
#[derive(Default)]
struct Model {
    services: BTreeMap<String, ModelService>,
    /// Whether the service is marked.
    networks: BTreeMap<String, bool>,
}

impl Model {
    /// Deletes what is free: services first, then networks.
    fn settle(&mut self) {
        self.services
            .retain(|_, service| !service.marked || !service.tasks.is_empty());
        let used: BTreeSet<&String> = self
            .services
            .values()
            .flat_map(|service| &service.networks)
            .collect();
        self.networks
            .retain(|name, marked| !*marked || used.contains(name));
    }

    fn objects(&self) -> Vec<String> {
        let networks = self.networks.keys().map(|name| format!("/networks/{name}"));
        let services = self.services.keys().map(|name| format!("/services/{name}"));
        let tasks = self.services.iter().flat_map(|(name, service)| {
            service
                .tasks
                .iter()
                .map(move |task| format!("/tasks/{name}/{task}"))
        });
        networks.chain(services).chain(tasks).collect()
    }
}

struct Run {
    world: World,
    model: Model,
    rng: SeededRng,
    seed: u64,
    launch: Launch,
    replicas: Vec<TestReplica>,
}

const STEPS: usize = 150;

impl Run {
    async fn start(seed: u64) -> Self {
        let world = World::start().await;
        let launch = Launch::on(&world.etcd).flag(LASTING_LEASES);
        let replicas = vec![launch.start("r0"), launch.start("r1")];
        Self {
            world,
            model: Model::default(),
            rng: SeededRng(seed),
            seed,
            launch,
            replicas,
        }
    }

    async fn expect_model(&mut self, step: usize) {
        self.model.settle();
        let expected = self.model.objects();
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        eprintln!("seed {} step {step}: {} objects", self.seed, expected.len());
        self.world.expect_objects(&expected).await;
    }

    async fn step(&mut self) {
        let (service_name, network_name) = (
            format!("s{}", self.rng.below(5)),
            format!("n{}", self.rng.below(4)),
        );
        match self.rng.below(12) {
            0 | 1 => self.create_network(&network_name).await,
            2..=4 => self.write_service(&service_name).await,
            5 | 6 => self.start_task(&service_name).await,
            7 | 8 => self.finish_task(&service_name).await,
            9 => self.mark_service(&service_name).await,
            10 => self.mark_network(&network_name).await,
            _ => self.crash().await,
        }
    }

    /// Whether the leader may delete an object at any moment. The run leaves it alone, so that the outcome is certain.
    fn is_going(&mut self, kind: &str, name: &str) -> bool {
        match kind {
            "service" => self
                .model
                .services
                .get(name)
                .is_some_and(|service| service.marked && service.tasks.is_empty()),
            _ => self.model.networks.get(name).is_some_and(|marked| *marked),
        }
    }

    async fn create_network(&mut self, name: &str) {
        if !self.is_going("network", name) {
            self.world.apply(&network(name)).await;
            self.model.networks.entry(name.to_owned()).or_default();
        }
    }

    async fn write_service(&mut self, name: &str) {
        if self.is_going("service", name) {
            return;
        }
        let old = self
            .model
            .services
            .get(name)
            .map(|service| service.networks.clone())
            .unwrap_or_default();
        let mut networks = BTreeSet::new();
        for _ in 0..self.rng.below(3) {
            networks.insert(format!("n{}", self.rng.below(4)));
        }
        let networks: Vec<String> = networks.into_iter().collect();
        let hidden = self.rng.below(3) == 0 && !networks.is_empty();
        let spec = match hidden {
            true => format!("{{networks: [n0], taskNetworks: [{}]}}", networks.join(", ")),
            false => format!("{{networks: [{}], taskNetworks: []}}", networks.join(", ")),
        };
        let usable = |network: &String| self.model.networks.get(network) == Some(&false);
        let allowed = networks
            .iter()
            .all(|network| old.contains(network) || usable(network));
        let applied = self
            .world
            .run_with(&["apply", "-f", "-"], &service(name, &spec))
            .await;
        match allowed {
            true => {
                applied.expect_done();
                self.model.services.entry(name.to_owned()).or_default().networks = networks;
            }
            false => {
                let error = applied.expect_code(4);
                assert!(error.contains("References"), "seed {}: {error}", self.seed);
            }
        }
    }

    async fn start_task(&mut self, service_name: &str) {
        if self.is_going("service", service_name) {
            return;
        }
        if let Some(service) = self.model.services.get_mut(service_name) {
            let name = format!("t{}", self.rng.below(3));
            let id = format!("{service_name}/{name}");
            self.world.task(&id, "", State::Running).await;
            service.tasks.insert(name);
        }
    }

    async fn finish_task(&mut self, service_name: &str) {
        if let Some(service) = self.model.services.get_mut(service_name)
            && let Some(name) = service.tasks.pop_first()
        {
            self.world.remove(&format!("/tasks/{service_name}/{name}")).await;
        }
    }

    async fn mark_service(&mut self, name: &str) {
        if self.is_going("service", name) {
            return;
        }
        if let Some(service) = self.model.services.get_mut(name) {
            self.world.mark(&format!("service/{name}")).await;
            service.marked = true;
        }
    }

    /// Marks a network while a service newly refers to it. One of the two comes first.
    async fn mark_network(&mut self, name: &str) {
        if self.model.networks.get(name) != Some(&false) {
            return;
        }
        let racer = format!("racer-{name}");
        if self.model.services.contains_key(&racer) {
            self.world.mark(&format!("network/{name}")).await;
        } else {
            let document = service(&racer, &format!("{{networks: [{name}]}}"));
            let args = ["apply", "-f", "-"];
            let id = format!("network/{name}");
            let (applied, _) = tokio::join!(self.world.run_with(&args, &document), self.world.mark(&id));
            match applied.code {
                0 => {
                    let racer = self.model.services.entry(racer).or_default();
                    racer.networks = vec![name.to_owned()];
                }
                4 => {}
                _ => panic!("seed {}: {applied:?}", self.seed),
            }
        }
        self.model.networks.insert(name.to_owned(), true);
    }

    async fn crash(&mut self) {
        let victim = usize::try_from(self.rng.below(2)).unwrap();
        self.replicas[victim].kill().await.unwrap();
        expire_leases(&self.world.store, &self.replicas[victim].node_id).await;
        self.replicas[victim] = self.launch.start(&format!("r{victim}"));
    }
}

#[tokio::test]
async fn a_random_run_with_crashing_leaders_ends_with_exactly_what_should_be_there() {
    let seed = seed();
    let mut run = Run::start(seed).await;
    for step in 1..=STEPS {
        run.step().await;
        if step % 30 == 0 {
            run.expect_model(step).await;
        }
    }
    // Everything that is left is deleted, too: no mark is forgotten.
    let services: Vec<String> = run.model.services.keys().cloned().collect();
    for name in services {
        run.mark_service(&name).await;
        while run
            .model
            .services
            .get(&name)
            .is_some_and(|service| !service.tasks.is_empty())
        {
            run.finish_task(&name).await;
        }
    }
    run.expect_model(STEPS).await;
    let (services, networks) = history::check(&run.world).await;
    eprintln!("seed {seed}: {services} services and {networks} networks were deleted");
    assert!(services > 0, "seed {seed}");
    for replica in &mut run.replicas {
        replica.stop().await.unwrap();
    }
}
