//! `quorate dev --csi-demo`: a volume through its whole life, by the commands that it prints.

use rustix::process::Signal;

use super::started::Dev;
use crate::support::quorate::quorate_with;

#[tokio::test]
async fn a_volume_lives_through_the_plugin_that_comes_along_and_nothing_is_left() {
    let mut dev = Dev::start(&["--no-kubernetes", "--csi-demo"]);
    dev.wait_for("Ctrl-C stops everything").await;
    let output = dev.output();
    let after = |text: &str| {
        let rest = output
            .split(text)
            .nth(1)
            .unwrap_or_else(|| panic!("{text:?} is not in {output}"));
        rest.split_whitespace().next().unwrap().to_owned()
    };
    let endpoints = after("export QUORATE_ETCD_ENDPOINTS=");
    let variables = [("QUORATE_ETCD_ENDPOINTS", endpoints.as_str())];
    let plugin = after("quorate apply -f ");
    let run =
        async |args: &[&str], stdin: &str| quorate_with(args, Some(stdin), &variables).await.expect_done();
    run(&["apply", "-f", &plugin], "").await;
    let node = "{apiVersion: quorate.dev/v1, kind: Node, metadata: {name: n1}, ";
    let documents = format!(
        "{node}spec: {{desiredRole: worker}}}}\n---\n{{apiVersion: quorate.dev/v1, kind: Volume, metadata: {{name: data}}, \
         spec: {{driver: {{name: demo.csi.quorate.dev}}, capacity: {{required: 1Mi}}, \
         accessMode: {{scope: singleNode, sharing: none, mount: {{}}}}}}}}\n"
    );
    run(&["apply", "-f", "-"], &documents).await;
    let report = format!("{node}status: {{csi: [{{plugin: demo.csi.quorate.dev, nodeID: csi-n1}}]}}}}\n");
    run(&["apply", "--subresource", "status", "-f", "-"], &report).await;
    run(&["publish", "data", "n1", "--wait", "--timeout=30s"], "").await;
    let volumes = std::path::Path::new(&plugin).with_file_name("volumes");
    assert_eq!(std::fs::read_dir(&volumes).unwrap().count(), 1);
    let retried = run(&["retry", "volume", "data"], "").await;
    assert_eq!(
        retried,
        "volume/data is planned again; nothing of it has failed\n"
    );
    let unpublished = run(
        &["unpublish", "data", "n1", "--confirm", "--wait", "--timeout=30s"],
        "",
    )
    .await;
    assert_eq!(
        unpublished,
        "publication/data/n1 will be unpublished\npublication/data/n1 is gone\n"
    );
    run(
        &["delete", "volume", "data", "--yes", "--wait", "--timeout=30s"],
        "",
    )
    .await;
    assert_eq!(std::fs::read_dir(&volumes).unwrap().count(), 0);

    dev.signal(Signal::TERM);
    assert!(dev.ended().await.success(), "{}", dev.output());
    dev.assert_nothing_is_left().await;
}
