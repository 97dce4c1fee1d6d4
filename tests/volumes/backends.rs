//! The backend of a volume: a Plugin whose endpoint answers for another backend gets no call for the volumes of the first.

use super::deletion::being_created;
use super::world::leader_with;
use super::*;
use quorate::proto::PluginStatus;
use quorate::volumes::controller::Times;

/// The document of the plugin at the endpoint of this one, with `more` in its spec.
fn plugin_at(plugin: &TestPlugin, more: &str) -> String {
    let spec = format!("{{endpoint: \"{}\"{more}}}", plugin.endpoint());
    document("Plugin", DRIVER, &spec)
}

/// The methods of the calls about these backend ids.
fn methods_about(plugin: &TestPlugin, ids: &[&String]) -> Vec<String> {
    let calls = plugin.calls().unwrap().into_iter();
    let about = calls.filter(|call| ids.contains(&&call.begun.volume));
    about.map(|call| call.begun.method).collect()
}

/// INV-6: no backend volume is forgotten.
#[tokio::test]
async fn no_call_for_a_volume_goes_to_another_backend_than_its_own() {
    let world = World::start().await;
    let other = TestPlugin::start().await;
    let leader = leader_with(&world.store, Times::default()).await;
    let names = ["used", "unused"];
    for name in names {
        world.apply(&volume(name, "")).await;
        world.expect_created(name).await;
    }
    world.publish("used", "n1").await;
    let ids = [world.backend_id("used").await, world.backend_id("unused").await];
    let args = ["apply", "-f", "-"];
    let applied = world.run_with(&args, &plugin_at(&other, "")).await;
    let warning = applied.stderr;
    assert!(
        warning.contains("2 volumes") && warning.contains("sameBackendAs"),
        "{warning}"
    );
    world.done(&["delete", "volume", "unused", "--yes"]).await;
    world.done(&["unpublish", "used", "n1", "--confirm"]).await;
    let blocked = world.expect_blocked("unused", None, "OtherBackend").await;
    assert!(blocked.message.contains("sameBackendAs"), "{blocked:?}");
    world.expect_blocked("used", Some("n1"), "OtherBackend").await;
    // New volumes are made at the new backend.
    world.apply(&volume("new", "")).await;
    world.expect_created("new").await;
    assert_eq!(methods_about(&other, &ids.each_ref()), [""; 0]);
    assert_eq!(world.attached(&ids[0]), ["csi-n1"]);
    // Back at its own backend, everything that was asked for is done.
    world.apply(&plugin_at(&world.plugin, "")).await;
    world.expect_gone("unused").await;
    world.expect_state("used", "n1", "").await;
    world.expect_blocked("used", None, "").await;
    world.delete("used").await;
    world.expect_empty_backend().await;
    world.apply(&plugin_at(&other, "")).await;
    world.delete("new").await;
    leader.resign().await;
}

/// The answer to the creation was lost, and so is the way back to it: the same name would be another volume elsewhere.
#[tokio::test]
async fn a_creation_without_an_answer_is_not_repeated_at_another_backend() {
    let world = World::start().await;
    let other = TestPlugin::start().await;
    let fails = Happening::FailsAfter(answer("Unavailable", "lost"));
    world.plugin.fault("CreateVolume", u32::MAX, fails).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_blocked("data", None, "Unavailable").await;
    world.apply(&plugin_at(&other, "")).await;
    world.expect_blocked("data", None, "OtherBackend").await;
    assert_eq!(other.calls_of("CreateVolume"), []);
    world.plugin.clear_faults().await;
    world.apply(&plugin_at(&world.plugin, "")).await;
    world.expect_created("data").await;
    world.delete("data").await;
    world.expect_empty_backend().await;
    leader.resign().await;
}

/// Restarts the plugin, which then tells another identity of its backend.
async fn answer_for(world: &mut World, backend_id: &str) {
    world.plugin.stop().await.unwrap();
    world.plugin.options_mut().backend_id = Some(backend_id.to_owned());
    world.plugin.launch().await.unwrap();
}

/// INV-6: what has no record any more is undone at its own backend, also where no Plugin object changes.
#[tokio::test]
async fn what_is_undone_waits_until_its_own_backend_answers_at_the_endpoint_again() {
    let plugin = TestPlugin::start_with(|options| options.backend_id = Some("pool-1".to_owned())).await;
    let mut world = World::with(plugin).await;
    let leader = world.leader().await;
    being_created(&world).await;
    world
        .done(&["delete", "volume", "data", "--yes", "--force"])
        .await;
    let fails = Happening::Fails(answer("Unavailable", "not now"));
    world.plugin.fault("DeleteVolume", None, fails).await;
    world.plugin.release().await;
    eventually(SOON, "its deletion is tried", async || {
        same(world.plugin.calls_of("DeleteVolume").is_empty(), false)
    })
    .await;
    answer_for(&mut world, "pool-2").await;
    let status = world.store.keys.plugin_status(&parsed(DRIVER));
    eventually(SOON, "the other backend is known", async || {
        let stored = world.read(&status).await.ok_or("there is no status")?;
        let backend = PluginStatus::decode(&*stored.value).unwrap().backend;
        match backend.is_some_and(|backend| backend.id == "pool-2") {
            true => Ok(()),
            false => Err("it is not"),
        }
    })
    .await;
    assert_eq!(world.plugin.backend().ids().unwrap().len(), 1);
    world.plugin.clear_faults().await;
    answer_for(&mut world, "pool-1").await;
    world.expect_empty_backend().await;
    leader.resign().await;
}

#[tokio::test]
async fn a_plugin_that_tells_its_backend_may_move_and_another_one_at_its_endpoint_is_noticed() {
    let tells = |id: &'static str| {
        move |options: &mut quorate_dev::csi_plugin::options::Options| {
            options.backend_id = Some(id.to_owned());
        }
    };
    let mut world = World::with(TestPlugin::start_with(tells("pool-1")).await).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    let created = world.expect_created("data").await.status.unwrap();
    assert_eq!(created.backend.unwrap().id, "pool-1");
    // Another backend at the same endpoint.
    answer_for(&mut world, "pool-2").await;
    world.done(&["delete", "volume", "data", "--yes"]).await;
    let blocked = world.expect_blocked("data", None, "OtherBackend").await;
    assert!(blocked.message.contains("pool-1"), "{blocked:?}");
    assert_eq!(world.plugin.calls_of("DeleteVolume"), []);
    // Its own one at another endpoint.
    world.plugin.stop().await.unwrap();
    let moved = world.plugin.directory().join("moved.sock");
    world.plugin.options_mut().backend_id = Some("pool-1".to_owned());
    world.plugin.options_mut().listen = format!("unix://{}", moved.display()).parse().unwrap();
    world.plugin.launch().await.unwrap();
    world.apply(&world.plugin_document("{}")).await;
    world.expect_gone("data").await;
    world.expect_empty_backend().await;
    leader.resign().await;
}

/// The record of a volume as an earlier release left it.
async fn without_backend(world: &World, name: &str) {
    let mut volume = world.volume(name).await.unwrap();
    volume.status.as_mut().unwrap().backend = None;
    let key = world.store.keys.volume(&parsed(name));
    world.put(&key, volume.encode_to_vec()).await;
}

/// INV-6: the leader would record the endpoint of the moment as the place where they were made.
#[tokio::test]
async fn a_plugin_of_volumes_that_name_no_backend_does_not_move_before_they_do() {
    let world = World::start().await;
    let other = TestPlugin::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    leader.resign().await;
    without_backend(&world, "data").await;
    let args = ["apply", "-f", "-"];
    let refused = world.run_with(&args, &plugin_at(&other, "")).await.expect_code(4);
    assert!(
        refused.contains("BackendUnknown") && refused.contains("sameBackendAs"),
        "{refused}"
    );
    // The operator knows that it is the same one.
    let former = |plugin: &TestPlugin| format!(", sameBackendAs: [\"{}\"]", plugin.endpoint());
    world.apply(&plugin_at(&other, &former(&world.plugin))).await;
    world.apply(&plugin_at(&world.plugin, &former(&other))).await;
    // The leader asks the plugin although nothing else is wanted of it.
    let leader = world.leader().await;
    eventually(SOON, "the record names the backend", async || {
        let status = world.volume("data").await.unwrap().status.unwrap();
        let backend = status.backend.ok_or("it names none")?;
        same(backend.endpoint, world.plugin.endpoint().to_string()).map_err(|_| "it names another")
    })
    .await;
    world.apply(&plugin_at(&other, "")).await;
    leader.resign().await;
}

/// Nothing was made anywhere.
#[tokio::test]
async fn a_volume_whose_creation_was_refused_holds_no_plugin_at_its_endpoint() {
    let world = World::start().await;
    let other = TestPlugin::start().await;
    let leader = world.leader().await;
    let fails = Happening::Fails(answer("NotFound", "no such pool"));
    world.plugin.fault("CreateVolume", None, fails).await;
    world.apply(&volume("data", "")).await;
    world.expect_blocked("data", None, "NotFound").await;
    let applied = world
        .run_with(&["apply", "-f", "-"], &plugin_at(&other, ""))
        .await;
    assert_eq!(applied.stderr, "");
    applied.expect_done();
    world.expect_created("data").await;
    assert_eq!(other.calls_of("CreateVolume").len(), 1);
    leader.resign().await;
}

/// INV-6: that moves it as well. The leader keeps where it was as long as volumes use it.
#[tokio::test]
async fn a_plugin_that_is_deleted_by_force_and_applied_again_elsewhere_has_moved() {
    let world = World::start().await;
    let other = TestPlugin::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    world.expect_plugin("Ready").await;
    let unused = plugin_at(&world.plugin, "").replace(DRIVER, "unused");
    world.apply(&unused).await;
    let status = world.store.keys.plugin_status(&parsed("unused"));
    let has_status = async || world.read(&status).await.is_some();
    let what = "the unused plugin has a status";
    eventually(SOON, what, async || same(has_status().await, true)).await;
    for plugin in [DRIVER, "unused"] {
        world
            .done(&["delete", "plugin", plugin, "--yes", "--force"])
            .await;
    }
    // The statuses of both are looked at together.
    let what = "the unused plugin has none";
    eventually(SOON, what, async || same(has_status().await, false)).await;
    leader.resign().await;
    let apply = async || {
        let args = ["apply", "-f", "-"];
        let applied = world.run_with(&args, &plugin_at(&other, "")).await;
        applied.expect_code(4)
    };
    let unreadable = world.store.keys.volume(&parsed("unreadable"));
    // INV-12: it may be one that names no backend.
    for record in [&[0xff, 0xff][..], &[]] {
        world.put(&unreadable, record).await;
        let refused = apply().await;
        assert!(
            refused.contains("BackendUnknown") && refused.contains("volume unreadable"),
            "{record:?}: {refused}"
        );
    }
    world.commit(Txn::new().delete(&unreadable)).await;
    without_backend(&world, "data").await;
    let refused = apply().await;
    let former = world.plugin.endpoint().to_string();
    assert!(
        refused.contains("BackendUnknown") && refused.contains(&former),
        "{refused}"
    );
    world.apply(&world.plugin_document("{}")).await;
}

/// INV-6: no leader of this release had a session of it, so that nothing but its endpoint says where they were made.
#[tokio::test]
async fn a_plugin_that_never_answered_and_is_applied_again_elsewhere_has_moved() {
    let mut world = World::start().await;
    let other = TestPlugin::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    leader.resign().await;
    without_backend(&world, "data").await;
    let status = world.store.keys.plugin_status(&parsed(DRIVER));
    world.commit(Txn::new().delete(&status)).await;
    world.plugin.stop().await.unwrap();
    let forget = ["delete", "plugin", DRIVER, "--yes", "--force"];
    let args = ["apply", "-f", "-"];
    let refused = async || {
        let applied = world.run_with(&args, &plugin_at(&other, "")).await;
        let refused = applied.expect_code(4);
        assert!(refused.contains("BackendUnknown"), "{refused}");
        refused
    };
    world.done(&forget).await;
    refused().await;
    // The operator knows that it is the one of before.
    let own = world.plugin.endpoint().to_string();
    let known = format!(", sameBackendAs: [\"{own}\"]");
    world.apply(&plugin_at(&world.plugin, &known)).await;
    let leader = world.leader().await;
    eventually(SOON, "the status says where it is", async || {
        let stored = world.read(&status).await.ok_or("there is none")?;
        let status = PluginStatus::decode(&*stored.value).unwrap();
        let backend = status.backend.ok_or("it names none")?;
        same(backend.endpoint, own.clone()).map_err(|_| "it names another")
    })
    .await;
    leader.resign().await;
    world.done(&forget).await;
    let said = refused().await;
    assert!(said.contains(&own), "{said}");
    world.apply(&world.plugin_document("{}")).await;
}

/// The status of a plugin is written after the records of its volumes: a leader that dies in between leaves these alone.
#[tokio::test]
async fn a_plugin_that_has_created_volumes_by_their_records_has_none_take_its_name_as_its_id() {
    let mut world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    leader.resign().await;
    let status = world.store.keys.plugin_status(&parsed(DRIVER));
    world.commit(Txn::new().delete(&status)).await;
    world.plugin.stop().await.unwrap();
    world.plugin.options_mut().offers.controller = false;
    world.plugin.launch().await.unwrap();
    let leader = world.leader().await;
    world.apply(&volume("later", "")).await;
    world.expect_blocked("later", None, "CreateUnsupported").await;
    leader.resign().await;
}
