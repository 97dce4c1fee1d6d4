//! What goes when, with a leader in this process.

use prost::Message;
use quorate::etcd::{Event, KeyRange, Revision, Watched, Watcher};
use quorate::proto::Service;
use quorate::proto::task_status::State;
use quorate::store::object::Object;
use quorate::store::object::mark::Marked;
use tokio::time::timeout;

use super::{World, history, name, network, service};
use crate::support::wait::{SOON, eventually};

/// The keys that were deleted from the revision `from` on, by revision. Waits until there are this many.
async fn deletions(world: &World, from: Revision, count: usize) -> Vec<Vec<String>> {
    let mut watcher = Watcher::new(&world.store.etcd, KeyRange::prefix("/quorate/"), from);
    let mut found: Vec<(Revision, Vec<String>)> = Vec::new();
    while found.iter().map(|(_, keys)| keys.len()).sum::<usize>() < count {
        let Watched::Events(events) = timeout(SOON, watcher.next()).await.expect("the deletions come") else {
            panic!("compacted");
        };
        for event in events {
            let Event::Delete { key, revision } = event else {
                continue;
            };
            let key = String::from_utf8_lossy(&key)["/quorate".len()..].to_owned();
            match found.last_mut() {
                Some((last, keys)) if *last == revision => keys.push(key),
                _ => found.push((revision, vec![key])),
            }
        }
    }
    found
        .into_iter()
        .map(|(_, mut keys)| {
            keys.sort();
            keys
        })
        .collect()
}

#[tokio::test]
async fn a_service_stays_until_its_last_task_is_gone_and_goes_with_its_marked_unused_networks_in_one_revision()
 {
    let world = World::start().await;
    let documents = network("front")
        + &network("back")
        + &network("kept")
        + &service("web", "{networks: [front, back, kept]}")
        + &service("db", "{networks: [back]}");
    world.apply(&documents).await;
    world.task("web/1", "", State::Running).await;
    world.task("web/2", "", State::Complete).await;
    let leader = world.leader().await;
    for id in ["service/web", "network/front", "network/back"] {
        world.mark(id).await;
    }
    world.remove("/tasks/web/1").await;
    world.settled().await;
    let all = [
        "/networks/back",
        "/networks/front",
        "/networks/kept",
        "/services/db",
        "/services/web",
    ];
    let with_task: Vec<&str> = all.into_iter().chain(["/tasks/web/2"]).collect();
    world.expect_objects(&with_task).await;

    let last = world.remove("/tasks/web/2").await;
    assert_eq!(
        deletions(&world, last.next(), 2).await,
        [["/networks/front", "/services/web"]],
        "in one revision"
    );
    world.settled().await;
    world
        .expect_objects(&["/networks/back", "/networks/kept", "/services/db"])
        .await;
    history::check(&world).await;
    leader.resign().await;
}

#[tokio::test]
async fn a_network_goes_as_soon_as_its_last_service_lets_go_of_it_whichever_way_that_happens() {
    let world = World::start().await;
    let leader = world.leader().await;
    // (whether the mark comes first, how the service releases the network)
    let cases = [
        ("u1", true, "update"),
        ("u2", false, "update"),
        ("d1", true, "delete"),
        ("d2", false, "delete"),
        ("h1", true, "hide"),
        ("h2", false, "hide"),
    ];
    world.apply(&network("other")).await;
    for (name, before, how) in cases {
        let own = format!("s-{name}");
        let (network_id, service_id) = (format!("network/{name}"), format!("service/{own}"));
        world
            .apply(&(network(name) + &service(&own, &format!("{{networks: [{name}]}}"))))
            .await;
        if before {
            world.mark(&network_id).await;
            world.settled().await;
            assert!(
                world.objects().await.contains(&format!("/networks/{name}")),
                "{name} is in use"
            );
        }
        match how {
            "update" => {
                world.apply(&service(&own, "{networks: []}")).await;
            }
            "hide" => {
                let spec = format!("{{networks: [{name}], taskNetworks: [other]}}");
                world.apply(&service(&own, &spec)).await;
            }
            _ => {
                world.mark(&service_id).await;
                if !before {
                    world.settled().await;
                }
            }
        }
        if !before {
            world.mark(&network_id).await;
        }
        world.expect_gone(&format!("/networks/{name}")).await;
    }
    let left = [
        "/networks/other",
        "/services/s-h1",
        "/services/s-h2",
        "/services/s-u1",
        "/services/s-u2",
    ];
    world.expect_objects(&left).await;
    history::check(&world).await;
    leader.resign().await;
}

#[tokio::test]
async fn task_networks_hide_the_services_own_until_they_are_emptied() {
    let world = World::start().await;
    let leader = world.leader().await;
    let documents =
        network("own") + &network("task") + &service("web", "{networks: [own], taskNetworks: [task]}");
    world.apply(&documents).await;
    world.mark("network/task").await;
    world.settled().await;
    world
        .expect_objects(&["/networks/own", "/networks/task", "/services/web"])
        .await;
    // The networks of the spec come into force: the hidden one is used again, the other is deleted.
    world
        .apply(&service("web", "{networks: [own], taskNetworks: []}"))
        .await;
    world.expect_objects(&["/networks/own", "/services/web"]).await;
    world.mark("network/own").await;
    world.settled().await;
    world.expect_objects(&["/networks/own", "/services/web"]).await;
    history::check(&world).await;
    leader.resign().await;
}

#[tokio::test]
async fn a_mark_set_twice_is_one_mark_and_one_on_what_is_free_ends_it_at_once() {
    let world = World::start().await;
    world
        .apply(&(network("front") + &service("web", "{networks: [front]}")))
        .await;
    let first = world.mark("network/front").await;
    assert!(
        first.starts_with("network/front marked for deletion\n"),
        "{first}"
    );
    let revision = world.revision_of("/networks/front").await;
    let second = world.mark("network/front").await;
    assert!(
        second.starts_with("network/front is marked for deletion already\n"),
        "{second}"
    );
    assert_eq!(world.revision_of("/networks/front").await, revision);

    let leader = world.leader().await;
    world.apply(&(network("free") + &service("idle", "{}"))).await;
    // A service whose name begins the same has tasks of its own.
    world.task("idle-2/1", "", State::Running).await;
    world.mark("network/free").await;
    world.mark("service/idle").await;
    world
        .expect_objects(&["/networks/front", "/services/web", "/tasks/idle-2/1"])
        .await;
    leader.resign().await;
}

#[tokio::test]
async fn the_age_of_the_oldest_mark_is_a_gauge_and_zero_after_the_term() {
    let world = World::start().await;
    world.apply(&service("web", "{}")).await;
    world.task("web/1", "", State::Running).await;
    let now = jiff::Timestamp::now().as_second();
    for (key, seconds) in [("/services/web", now - 1000), ("/services/young", now)] {
        let mut service = Service::default();
        service.metadata_mut().name = key["/services/".len()..].to_owned();
        *service.mark_mut() = Some(prost_types::Timestamp { seconds, nanos: 0 });
        world.put(key, service.encode_to_vec()).await;
    }
    world.task("young/1", "", State::Running).await;
    let leader = world.leader().await;
    let metrics = world.store.etcd.metrics().clone();
    let gauges = || {
        let text = metrics.encode();
        let of = |sample: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(sample));
            line.and_then(|value| value.trim().parse::<i64>().ok())
        };
        (
            of("quorate_deallocator_pending{kind=\"service\"}"),
            of("quorate_deallocator_oldest_pending_seconds"),
        )
    };
    eventually(
        SOON,
        "both are pending for as long as the older one",
        async || match gauges() {
            (Some(2), Some(1000..1600)) => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await;
    leader.resign().await;
    assert_eq!(gauges(), (Some(0), Some(0)));
}

#[tokio::test]
async fn everything_that_was_pending_when_a_leader_starts_goes() {
    let world = World::start().await;
    let mut documents = String::new();
    for number in 0..150 {
        let network_name = format!("n{}", number % 10);
        if number < 10 {
            documents += &network(&network_name);
        }
        documents += &service(&format!("s{number}"), &format!("{{networks: [{network_name}]}}"));
    }
    world.apply(&(documents + &network("kept"))).await;
    world.task("s7/1", "", State::Running).await;
    let services: Vec<String> = (0..150).map(|number| format!("s{number}")).collect();
    let mut args = vec!["delete", "service", "--yes"];
    args.extend(services.iter().map(String::as_str));
    world.run(&args).await.expect_done();
    world
        .run(&[
            "delete", "network", "--yes", "n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8",
        ])
        .await
        .expect_done();
    let leader = world.leader().await;
    world
        .expect_objects(&[
            "/networks/kept",
            "/networks/n7",
            "/networks/n9",
            "/services/s7",
            "/tasks/s7/1",
        ])
        .await;
    let (services, networks) = history::check(&world).await;
    assert_eq!((services, networks), (149, 8));
    for (series, expected) in [
        ("quorate_deallocator_deletions_total{kind=\"service\"}", 149.0),
        ("quorate_deallocator_deletions_total{kind=\"network\"}", 8.0),
        ("quorate_deallocator_pending{kind=\"service\"}", 1.0),
        ("quorate_deallocator_pending{kind=\"network\"}", 1.0),
        // Nothing that is done is tried again.
        ("quorate_deallocator_refused_transactions_total", 0.0),
    ] {
        assert_eq!(leader.metric(series), expected, "{series}");
    }
    leader.resign().await;
}

#[tokio::test]
async fn the_same_names_come_and_go_again_and_again() {
    let world = World::start().await;
    let leader = world.leader().await;
    let documents = network("front") + &service("web", "{networks: [front]}");
    for round in 0..15 {
        // A round may come while the objects of the last one are deleted: it is refused, or writes to those objects.
        world.apply(&documents).await;
        world.task("web/1", "", State::Running).await;
        world.mark("network/front").await;
        world.mark("service/web").await;
        world.remove("/tasks/web/1").await;
        world.expect_objects(&[]).await;
        assert!(world.objects().await.is_empty(), "round {round}");
    }
    assert_eq!(history::check(&world).await, (15, 15));
    leader.resign().await;
}

#[tokio::test]
async fn a_garbage_mark_is_a_mark() {
    let world = World::start().await;
    world.apply(&network("front")).await;
    let key = world.store.keys.network(&name("front"));
    let (stored, _) = world.store.etcd.get(&key).await.unwrap();
    let mut object = super::decode_network(&stored.unwrap().value).unwrap();
    object.status.get_or_insert_default().delete_requested = Some(prost_types::Timestamp {
        seconds: i64::MAX,
        nanos: -7,
    });
    world.put("/networks/front", object.encode_to_vec()).await;
    let shown = world.run(&["get", "network", "front", "-o", "yaml"]).await;
    assert!(shown.expect_done().contains("deleting: true"));
    let leader = world.leader().await;
    world.expect_objects(&[]).await;
    leader.resign().await;
}
