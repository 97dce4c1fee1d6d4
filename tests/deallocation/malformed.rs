//! Values that cannot be read hold everything that they may use.

use prost::Message;
use quorate::proto::Service;
use quorate::proto::task_status::State;
use quorate::store::object::Object;

use super::{World, history, network, service, task};

#[tokio::test]
async fn a_malformed_service_holds_every_marked_network_until_it_is_mended() {
    let world = World::start().await;
    world
        .apply(&(network("a") + &network("b") + &service("web", "{networks: [a]}")))
        .await;
    let mut named = Service::default();
    named.metadata_mut().name = "X".to_owned();
    for (key, value) in [
        ("/services/bad", b"\xff\xff".to_vec()),
        // An invalid name, with a value that is not a service.
        ("/services/x/y", b"".to_vec()),
        // An invalid name, with the value of a service.
        ("/services/X", named.encode_to_vec()),
    ] {
        world.put(key, value).await;
    }
    for id in ["service/web", "network/a", "network/b"] {
        world.mark(id).await;
    }
    let leader = world.leader().await;
    world
        .expect_objects(&[
            "/networks/a",
            "/networks/b",
            "/services/X",
            "/services/bad",
            "/services/x/y",
        ])
        .await;
    let held = world
        .run(&["get", "network", "b", "-o", "yaml"])
        .await
        .expect_done();
    for name in ["X", "bad", "x/y"] {
        let blocker = format!("service {name} (malformed, so it may use any network");
        assert!(held.contains(&blocker), "{held}");
    }
    world.remove("/services/x/y").await;
    world.settled().await;
    world
        .expect_objects(&["/networks/a", "/networks/b", "/services/X", "/services/bad"])
        .await;
    world.remove("/services/X").await;
    world.settled().await;
    world
        .expect_objects(&["/networks/a", "/networks/b", "/services/bad"])
        .await;
    // Forced: a marked service that uses nothing replaces it.
    let refused = world
        .run(&["delete", "service", "bad", "--yes"])
        .await
        .expect_code(4);
    assert!(refused.contains("refused by rule Malformed"), "{refused}");
    world
        .run(&["delete", "service", "bad", "--yes", "--force"])
        .await
        .expect_done();
    world.expect_objects(&[]).await;
    leader.resign().await;
}

#[tokio::test]
async fn a_malformed_task_holds_its_service_and_a_malformed_network_stays() {
    let world = World::start().await;
    world.apply(&(service("web", "{}") + &service("db", "{}"))).await;
    world.put("/tasks/web/1", b"\xff\xff".to_vec()).await;
    // The task of another service, under this one's keys.
    world
        .put("/tasks/db/1", task("other/1", "", State::Complete))
        .await;
    world.put("/networks/bad", b"\xff\xff".to_vec()).await;
    world.mark("service/web").await;
    world.mark("service/db").await;
    let leader = world.leader().await;
    world.settled().await;
    world
        .expect_objects(&[
            "/networks/bad",
            "/services/db",
            "/services/web",
            "/tasks/db/1",
            "/tasks/web/1",
        ])
        .await;
    world
        .run(&["delete", "task", "web/1", "--yes", "--force"])
        .await
        .expect_done();
    world.remove("/tasks/db/1").await;
    world.expect_objects(&["/networks/bad"]).await;
    history::check(&world).await;
    leader.resign().await;
}
