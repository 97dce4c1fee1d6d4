//! `quorate dev` with members that come and go.

use rustix::process::Signal;

use super::started::Dev;
use crate::support::etcd::EtcdVersion;
use crate::support::quorate::quorate;
use crate::support::wait::{SOON, eventually};

/// What stands after `before` in the output, up to the next space or line end.
fn word_after(dev: &Dev, before: &str) -> String {
    let output = dev.output();
    let (_, rest) = output
        .split_once(before)
        .unwrap_or_else(|| panic!("no {before:?}: {output}"));
    rest.split_whitespace().next().unwrap().to_owned()
}

async fn members(endpoints: &str) -> String {
    let flag = format!("--etcd-endpoints={endpoints}");
    quorate(["get", "members", "--no-headers", &flag])
        .await
        .expect_done()
}

#[tokio::test]
async fn a_member_that_is_demoted_leaves_the_run_and_the_next_one_and_can_be_started_by_hand() {
    let parent = tempfile::tempdir().unwrap();
    let data = format!("--data-dir={}", parent.path().join("data").display());
    let args = ["--members=3", "--no-kubernetes", data.as_str()];
    let mut dev = Dev::start(&args);
    dev.wait_for("Ctrl-C stops everything").await;
    let output = dev.output();
    assert!(
        output.contains("3 members adopted as nodes: etcd-1, etcd-2, etcd-3"),
        "{output}"
    );
    for line in [
        "  quorate get members",
        "  quorate demote etcd-3 --yes --wait",
        "  quorate join etcd-3 --peer-url http://127.0.0.1:",
    ] {
        assert!(output.contains(line), "{line:?} is missing: {output}");
    }
    let endpoints = word_after(&dev, "serves on ");
    let flag = format!("--etcd-endpoints={endpoints}");
    quorate(["demote", "etcd-3", "--yes", "--wait", "--timeout=50s", &flag])
        .await
        .expect_done();
    dev.wait_for("etcd-3 was removed from the cluster, and has ended")
        .await;
    let left = members(&endpoints).await;
    assert_eq!(left.matches(" voter ").count(), 2, "{left}");

    // With the settings that the printed commands lead to, at the printed addresses.
    let (peer, client) = (word_after(&dev, "--peer-url "), word_after(&dev, "--client-url "));
    quorate(["promote", "etcd-3", "--wait", "--timeout=50s", &flag])
        .await
        .expect_done();
    let join = [
        "join",
        "etcd-3",
        "--peer-url",
        &peer,
        "--client-url",
        &client,
        "--timeout=50s",
        &flag,
    ];
    let environment = quorate(join.into_iter().chain(["-o=env"])).await.expect_done();
    let log = parent.path().join("by-hand.log");
    let data = parent.path().join("by-hand");
    let mut by_hand = crate::members::started(EtcdVersion::Installed, "etcd-3", &data, &environment, &log);
    quorate(join.into_iter().chain(["--wait"])).await.expect_done();
    let back = members(&endpoints).await;
    assert_eq!(back.matches(" voter ").count(), 3, "{back}");
    quorate(["demote", "etcd-3", "--yes", "--wait", "--timeout=50s", &flag])
        .await
        .expect_done();
    tokio::time::timeout(SOON, by_hand.exited())
        .await
        .unwrap()
        .unwrap();

    dev.signal(Signal::INT);
    assert_eq!(dev.ended().await.code(), Some(0), "{}", dev.output());
    let mut again = Dev::start(&args);
    again.wait_for("Ctrl-C stops everything").await;
    let endpoints = word_after(&again, "serves on ");
    eventually(SOON, "the two that stayed", async || {
        let left = members(&endpoints).await;
        let healthy = left.matches(" healthy ").count();
        if (healthy, left.lines().count()) == (2, 2) {
            Ok(())
        } else {
            Err(left)
        }
    })
    .await;
    again.signal(Signal::INT);
    assert_eq!(again.ended().await.code(), Some(0), "{}", again.output());
}
