//! What agents report: nothing that the gate, the election or the volumes of others notice.

use quorate::etcd::Revision;
use quorate::proto::version::Release;
use quorate::proto::{CsiNode, ReportRequest, Role};
use tokio::task::JoinSet;
use tonic::Code;

use super::site::{Site, report};

async fn revision(site: &Site, name: &str) -> Revision {
    let key = site.store.keys.node(&name.parse().unwrap());
    site.read(&key).await.expect("the node exists").mod_revision
}

#[tokio::test]
async fn a_report_writes_its_two_fields_and_nothing_where_nothing_changes() {
    let site = Site::start().await;
    let token = site.token(&["--role", "worker"]).await;
    let mut replica = site.replica().await;
    let mut client = site.client(&mut replica).await;
    let node = site.member(&mut client, "n1", &token).await;
    let mut own = site.client_of(&mut replica, &node).await;
    let before = site.node("n1").await;
    report(&mut own, 1, &[("p1", "csi-1"), ("p2", "csi-1")])
        .await
        .unwrap();
    let status = site.node("n1").await.status.unwrap();
    assert_eq!(status.agent_release.unwrap().major, 1);
    let ids: Vec<_> = status
        .csi
        .iter()
        .map(|csi| (&*csi.plugin, &*csi.node_id))
        .collect();
    assert_eq!(ids, [("p1", "csi-1"), ("p2", "csi-1")]);
    let written = revision(&site, "n1").await;
    report(&mut own, 1, &[("p1", "csi-1"), ("p2", "csi-1")])
        .await
        .unwrap();
    assert_eq!(revision(&site, "n1").await, written, "it says that already");
    report(&mut own, 1, &[]).await.unwrap();
    let mut after = site.node("n1").await;
    after.status.as_mut().unwrap().agent_release = None;
    assert_eq!(after, before);
}

#[tokio::test]
async fn a_release_that_an_agent_reports_moves_neither_the_gate_nor_the_election() {
    let site = Site::start().await;
    let token = site.token(&["--role", "worker"]).await;
    let mut replica = site.replica().await;
    let mut client = site.client(&mut replica).await;
    let node = site.member(&mut client, "n1", &token).await;
    let mut own = site.client_of(&mut replica, &node).await;
    for major in [99, 0] {
        report(&mut own, major, &[]).await.unwrap();
        let status = site.node("n1").await.status.unwrap();
        assert_eq!(status.agent_release.unwrap().major, major);
        assert_eq!(
            (status.release, status.controller, status.role()),
            (None, false, Role::Worker)
        );
        assert!(replica.leads().await);
        assert_eq!(replica.metric("quorate_election_yields").await, 0.0);
    }
}

#[tokio::test]
async fn the_csi_node_id_of_another_node_is_refused() {
    let site = Site::start().await;
    let token = site.token(&["--role", "worker"]).await;
    let mut replica = site.replica().await;
    let mut client = site.client(&mut replica).await;
    let first = site.member(&mut client, "n1", &token).await;
    let second = site.member(&mut client, "n2", &token).await;
    let mut first = site.client_of(&mut replica, &first).await;
    let mut second = site.client_of(&mut replica, &second).await;
    report(&mut first, 1, &[("p", "csi-1")]).await.unwrap();
    let before = revision(&site, "n2").await;
    let refused = report(&mut second, 1, &[("other", "csi-2"), ("p", "csi-1")])
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
    assert!(refused.message().contains("DuplicateNodeID"), "{refused}");
    assert_eq!(revision(&site, "n2").await, before);
    report(&mut second, 1, &[("p", "csi-2"), ("other", "csi-1")])
        .await
        .unwrap();
    // The former holder has given it up.
    report(&mut first, 1, &[]).await.unwrap();
    report(&mut second, 1, &[("p", "csi-1")]).await.unwrap();
}

#[tokio::test]
async fn of_nodes_that_claim_one_csi_node_id_at_once_one_gets_it() {
    let site = Site::start().await;
    let token = site.token(&["--role", "worker"]).await;
    let mut replica = site.replica().await;
    let mut client = site.client(&mut replica).await;
    let mut reporting = JoinSet::new();
    for number in 0..6 {
        let node = site.member(&mut client, &format!("n{number}"), &token).await;
        let mut own = site.client_of(&mut replica, &node).await;
        reporting.spawn(async move { report(&mut own, 1, &[("p", "csi-1")]).await });
    }
    let mut taken = 0;
    while let Some(ended) = reporting.join_next().await {
        match ended.unwrap() {
            Ok(()) => taken += 1,
            Err(refused) => assert_eq!(refused.code(), Code::AlreadyExists, "{refused}"),
        }
    }
    assert_eq!(taken, 1);
}

/// Each write below `/nodes/` delays a restriction.
#[tokio::test]
async fn a_node_that_reports_something_else_again_and_again_is_stopped_and_disturbs_no_other() {
    let site = Site::start().await;
    let token = site.token(&["--role", "worker"]).await;
    let mut replica = site.replica().await;
    let mut client = site.client(&mut replica).await;
    let first = site.member(&mut client, "n1", &token).await;
    let second = site.member(&mut client, "n2", &token).await;
    let mut first = site.client_of(&mut replica, &first).await;
    let mut second = site.client_of(&mut replica, &second).await;
    let mut flapping = 0;
    let refused = loop {
        flapping += 1;
        match report(&mut first, flapping, &[]).await {
            Ok(()) => assert!(flapping < 100, "nothing stops it"),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    report(&mut first, flapping - 1, &[])
        .await
        .expect("what changes nothing is not counted");
    report(&mut second, 1, &[]).await.expect("another one may");
}

#[tokio::test]
async fn a_report_that_is_malformed_is_refused_whole() {
    let site = Site::start().await;
    let token = site.token(&["--role", "worker"]).await;
    let mut replica = site.replica().await;
    let mut client = site.client(&mut replica).await;
    let node = site.member(&mut client, "n1", &token).await;
    let mut own = site.client_of(&mut replica, &node).await;
    let before = revision(&site, "n1").await;
    let release = Release {
        major: 1,
        minor: 0,
        patch: 0,
    };
    let negative = Release { major: -1, ..release };
    let csi = |plugin: &str, node_id: &str| CsiNode {
        plugin: plugin.to_owned(),
        node_id: node_id.to_owned(),
        ..CsiNode::default()
    };
    let long = "x".repeat(257);
    let many = (0..200).map(|number| csi(&format!("p{number}"), "csi-1"));
    for (agent_release, csi, expected) in [
        (None, vec![], "agent_release is missing"),
        (Some(negative), vec![], "agent_release"),
        (Some(release), vec![csi("", "csi-1")], "has no name"),
        (Some(release), vec![csi("p", "")], "is empty"),
        (Some(release), vec![csi("p", &long)], "longer than 256"),
        (Some(release), vec![csi("p", "a"), csi("p", "b")], "occurs twice"),
        (Some(release), many.collect(), "more than 128 plugins"),
    ] {
        let request = ReportRequest { agent_release, csi };
        let refused = own.report(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{expected}: {refused}");
        assert!(refused.message().contains(expected), "{expected}: {refused}");
    }
    let huge = ReportRequest {
        agent_release: Some(release),
        csi: vec![csi("p", &"x".repeat(100_000))],
    };
    let refused = own.report(huge).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    assert_eq!(revision(&site, "n1").await, before);
}
