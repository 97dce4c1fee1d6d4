//! Many volumes, of which some are blocked.

use prost::Message as _;
use quorate::proto::Volume;

use super::{content, page, pictures, state, texts};
use crate::support::base::{Base, document};
use crate::support::client::put_all;
use crate::support::csi::{DRIVER, TestPlugin};
use crate::support::quorate::Launch;
use crate::support::wait::{SOON, eventually, same};

const ALL: usize = 5000;
const BLOCKED: usize = 40;

#[tokio::test]
async fn of_5000_volumes_the_40_that_are_blocked_are_listed_each_with_its_reason() {
    let (base, driver) = tokio::join!(Base::start(), TestPlugin::start());
    let plugin = document(
        "Plugin",
        DRIVER,
        &format!("{{endpoint: \"{}\"}}", driver.endpoint()),
    );
    let spec = format!(
        "{{driver: {{name: {DRIVER}}}, accessMode: {{scope: singleNode, sharing: none, mount: {{fsType: ext4}}}}}}"
    );
    base.apply(&format!("{plugin}{}", document("Volume", "v0000", &spec)))
        .await;
    let first = base.volume("v0000").await.unwrap();
    let another = |number: usize| -> Volume {
        let mut volume = first.clone();
        let metadata = volume.metadata.as_mut().unwrap();
        (metadata.uid, metadata.name) = (format!("{}-{number}", metadata.uid), format!("v{number:04}"));
        if number % (ALL / BLOCKED) == 1 {
            // It has no object.
            let spec = volume.spec.as_mut().unwrap();
            spec.driver.as_mut().unwrap().name = "absent.csi".to_owned();
        }
        volume
    };
    let others = (1..ALL).map(|number| {
        let volume = another(number);
        (format!("/quorate/volumes/v{number:04}"), volume.encode_to_vec())
    });
    put_all(&base.store.etcd, others).await;
    let mut replica = Launch::on(&base.etcd).start("r1");
    replica.wait_leading().await;
    // The plugin creates all others first.
    let state = eventually(5 * SOON, "the others are created", async || {
        let state = state(&replica).await;
        let volumes = content(&state, "volumes");
        same(&volumes["blocked"]["total"], &BLOCKED.into())?;
        same(&volumes["states"]["created"], &(ALL - BLOCKED).into())?;
        Ok::<_, String>(state)
    })
    .await;
    let volumes = content(&state, "volumes");
    assert_eq!(volumes["states"]["creating"], BLOCKED);
    assert_eq!(texts(&volumes["blocked"], "reason"), ["PluginMissing"; BLOCKED]);
    assert_eq!(texts(&volumes["blocked"], "volume")[1], "v0126");
    let html = page(&replica).await;
    for number in (0..BLOCKED).map(|nth| 1 + nth * (ALL / BLOCKED)) {
        assert!(html.contains(&format!(">v{number:04}<")), "v{number:04}");
    }
    assert!(html.contains("absent.csi"), "the message names the plugin");
    assert!(html.len() < 128 << 10, "{} bytes", html.len());
    pictures::take("blocked-volumes", &replica).await;
}
