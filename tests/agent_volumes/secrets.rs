//! A secret value reaches the plugin of the node, and is nowhere else.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use quorate_dev::csi_plugin::faults::Happening;
use quorate_dev::csi_plugin::order::Order;

use super::world::{World, unpublish, unpublished};
use crate::support::csi::answer;
use crate::support::traced::{Traced, traces_libraries};
use crate::support::wait::{SOON, eventually};

const VALUE: &str = "s3cr3t-sentinel";

/// The text of every file below a directory, links not followed.
pub fn texts(directory: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        text.push_str(&format!("{}\n", entry.path().display()));
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            text.push_str(&texts(&entry.path()));
        } else if kind.is_file() {
            text.push_str(&String::from_utf8_lossy(&fs::read(entry.path()).unwrap()));
        }
    }
    text
}

// One thread, so that the subscriber of this test also gets the traces of the agent's tasks.
#[tokio::test(flavor = "current_thread")]
async fn no_secret_value_is_on_disk_in_a_trace_a_metric_or_an_argument_and_it_is_dropped_with_the_publication()
 {
    let traced = Traced::begin();
    let mut world = World::start_with(|_, node| node.expands = true).await;
    let mut volume = world.volume("data").await;
    let order = Order::ExpectSecrets(BTreeMap::from([("token".to_owned(), VALUE.to_owned())]));
    world.plugin.order(order).await;
    // The plugin prints the value.
    let prints = || Happening::Fails(answer("Unavailable", "cannot log in with {secrets}"));
    for method in ["NodeStageVolume", "NodePublishVolume", "NodeExpandVolume"] {
        world.plugin.fault(method, 1, prints()).await;
    }
    // The backend repeats a wrong one.
    volume
        .secrets
        .insert("token".to_owned(), b"wr0ng-sentinel".to_vec());
    world.show(vec![volume.clone()]);
    world.until("blocked", 1).await;
    eventually(SOON, "the backend refuses it", async || {
        match traced.text().contains("the backend refused") {
            true => Ok(()),
            false => Err("not yet"),
        }
    })
    .await;
    volume
        .secrets
        .insert("token".to_owned(), VALUE.as_bytes().to_vec());
    volume.capacity_bytes = 1 << 20;
    world.show(vec![volume.clone()]);
    world.until("published", 1).await;
    eventually(SOON, "the expansion is confirmed", async || {
        match world.confirmed().len() {
            0 => Err("not yet"),
            _ => Ok(()),
        }
    })
    .await;

    let command_line = format!("/proc/{}/cmdline", world.plugin.process().unwrap().pid());
    let traces = traced.text();
    assert!(traces_libraries(&traces), "it said everything");
    assert!(
        traces.contains("cannot log in with <secret>"),
        "the plugin's message is there"
    );
    for (place, text) in [
        ("a trace", traces),
        ("a metric", world.metrics()),
        ("a file of the agent", texts(&world.directory())),
        (
            "the plugin's log of calls",
            fs::read_to_string(&world.plugin.options().log).unwrap(),
        ),
        (
            "the plugin's output",
            fs::read_to_string(world.plugin.output_file()).unwrap(),
        ),
        (
            "the plugin's arguments",
            fs::read_to_string(command_line).unwrap(),
        ),
    ] {
        for part in [VALUE, "s3cr3t", "wr0ng"] {
            assert!(!text.contains(part), "{part} is in {place}");
        }
    }

    // The one copy outside a call is that of the view, which ends with the next one.
    let last = Arc::downgrade(&world.view());
    let ending = unpublish(&volume);
    drop(volume);
    world.show(vec![ending.clone()]);
    let confirmed = |world: &World| world.confirmed().contains(&unpublished(&ending));
    eventually(SOON, "the volume is unpublished", async || {
        match confirmed(&world) {
            true => Ok(()),
            false => Err("not yet"),
        }
    })
    .await;
    assert!(last.upgrade().is_none(), "the view with the secrets is kept");
}
