//! Random interleavings of promotions, demotions, removals, joins and changes of the leader, from a seed that is
//! printed. Whatever happens in between: in the end the voters are the nodes that are wanted as managers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quorate::proto::Role;
use quorate::proto::join::Progress;
use quorate::store::object::member::is_answered;

use super::crashes::FLAGS;
use super::world::{LONG, World};
use crate::support::seeded_rng::{SeededRng, seed};
use crate::support::wait::{eventually, same};

struct Run {
    world: World,
    machines: Vec<String>,
    /// The request that each machine made last, and whether it was started for it.
    requests: BTreeMap<String, (String, bool)>,
    rng: SeededRng,
}

impl Run {
    fn random(&mut self, below: usize) -> usize {
        let rolled = self.rng.below(u64::try_from(below).unwrap());
        usize::try_from(rolled).unwrap()
    }

    /// What nodes do by themselves: a manager without a member requests to join, and the etcd of an added member is
    /// started.
    async fn live(&mut self) {
        for of in self.machines.clone() {
            let Some((node, _)) = self.world.node(&of).await else {
                continue;
            };
            if node.status.unwrap_or_default().role() != Role::Manager {
                continue;
            }
            let join = self.world.join(&of).await.map(|(join, _)| join);
            let asked = self.requests.get(&of).cloned();
            match (join, asked) {
                (Some(join), Some((request, started))) if join.answers == request && is_answered(&join) => {
                    match join.progress() {
                        // If the list changes while it starts, it may end.
                        Progress::Learner if !started || self.world.machine(&of).has_ended() => {
                            self.world.machine(&of).kill().await.unwrap();
                            self.world.start_added(&of).await;
                            self.requests.insert(of, (request, true));
                        }
                        Progress::Refused | Progress::Removed => self.ask(&of).await,
                        // A demoted voter that is wanted again makes another request.
                        Progress::Voter if !self.is_member(join.member_id).await => self.ask(&of).await,
                        _ => {}
                    }
                }
                (_, None) => self.ask(&of).await,
                _ => {}
            }
        }
    }

    async fn is_member(&self, id: u64) -> bool {
        self.world
            .list()
            .await
            .member(quorate::etcd::MemberId(id))
            .is_some()
    }

    async fn ask(&mut self, of: &str) {
        let request = self.world.ask_to_join(of, &self.world.peer_urls(of)).await;
        self.requests.insert(of.to_owned(), (request, false));
    }

    /// Its etcd is killed and restarted: with two voters there is no quorum meanwhile.
    async fn crash(&mut self, of: &str) {
        let down = Duration::from_millis(u64::try_from(self.random(5) * 100).unwrap());
        let machine = self.world.machine(of);
        if machine.pid().is_some() && !machine.has_ended() {
            machine.kill().await.unwrap();
            tokio::time::sleep(down).await;
            self.world.machine(of).launch().unwrap();
        }
    }
}

/// Begins with this many members; of two, the second belongs to no node.
async fn run(seed: u64, members: usize) {
    let world = World::unmanaged(members, &FLAGS).await;
    world.adopt("etcd-1", world.id_of("etcd-1").await).await;
    let (mut wanted, _) = world.members().await;
    let mut run = Run {
        world,
        machines: Vec::new(),
        requests: BTreeMap::new(),
        rng: SeededRng(seed),
    };
    for _ in 0..3 {
        let of = run.world.add_machine();
        run.machines.push(of);
    }
    let mut leader = run.world.leader().await;
    for _ in 0..30 {
        let which = run.random(3);
        let of = run.machines[which].clone();
        match run.random(10) {
            0..=3 => _ = run.world.promote(&of).await,
            4..=6 if run.world.node(&of).await.is_some() => _ = run.world.demote(&of).await,
            7 => run.world.remove_node(&of).await,
            8 => {
                leader.resign().await;
                leader = run.world.leader().await;
            }
            9 => run.crash(&of).await,
            _ => {}
        }
        // Some steps follow at once, others at one stage or another of the step before.
        let pause = Duration::from_millis(u64::try_from(run.random(8) * 100).unwrap());
        let begun = Instant::now();
        while begun.elapsed() < pause {
            run.live().await;
        }
    }
    for of in run.machines.clone() {
        let role = [Role::Worker, Role::Manager][run.random(2)];
        run.world.desire(&of, role).await;
        if role == Role::Manager {
            wanted.push(of);
        }
    }
    eventually(LONG, &format!("the voters of seed {seed}"), async || {
        run.live().await;
        same(run.world.members().await, (wanted.clone(), Vec::new()))
    })
    .await;
    let managed: Vec<&str> = wanted
        .iter()
        .map(String::as_str)
        .filter(|of| *of == "etcd-1" || run.machines.iter().any(|machine| machine == of))
        .collect();
    run.world.wait_records(&managed).await;
    for of in run.machines.clone() {
        let role = match wanted.contains(&of) {
            true => Role::Manager,
            false => Role::Worker,
        };
        run.world.wait_role(&of, role).await;
    }
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_the_end_the_voters_are_the_wanted_managers_whatever_came_between() {
    run(seed(), 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn and_so_it_is_from_a_seed_that_is_always_the_same() {
    run(20_061_103, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_member_without_a_record_stays_whatever_happens() {
    run(seed(), 2).await;
}
