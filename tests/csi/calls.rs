//! The calls about volumes: what their requests carry, and what follows when the plugin fails, hangs or dies.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::future::join_all;
use quorate::csi::wire::volume_capability::access_mode::Mode;
use quorate::csi::wire::volume_capability::{AccessType, BlockVolume};
use quorate::csi::wire::{Topology, TopologyRequirement};
use quorate::csi::{Class, Code, CsiNodeId, Effect, ExpandVolume, Secrets, Segments, VolumeId};
use quorate_dev::csi_plugin::backend::Published;
use quorate_dev::csi_plugin::faults::Happening;
use tokio::time::timeout;

use crate::support::csi::{LONG, TestPlugin, bytes, capability, create, mount, publish, until_ready};
use crate::support::wait::{SOON, eventually, same};

#[tokio::test]
async fn a_mount_volume_is_created_published_expanded_unpublished_and_deleted() {
    let plugin = TestPlugin::start_with(|options| options.offers.expand = true).await;
    let session = plugin.client(LONG).session().await.unwrap();
    let none = Secrets::none();
    let created = session.create_volume(&create("a"), &none).await.unwrap();
    assert_eq!(created.capacity, 1 << 20);
    let stored = plugin.backend().volume(created.id.as_str()).unwrap().unwrap();
    assert_eq!((stored.name.as_str(), stored.block, stored.mode), ("a", false, 1));
    assert_eq!(stored.parameters, create("a").parameters);
    // A repeated call finds the same volume.
    assert_eq!(session.create_volume(&create("a"), &none).await.unwrap(), created);

    let mut request = publish(&created.id, "csi-n1");
    request.context = created.context.clone();
    request.read_only = true;
    let context = session.publish_volume(&request, &none).await.unwrap();
    assert!(context["devicePath"].ends_with("/data"), "{context:?}");
    assert_eq!(session.publish_volume(&request, &none).await.unwrap(), context);
    let nodes = plugin.backend().nodes(created.id.as_str()).unwrap();
    let read_only = Published { read_only: true };
    assert_eq!(nodes, BTreeMap::from([("csi-n1".to_owned(), read_only)]));

    let elsewhere = session
        .publish_volume(&publish(&created.id, "csi-n2"), &none)
        .await
        .unwrap_err();
    assert_eq!(elsewhere.class(), Class::WaitForOther, "{elsewhere}");
    let in_use = session.delete_volume(&created.id, &none).await.unwrap_err();
    assert_eq!(
        (in_use.class(), in_use.effect()),
        (Class::WaitForOther, Effect::None),
        "{in_use}"
    );

    let expand = ExpandVolume {
        volume: created.id.clone(),
        capacity: bytes(2 << 30, 0),
        capability: mount(),
    };
    let expanded = session.expand_volume(&expand, &none).await.unwrap();
    assert_eq!((expanded.capacity, expanded.node_must_expand), (2 << 30, true));

    let node = CsiNodeId::new("csi-n1").unwrap();
    session.unpublish_volume(&created.id, &node, &none).await.unwrap();
    session.unpublish_volume(&created.id, &node, &none).await.unwrap();
    session.delete_volume(&created.id, &none).await.unwrap();
    session.delete_volume(&created.id, &none).await.unwrap();
    assert!(plugin.backend().ids().unwrap().is_empty());
}

#[tokio::test]
async fn a_block_volume_of_many_nodes_is_published_to_many() {
    let plugin = TestPlugin::start().await;
    let session = plugin.client(LONG).session().await.unwrap();
    let none = Secrets::none();
    let capability = capability(Mode::MultiNodeMultiWriter, AccessType::Block(BlockVolume {}));
    let mut request = create("b");
    request.capability = capability.clone();
    request.capacity = bytes(4 << 20, 8 << 20);
    let created = session.create_volume(&request, &none).await.unwrap();
    assert_eq!(created.capacity, 4 << 20, "within the range");
    for node in ["n1", "n2", "n3"] {
        let mut publish = publish(&created.id, node);
        publish.capability = capability.clone();
        session.publish_volume(&publish, &none).await.unwrap();
    }
    let node = CsiNodeId::new("n2").unwrap();
    session.unpublish_volume(&created.id, &node, &none).await.unwrap();
    let left = plugin.backend().nodes(created.id.as_str()).unwrap();
    assert_eq!(
        left.into_keys().collect::<Vec<_>>(),
        ["n1", "n3"],
        "from that node alone"
    );
}

#[tokio::test]
async fn a_topology_is_sent_to_a_plugin_that_offers_topologies_and_refused_for_others() {
    let place = |zone: &str| Segments::from([("zone".to_owned(), zone.to_owned())]);
    let sent = |zone: &str| Topology {
        segments: place(zone),
    };
    let mut request = create("a");
    request.topology = Some(TopologyRequirement {
        requisite: vec![sent("a"), sent("b")],
        preferred: vec![sent("b")],
    });
    let plugin = TestPlugin::start_with(|options| options.places = vec![place("a"), place("b")]).await;
    let session = plugin.client(LONG).session().await.unwrap();
    let created = session.create_volume(&request, &Secrets::none()).await.unwrap();
    assert_eq!(created.accessible_from, [place("b")]);

    let plugin = TestPlugin::start().await;
    let session = plugin.client(LONG).session().await.unwrap();
    let error = session
        .create_volume(&request, &Secrets::none())
        .await
        .unwrap_err();
    assert_eq!(error.class(), Class::Final, "{error}");
    assert!(
        error.message.contains("VOLUME_ACCESSIBILITY_CONSTRAINTS"),
        "{error}"
    );
    assert_eq!(plugin.calls_of("CreateVolume"), [], "no call is made");
}

/// The plugin has published the volume, whatever becomes of its answer.
#[tokio::test]
async fn an_answer_longer_than_is_taken_leaves_unknown_what_the_call_has_done() {
    let plugin = TestPlugin::start_with(|options| options.large_context = 17 << 20).await;
    let session = plugin.client(LONG).session().await.unwrap();
    let none = Secrets::none();
    let created = session.create_volume(&create("a"), &none).await.unwrap();
    let error = session
        .publish_volume(&publish(&created.id, "csi-n1"), &none)
        .await
        .unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    assert!(error.message.contains("too large"), "{error}");
    let nodes = plugin.backend().nodes(created.id.as_str()).unwrap();
    assert!(nodes.contains_key("csi-n1"));
}

/// They have one permit: other volumes wait for it (INV-8).
#[tokio::test]
async fn a_plugin_is_asked_for_the_capacity_of_many_places_within_one_limit() {
    let plugin = TestPlugin::start_with(|options| options.room = Some(1)).await;
    let slow = Happening::DelaysMs(600);
    plugin.fault("GetCapacity", None, slow).await;
    let session = plugin.client(Duration::from_secs(3)).session().await.unwrap();
    let mut request = create("a");
    let place = |number: usize| Topology {
        segments: [("zone".to_owned(), number.to_string())].into(),
    };
    request.topology = Some(TopologyRequirement {
        requisite: (0..20).map(place).collect(),
        preferred: Vec::new(),
    });
    let error = session.capacity_for(&request).await.unwrap_err();
    assert_eq!(error.code, Code::DeadlineExceeded, "{error}");
    assert!(plugin.calls_of("GetCapacity").len() < 20);
}

#[tokio::test]
async fn all_pages_of_a_list_are_read() {
    let plugin = TestPlugin::start_with(|options| options.offers.list_nodes = true).await;
    let session = plugin.client(LONG).session().await.unwrap();
    let none = Secrets::none();
    // One more than two pages of 500.
    let requests: Vec<_> = (0..1_001).map(|number| create(&format!("{number:04}"))).collect();
    for some in requests.chunks(50) {
        for created in join_all(some.iter().map(|request| session.create_volume(request, &none))).await {
            created.unwrap();
        }
    }
    let volume = VolumeId::new("vol-0777").unwrap();
    session
        .publish_volume(&publish(&volume, "csi-n1"), &none)
        .await
        .unwrap();
    let listed = session.list_volumes().await.unwrap();
    assert_eq!(listed.len(), 1_001);
    assert_eq!(plugin.calls_of("ListVolumes").len(), 3);
    let published: Vec<_> = listed
        .iter()
        .filter(|volume| !volume.published_to.is_empty())
        .collect();
    assert_eq!(published.len(), 1);
    assert_eq!(
        (published[0].id.clone(), published[0].published_to[0].as_str()),
        (volume, "csi-n1")
    );
}

#[tokio::test]
async fn a_call_that_hangs_ends_at_its_limit_and_delays_no_other() {
    let plugin = TestPlugin::start().await;
    let limit = Duration::from_secs(5);
    let session = plugin.client(limit).session().await.unwrap();
    plugin
        .fault_for("CreateVolume", Some("vol-stuck"), None, None, Happening::Hangs)
        .await;
    let (stuck, none) = (create("stuck"), Secrets::none());
    let hanging = async {
        let begun = Instant::now();
        let error = session.create_volume(&stuck, &none).await.unwrap_err();
        (error, begun.elapsed())
    };
    let others = async {
        for number in 0..10 {
            session
                .create_volume(&create(&format!("free-{number}")), &none)
                .await
                .unwrap();
        }
        Instant::now()
    };
    let begun = Instant::now();
    let ((error, waited), others_done) = futures::future::join(hanging, others).await;
    assert_eq!(
        (error.code, error.class()),
        (Code::DeadlineExceeded, Class::Retry)
    );
    assert_eq!(
        (error.message.as_str(), error.effect()),
        ("no answer within 5s", Effect::Unknown)
    );
    assert!(waited >= limit && waited < limit + SOON, "{waited:?}");
    assert!(
        others_done - begun < waited,
        "the others waited for the call that hangs"
    );
    // The end of the call is sent to the plugin.
    eventually(SOON, "the plugin sees the call end", async || {
        let calls = plugin.calls_of("CreateVolume");
        let stuck = calls.iter().find(|call| call.begun.volume == "vol-stuck");
        same(
            stuck.and_then(|call| call.code.clone()),
            Some("Canceled".to_owned()),
        )
    })
    .await;
}

/// As the end of a term drops the calls in flight (INV-3).
#[tokio::test]
async fn a_call_that_is_dropped_is_cancelled_at_the_plugin() {
    let plugin = TestPlugin::start().await;
    let session = plugin.client(LONG).session().await.unwrap();
    plugin.fault("CreateVolume", None, Happening::Hangs).await;
    let in_flight = async {
        eventually(SOON, "the call is in flight", async || {
            same(plugin.calls_of("CreateVolume").len(), 1)
        })
        .await;
    };
    let (request, none) = (create("a"), Secrets::none());
    tokio::select! {
        created = session.create_volume(&request, &none) => panic!("{created:?}"),
        () = in_flight => {}
    }
    eventually(SOON, "the plugin sees the call end", async || {
        let calls = plugin.calls_of("CreateVolume");
        same(calls[0].code.clone(), Some("Canceled".to_owned()))
    })
    .await;
    assert!(!session.has_ended(), "the connection goes on");
}

#[tokio::test]
async fn a_volume_whose_answer_was_lost_is_found_again_under_its_name() {
    let plugin = TestPlugin::start().await;
    let session = plugin.client(Duration::from_secs(5)).session().await.unwrap();
    plugin.fault("CreateVolume", 1, Happening::LosesReply).await;
    let error = session
        .create_volume(&create("a"), &Secrets::none())
        .await
        .unwrap_err();
    assert_eq!(
        (error.code, error.effect()),
        (Code::DeadlineExceeded, Effect::Unknown)
    );
    assert_eq!(plugin.backend().ids().unwrap().len(), 1, "it was created");
    let found = eventually(SOON, "the volume is found", async || {
        // The plugin rejects the second call until it has seen the end of the first.
        match session.create_volume(&create("a"), &Secrets::none()).await {
            Err(error) if error.class() == Class::InProgress => Err(error),
            answer => Ok(answer.unwrap()),
        }
    })
    .await;
    assert_eq!(found.id.as_str(), "vol-a");
    assert_eq!(plugin.backend().ids().unwrap().len(), 1);
}

#[tokio::test]
async fn a_plugin_that_dies_of_a_call_fails_it_and_is_called_again_after_a_handshake() {
    for (happens, made) in [(Happening::Crashes, 0), (Happening::CrashesAfter, 1)] {
        let mut plugin = TestPlugin::start().await;
        let client = plugin.client(LONG);
        let session = client.session().await.unwrap();
        plugin.fault("CreateVolume", 1, happens.clone()).await;
        let error = session
            .create_volume(&create("a"), &Secrets::none())
            .await
            .unwrap_err();
        assert_eq!(error.class(), Class::Retry, "{happens:?}: {error}");
        assert_eq!(plugin.backend().ids().unwrap().len(), made, "{happens:?}");
        let ended = timeout(LONG, plugin.process().unwrap().exited())
            .await
            .unwrap()
            .unwrap();
        assert!(!ended.success());
        plugin.launch().await.unwrap();
        let session = timeout(LONG, until_ready(&client)).await.unwrap();
        session
            .create_volume(&create("a"), &Secrets::none())
            .await
            .unwrap();
        assert_eq!(plugin.backend().ids().unwrap().len(), 1, "{happens:?}");
    }
}

/// The plugin rejects a second call for a volume, as real ones do. The caller must wait and not give up.
#[tokio::test]
async fn a_second_call_for_a_volume_is_in_progress_and_no_fault() {
    let plugin = TestPlugin::start().await;
    let session = plugin.client(LONG).session().await.unwrap();
    plugin.fault("CreateVolume", 1, Happening::Waits).await;
    let (request, none) = (create("a"), Secrets::none());
    let first = session.create_volume(&request, &none);
    let second = async {
        eventually(SOON, "the first call is in flight", async || {
            same(plugin.calls_of("CreateVolume").len(), 1)
        })
        .await;
        let second = session.create_volume(&request, &none).await;
        plugin.release().await;
        second
    };
    let (first, second) = futures::future::join(first, second).await;
    first.unwrap();
    assert_eq!(second.unwrap_err().class(), Class::InProgress);
}
