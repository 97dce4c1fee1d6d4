//! Changes between a decision and its transaction, and an etcd that cannot be reached: neither deletes anything in use.

use std::time::Duration;

use prost::Message;
use quorate::etcd::Txn;
use quorate::grpc_code::Code;
use quorate::proto::task_status::State;
use quorate::store::Store;
use quorate::store::object::mark::Marked;

use super::{
    Summary, World, attempt, attempt_through, deallocate, deallocating, decide, history, network, service,
};
use crate::support::client::{failed_so_far, requests_so_far};
use crate::support::leader::{Leader, store_on};
use crate::support::proxy::{Network, Proxy};
use crate::support::wait::{SOON, eventually, same};

#[tokio::test]
async fn a_task_created_between_the_decision_and_the_transaction_saves_its_service() {
    let world = World::start().await;
    world
        .apply(&(network("front") + &service("web", "{networks: [front]}")))
        .await;
    world.mark("service/web").await;
    world.mark("network/front").await;
    let mut leader = Leader::elect(&world.store, "test").await;
    let fence = leader.fence().clone();
    let actions = decide(&world.store).await;
    assert_eq!(
        Summary(&actions).to_string(),
        "service web (no tasks) and network front (unused)"
    );

    world.task("web/1", "", State::New).await;
    assert_eq!(attempt(&world.store, &fence, &actions).await, ["Refused"]);
    deallocate(&mut leader);
    world.settled().await;
    world
        .expect_objects(&["/networks/front", "/services/web", "/tasks/web/1"])
        .await;
    world.remove("/tasks/web/1").await;
    world.expect_objects(&[]).await;
    history::check(&world).await;
    leader.resign().await;
}

#[tokio::test]
async fn a_task_that_the_leader_has_not_seen_yet_saves_its_service() {
    let world = World::start().await;
    world.apply(&service("web", "{}")).await;
    let proxy = Proxy::in_front_of(&world.etcd.endpoints()[0]);
    let leader = deallocating(&store_on(&[proxy.url()]).await, "test").await;
    world.settled().await;
    let (stored, _) = world.store.etcd.get(b"/quorate/services/web").await.unwrap();
    let mut marked = super::decode_service(&stored.unwrap().value).unwrap();
    *marked.mark_mut() = Some(prost_types::Timestamp::default());

    // The leader sees the mark a second late and its transaction takes another second; the task comes in between.
    proxy.set(Network::Delays(Duration::from_secs(1)));
    world.put("/services/web", marked.encode_to_vec()).await;
    world.task("web/1", "", State::New).await;
    eventually(SOON, "the transaction is refused", async || {
        let refused = leader.metric("quorate_deallocator_refused_transactions_total");
        same(refused, 1.0)
    })
    .await;
    proxy.set(Network::Passes);
    world.expect_objects(&["/services/web", "/tasks/web/1"]).await;
    world.remove("/tasks/web/1").await;
    world.expect_objects(&[]).await;
    history::check(&world).await;
    leader.resign().await;
}

#[tokio::test]
async fn what_was_written_since_the_decision_is_not_deleted_on_it() {
    let world = World::start().await;
    world
        .apply(&(network("front") + &service("web", "{networks: [front]}") + &service("db", "{}")))
        .await;
    world.mark("service/web").await;
    world.mark("network/front").await;
    let leader = Leader::elect(&world.store, "test").await;
    let fence = leader.fence().clone();
    let actions = decide(&world.store).await;
    // A new label changes the mod revision.
    let labelled = network("front").replace("name: front", "name: front, labels: {a: b}");
    world.apply(&labelled).await;
    assert_eq!(attempt(&world.store, &fence, &actions).await, ["Refused"]);
    world
        .expect_objects(&["/networks/front", "/services/db", "/services/web"])
        .await;
    let again = decide(&world.store).await;
    assert_eq!(attempt(&world.store, &fence, &again).await, ["Done"]);
    // The old decision is still refused.
    assert_eq!(attempt(&world.store, &fence, &actions).await, ["Refused"]);
    world.expect_objects(&["/services/db"]).await;
    leader.resign().await;
}

#[tokio::test]
async fn one_service_that_is_in_the_way_does_not_hold_up_those_beside_it() {
    let world = World::start().await;
    let documents: String = (0..40)
        .map(|number| service(&format!("s{number:02}"), "{}"))
        .collect();
    world.apply(&documents).await;
    let mut args = vec!["delete".to_owned(), "service".to_owned(), "--yes".to_owned()];
    args.extend((0..40).map(|number| format!("s{number:02}")));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    world.run(&args).await.expect_done();
    let leader = Leader::elect(&world.store, "test").await;
    let fence = leader.fence().clone();
    let actions = decide(&world.store).await;
    assert_eq!(actions.len(), 40);
    world.task("s20/1", "", State::Running).await;
    let mut expected = vec!["Done"; 20];
    expected[0] = "Refused";
    assert_eq!(attempt(&world.store, &fence, &actions[20..]).await, expected);

    // The deallocator itself, while tasks of one service come and go.
    let mut leader = leader;
    deallocate(&mut leader);
    for round in 0..30 {
        world.remove("/tasks/s20/1").await;
        world.task("s20/1", "", State::Running).await;
        if world.objects().await == ["/services/s20", "/tasks/s20/1"] && round > 5 {
            break;
        }
    }
    eventually(SOON, "the others are gone", async || {
        let left = world.objects().await;
        match left
            .iter()
            .any(|key| key.starts_with("/services/") && key != "/services/s20")
        {
            true => Err(format!("{left:?}")),
            false => Ok(()),
        }
    })
    .await;
    world.remove("/tasks/s20/1").await;
    world.expect_gone("/services/s20").await;
    world.remove("/tasks/s20/1").await;
    history::check(&world).await;
    leader.resign().await;
}

#[tokio::test]
async fn a_list_that_fails_is_not_taken_for_an_empty_one() {
    let world = World::start().await;
    world
        .apply(&(network("front") + &service("web", "{networks: [front]}")))
        .await;
    let proxy = Proxy::in_front_of(&world.etcd.endpoints()[0]);
    let mut leader = Leader::elect(&store_on(&[proxy.url()]).await, "test").await;
    proxy.set(Network::Resets);
    // The proxy may pass on a request that comes at the same moment.
    eventually(SOON, "etcd is out of reach", async || {
        same(leader.store.etcd.get(b"/e").await.is_err(), true)
    })
    .await;
    let failed = |leader: &Leader| failed_so_far(&leader.store.etcd, "range");
    let before = failed(&leader);
    deallocate(&mut leader);
    eventually(SOON, "a list fails", async || {
        same(failed(&leader) > before, true)
    })
    .await;
    proxy.set(Network::Passes);
    world.settled().await;
    world.mark("network/front").await;
    world.settled().await;
    world.expect_objects(&["/networks/front", "/services/web"]).await;
    leader.resign().await;
}

#[tokio::test]
async fn reads_that_fail_delete_nothing_and_the_work_goes_on_after_them() {
    let world = World::start().await;
    world
        .apply(
            &(network("front")
                + &network("idle")
                + &service("web", "{networks: [front]}")
                + &service("db", "{}")),
        )
        .await;
    world.task("web/1", "", State::Running).await;
    for id in ["service/web", "network/front"] {
        world.mark(id).await;
    }
    let proxy = Proxy::in_front_of(&world.etcd.endpoints()[0]);
    let leader = deallocating(&store_on(&[proxy.url()]).await, "test").await;
    world.settled().await;

    // The leader is cut off while things change. No watch brings the new task, as its history is compacted.
    proxy.set(Network::Resets);
    world.mark("service/db").await;
    world.task("db/1", "", State::Running).await;
    world.mark("network/idle").await;
    world.apply(&service("web", "{networks: []}")).await;
    world.etcd.compact();
    let all = [
        "/networks/front",
        "/networks/idle",
        "/services/db",
        "/services/web",
        "/tasks/db/1",
        "/tasks/web/1",
    ];
    // While the leader cannot read, it deletes nothing, though it keeps trying.
    let tried = proxy.accepted_connections();
    eventually(SOON, "the leader tries to reach etcd", async || {
        match proxy.accepted_connections() > tried + 2 {
            true => Ok(()),
            false => Err(proxy.accepted_connections()),
        }
    })
    .await;
    world.expect_objects(&all).await;

    proxy.set(Network::Passes);
    world
        .expect_objects(&["/services/db", "/services/web", "/tasks/db/1", "/tasks/web/1"])
        .await;
    world.remove("/tasks/db/1").await;
    world.expect_objects(&["/services/web", "/tasks/web/1"]).await;
    leader.resign().await;
}

/// A store behind a proxy, which gives up on an answer after this long.
async fn impatient(world: &World, proxy: &Proxy, request_timeout: Duration) -> Store {
    let mut config = quorate::etcd::Config::new(vec![proxy.url()]);
    config.sync_endpoints = false;
    config.request_timeout = request_timeout;
    let etcd = quorate::etcd::Etcd::connect(config, quorate::metrics::Metrics::new("0.0.0"))
        .await
        .unwrap();
    Store {
        etcd,
        keys: world.store.keys.clone(),
    }
}

#[tokio::test]
async fn a_batch_without_an_answer_is_done_only_if_all_of_it_is_gone() {
    let world = World::start().await;
    world.apply(&(service("a", "{}") + &service("b", "{}"))).await;
    world.mark("service/a").await;
    world.mark("service/b").await;
    let proxy = Proxy::in_front_of(&world.etcd.endpoints()[0]);
    let cut_off = impatient(&world, &proxy, Duration::from_secs(2)).await;
    let leader = Leader::elect(&world.store, "test").await;
    let fence = leader.fence().clone();
    let actions = decide(&cut_off).await;
    assert_eq!(actions.len(), 2);

    // An operator writes the first of them while no answer comes.
    proxy.set(Network::BlackHole);
    let labelled = service("a", "{}").replace("name: a", "name: a, labels: {x: y}");
    let answered = async {
        world.apply(&labelled).await;
        eventually(SOON, "the transaction is given up", async || {
            let unanswered = requests_so_far(&cut_off.etcd, "txn", Code::DeadlineExceeded);
            same(unanswered > 0.0, true)
        })
        .await;
        proxy.set(Network::Passes);
    };
    let (outcomes, ()) = tokio::join!(attempt(&cut_off, &fence, &actions), answered);
    assert_eq!(outcomes, ["Failed", "Failed"]);
    world.expect_objects(&["/services/a", "/services/b"]).await;
    leader.resign().await;
}

/// What is done is counted and reported, also where its answer is lost.
#[tokio::test]
async fn tasks_that_were_orphaned_without_an_answer_are_found_done() {
    let world = World::start().await;
    for id in ["web/1", "web/2", "web/3"] {
        world.task(id, "n1", State::Running).await;
    }
    let proxy = Proxy::in_front_of(&world.etcd.endpoints()[0]);
    let cut_off = impatient(&world, &proxy, Duration::from_secs(2)).await;
    let leader = Leader::elect(&world.store, "test").await;
    let actions = decide(&world.store).await;
    proxy.set(Network::LosesReplies);
    let outcomes = attempt_through(&cut_off.etcd, &world.store, leader.fence(), &actions).await;
    assert_eq!(outcomes, ["Done"; 3]);
    assert!(requests_so_far(&cut_off.etcd, "txn", Code::DeadlineExceeded) > 0.0);
    leader.resign().await;
}

#[tokio::test]
async fn an_answer_that_is_lost_is_no_reason_to_do_it_twice() {
    let world = World::start().await;
    world.apply(&(network("front") + &service("web", "{}"))).await;
    let proxy = Proxy::in_front_of(&world.etcd.endpoints()[0]);
    let cut_off = impatient(&world, &proxy, Duration::from_millis(500)).await;
    world.mark("service/web").await;
    let leader = Leader::elect(&cut_off, "test").await;
    let actions = decide(&cut_off).await;
    proxy.set(Network::LosesReplies);
    let fence = leader.fence().clone();
    let outcome = attempt(&cut_off, &fence, &actions).await;
    assert_eq!(outcome, ["Failed"], "the outcome is unknown, and cannot be read");
    proxy.set(Network::Passes);
    world.expect_objects(&["/networks/front"]).await;
    // A new service of the same name, without a mark: the old decision is not about it.
    world.apply(&service("web", "{}")).await;
    eventually(SOON, "the old decision is refused", async || {
        same(attempt(&cut_off, &fence, &actions).await, vec!["Refused"])
    })
    .await;
    world
        .commit(
            Txn::new()
                .when_present(b"/quorate/services/web")
                .put(b"/quorate/checked", "x"),
        )
        .await;
    leader.resign().await;
}
