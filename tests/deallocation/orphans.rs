//! Unfinished tasks of nodes that do not exist become orphans, and no others.

use prost::Message;
use quorate::etcd::{KeyRange, LeaseId, Txn};
use quorate::proto::Task;
use quorate::proto::task_status::State;

use super::{Summary, World, attempt, deallocating, decide, document, service, task};
use crate::support::leader::{Leader, store_on};
use crate::support::wait::{SOON, eventually, same};

async fn states(world: &World) -> Vec<(String, State)> {
    let (keys, _) = world
        .store
        .etcd
        .list(&KeyRange::prefix("/quorate/tasks/"))
        .await
        .unwrap();
    keys.iter()
        .map(|kv| {
            let name = String::from_utf8_lossy(&kv.key)["/quorate/tasks/".len()..].to_owned();
            let state =
                Task::decode(&*kv.value).map_or(State::Unspecified, |task| task.status.unwrap().state());
            (name, state)
        })
        .collect()
}

async fn expect_states(world: &World, expected: &[(&str, State)]) {
    eventually(SOON, "the tasks are in their states", async || {
        let expected: Vec<(String, State)> = expected
            .iter()
            .map(|(name, state)| ((*name).to_owned(), *state))
            .collect();
        same(states(world).await, expected)
    })
    .await;
}

#[tokio::test]
async fn unfinished_tasks_of_nodes_that_do_not_exist_are_orphaned_and_no_others() {
    let world = World::start().await;
    let nodes = document("Node", "n1", "{}") + &document("Node", "n2", "{}");
    world.apply(&(nodes + &service("web", "{}"))).await;
    for (id, node, state) in [
        ("web/running", "n1", State::Running),
        ("web/new", "n1", State::New),
        ("web/failed", "n1", State::Failed),
        ("web/other", "n2", State::Running),
        ("web/nowhere", "", State::Pending),
    ] {
        world.task(id, node, state).await;
    }
    // The value of another task under this key: it is left alone, and holds its service.
    world
        .put("/tasks/web/swapped", task("web/x", "n1", State::Running))
        .await;
    // The registration of a replica with the name of a node is not a node.
    world.put("/nodes/n1/release", "x").await;
    let leader = world.leader().await;
    world.settled().await;
    let before = [
        ("web/failed", State::Failed),
        ("web/new", State::New),
        ("web/nowhere", State::Pending),
        ("web/other", State::Running),
        ("web/running", State::Running),
        ("web/swapped", State::Running),
    ];
    expect_states(&world, &before).await;

    world.run(&["delete", "node", "n1", "--yes"]).await.expect_done();
    let mut after = before;
    after[1].1 = State::Orphaned;
    after[4].1 = State::Orphaned;
    expect_states(&world, &after).await;
    // A task that is assigned to the missing node later.
    world.task("web/late", "n1", State::Assigned).await;
    eventually(SOON, "the late one is orphaned", async || {
        let states = states(&world).await;
        same(states[1].clone(), ("web/late".to_owned(), State::Orphaned))
    })
    .await;
    let metrics = leader.metrics();
    assert!(
        metrics.contains("quorate_deallocator_orphaned_tasks_total 3"),
        "{metrics}"
    );
    leader.resign().await;
}

#[tokio::test]
async fn hundreds_of_tasks_are_orphaned_also_when_the_leader_dies_in_between() {
    let world = World::start().await;
    world.apply(&document("Node", "n1", "{}")).await;
    for batch in 0..5 {
        let mut txn = Txn::new();
        for number in 0..100 {
            let id = format!("s{batch}/t{number}");
            let key = format!("/quorate/tasks/{id}");
            txn = txn.put(key.as_bytes(), task(&id, "n1", State::Running));
        }
        world.commit(txn).await;
    }
    let first = deallocating(&store_on(&world.etcd.endpoints()).await, "first").await;
    world.settled().await;
    world.run(&["delete", "node", "n1", "--yes"]).await.expect_done();
    let orphaned = async || {
        let states = states(&world).await;
        states
            .iter()
            .filter(|(_, state)| *state == State::Orphaned)
            .count()
    };
    eventually(SOON, "it has begun", async || match orphaned().await {
        0 => Err("none is orphaned"),
        _ => Ok(()),
    })
    .await;
    first.resign().await;
    let second = world.leader().await;
    eventually(SOON, "all are orphaned", async || same(orphaned().await, 500)).await;
    second.resign().await;
}

#[tokio::test]
async fn a_node_that_is_back_before_the_transaction_keeps_its_tasks() {
    let world = World::start().await;
    world.task("web/1", "n1", State::Running).await;
    let actions = decide(&world.store).await;
    assert_eq!(
        Summary(&actions).to_string(),
        "task web/1 (its node does not exist)"
    );
    world.apply(&document("Node", "n1", "{}")).await;
    let leader = Leader::elect(&world.store, "test").await;
    let outcome = attempt(&world.store, leader.fence(), &actions).await;
    assert_eq!(outcome, ["Refused"]);
    expect_states(&world, &[("web/1", State::Running)]).await;
    leader.resign().await;
}

#[tokio::test]
async fn a_task_that_finished_before_the_transaction_keeps_its_state() {
    let world = World::start().await;
    world.task("web/1", "n1", State::Running).await;
    let actions = decide(&world.store).await;
    world.task("web/1", "n1", State::Complete).await;
    let leader = Leader::elect(&world.store, "test").await;
    let outcome = attempt(&world.store, leader.fence(), &actions).await;
    assert_eq!(
        outcome,
        ["Unneeded"],
        "no transaction is sent that etcd could refuse"
    );
    expect_states(&world, &[("web/1", State::Complete)]).await;
    leader.resign().await;
}

#[tokio::test]
async fn an_orphaned_task_keeps_its_lease() {
    let world = World::start().await;
    let granted = world.etcd.etcdctl(&["lease", "grant", "600"]);
    let lease = granted.split_whitespace().nth(1).unwrap();
    let lease = LeaseId(i64::from_str_radix(lease, 16).unwrap());
    let value = task("web/1", "n1", State::Running);
    world
        .commit(Txn::new().put_leased(b"/quorate/tasks/web/1", value, lease))
        .await;
    let leader = world.leader().await;
    expect_states(&world, &[("web/1", State::Orphaned)]).await;
    let (stored, _) = world.store.etcd.get(b"/quorate/tasks/web/1").await.unwrap();
    assert_eq!(stored.unwrap().lease, Some(lease));
    leader.resign().await;
}
