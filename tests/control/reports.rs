//! What agents report: nothing that the gate, the election or the volumes of others notice.

use quorate::etcd::Revision;
use quorate::proto::version::Release;
use quorate::proto::{CsiNode, MemberReport, ReportRequest, Role};
use tokio::task::JoinSet;
use tonic::Code;

use super::site::{Joined, Serving, Site, leads_on, report};

async fn revision(site: &Site, name: &str) -> Revision {
    let key = site.store.keys.node(&name.parse().unwrap());
    site.read(&key).await.expect("the node exists").mod_revision
}

#[tokio::test]
async fn a_report_writes_its_fields_and_nothing_where_nothing_changes() {
    let Joined {
        site,
        replica: _replica,
        mut own,
        ..
    } = Joined::start().await;
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
    let keeps = ReportRequest {
        agent_release: status.agent_release,
        keeps_etcd: true,
        ..ReportRequest::default()
    };
    own.report(keeps).await.unwrap();
    let status = site.node("n1").await.status.unwrap();
    assert!(status.keeps_etcd && status.csi.is_empty(), "{status:?}");
    report(&mut own, 1, &[]).await.unwrap();
    let mut after = site.node("n1").await;
    after.status.as_mut().unwrap().agent_release = None;
    assert_eq!(after, before);
}

/// Decision 24.
#[tokio::test]
async fn what_only_a_later_release_knows_of_a_node_and_its_status_outlives_reports() {
    let Joined {
        site,
        replica: _replica,
        mut own,
        ..
    } = Joined::start().await;
    let key = site.store.keys.node(&"n1".parse().unwrap());
    let mut stored = site.read(&key).await.unwrap().value;
    // Field 15 of the node, and of its status, which is field 3: varints.
    let newer: [&[u8]; 2] = [&[0x78, 9], &[0x78, 11]];
    stored.extend([newer[0], &[0x1a, 2], newer[1]].concat());
    site.put(&key, stored).await;
    for (release, csi) in [(1, &[("p1", "csi-1")][..]), (2, &[("p2", "csi-2")]), (3, &[])] {
        report(&mut own, release, csi).await.unwrap();
        let status = site.node("n1").await.status.unwrap();
        assert_eq!(status.agent_release.unwrap().major, release);
        assert_eq!(status.csi.len(), csi.len());
        assert_eq!(status.role(), Role::Worker);
        let value = site.read(&key).await.unwrap().value;
        let holds = |field: &[u8]| value.windows(field.len()).any(|bytes| bytes == field);
        assert!(newer.into_iter().all(holds), "{value:?}");
    }
}

#[tokio::test]
async fn a_release_that_an_agent_reports_moves_neither_the_gate_nor_the_election() {
    let Joined {
        site,
        replica,
        mut own,
        ..
    } = Joined::start().await;
    for major in [99, 0] {
        report(&mut own, major, &[]).await.unwrap();
        let status = site.node("n1").await.status.unwrap();
        assert_eq!(status.agent_release.unwrap().major, major);
        assert_eq!(
            (status.release, status.controller, status.role()),
            (None, false, Role::Worker)
        );
        leads_on(&replica).await;
    }
}

#[tokio::test]
async fn the_csi_node_id_of_another_node_is_refused_and_the_rest_of_the_report_is_recorded() {
    let mut serving = Serving::start().await;
    let mut first = serving.worker("n1").await;
    let mut second = serving.worker("n2").await;
    let site = &serving.site;
    report(&mut first, 1, &[("p", "csi-1")]).await.unwrap();
    report(&mut second, 1, &[("other", "csi-2")]).await.unwrap();
    let before = site.node("n2").await.status.unwrap().csi;
    let lost = ReportRequest {
        agent_release: release(2),
        csi: vec![csi("other", "csi-3"), csi("p", "csi-1")],
        member: data_lost(),
        keeps_etcd: true,
    };
    let refused = second.report(lost.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
    assert!(refused.message().contains("DuplicateNodeID"), "{refused}");
    records_all_but(site, "n2", &before).await;
    let written = revision(site, "n2").await;
    second.report(lost).await.unwrap_err();
    assert_eq!(
        revision(site, "n2").await,
        written,
        "the record says that already"
    );
    report(&mut second, 1, &[("p", "csi-2"), ("other", "csi-1")])
        .await
        .unwrap();
    // The former holder has given it up.
    report(&mut first, 1, &[]).await.unwrap();
    report(&mut second, 1, &[("p", "csi-1")]).await.unwrap();
}

fn csi(plugin: &str, node_id: &str) -> CsiNode {
    CsiNode {
        plugin: plugin.to_owned(),
        node_id: node_id.to_owned(),
        ..CsiNode::default()
    }
}

fn release(major: i64) -> Option<Release> {
    Some(Release {
        major,
        minor: 0,
        patch: 0,
    })
}

fn data_lost() -> Option<MemberReport> {
    Some(MemberReport {
        member_id: 0x1f,
        data_lost: true,
        message: "/var/lib/etcd is empty".to_owned(),
    })
}

/// The node has recorded release 2, that its agent keeps its etcd and that the data of its member is lost, and has these plugins.
async fn records_all_but(site: &Site, name: &str, plugins: &[CsiNode]) {
    let status = site.node(name).await.status.unwrap();
    assert_eq!(status.csi, plugins);
    assert!(status.keeps_etcd, "{status:?}");
    assert_eq!(status.agent_release, release(2));
    let conditions: Vec<_> = status.conditions.iter().map(|of| of.r#type.as_str()).collect();
    assert_eq!(conditions, ["DataLost"]);
}

#[tokio::test]
async fn of_nodes_that_claim_one_csi_node_id_at_once_one_gets_it() {
    let mut serving = Serving::start().await;
    let mut reporting = JoinSet::new();
    for number in 0..6 {
        let mut own = serving.worker(&format!("n{number}")).await;
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
    let mut serving = Serving::start().await;
    let mut first = serving.worker("n1").await;
    let mut second = serving.worker("n2").await;
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
async fn of_a_report_whose_plugins_are_malformed_the_rest_is_recorded() {
    let long = "x".repeat(257);
    let many = (0..200).map(|number| csi(&format!("p{number}"), "csi-1"));
    for (plugins, expected) in [
        (vec![csi("", "csi-1")], "has no name"),
        (vec![csi("p", "")], "is empty"),
        (vec![csi("p", &long)], "longer than 256"),
        (vec![csi("p", "a"), csi("p", "b")], "occurs twice"),
        (many.collect(), "more than 128 plugins"),
    ] {
        let Joined {
            site,
            replica: _replica,
            mut own,
            ..
        } = Joined::start().await;
        report(&mut own, 1, &[("p", "csi-1")]).await.unwrap();
        let before = site.node("n1").await.status.unwrap().csi;
        let request = ReportRequest {
            agent_release: release(2),
            csi: plugins,
            member: data_lost(),
            keeps_etcd: true,
        };
        let refused = own.report(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{expected}: {refused}");
        assert!(refused.message().contains(expected), "{expected}: {refused}");
        records_all_but(&site, "n1", &before).await;
    }
}

#[tokio::test]
async fn a_report_whose_release_is_malformed_or_that_is_too_large_is_refused_whole() {
    let Joined {
        site,
        replica: _replica,
        mut own,
        ..
    } = Joined::start().await;
    let before = revision(&site, "n1").await;
    for (agent_release, expected) in [(None, "agent_release is missing"), (release(-1), "agent_release")] {
        let request = ReportRequest {
            agent_release,
            keeps_etcd: true,
            ..ReportRequest::default()
        };
        let refused = own.report(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{expected}: {refused}");
        assert!(refused.message().contains(expected), "{expected}: {refused}");
    }
    let huge = ReportRequest {
        agent_release: release(1),
        csi: vec![csi("p", &"x".repeat(100_000))],
        ..ReportRequest::default()
    };
    let refused = own.report(huge).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    assert_eq!(revision(&site, "n1").await, before);
}

#[tokio::test]
async fn lost_data_is_a_condition_until_the_agent_says_otherwise_and_a_report_without_it_says_nothing() {
    let Joined {
        site,
        replica: _replica,
        mut own,
        ..
    } = Joined::start().await;
    let said = async |own: &mut super::site::Client, member: Option<MemberReport>| {
        let request = ReportRequest {
            agent_release: Some(Release {
                major: 1,
                minor: 0,
                patch: 1,
            }),
            csi: Vec::new(),
            member,
            ..ReportRequest::default()
        };
        own.report(request).await.map(drop)
    };
    let lost = |data_lost: bool, message: &str| {
        Some(MemberReport {
            member_id: 0x1f,
            data_lost,
            message: message.to_owned(),
        })
    };
    let condition = async || {
        let conditions = site.node("n1").await.status.unwrap().conditions;
        conditions.into_iter().find(|of| of.r#type == "DataLost")
    };
    said(&mut own, lost(true, "/var/lib/etcd is empty"))
        .await
        .unwrap();
    let found = condition().await.expect("the condition is there");
    assert!(found.message.contains("000000000000001f"), "{found:?}");
    assert!(found.message.ends_with("/var/lib/etcd is empty"), "{found:?}");
    let written = revision(&site, "n1").await;
    said(&mut own, lost(true, "/var/lib/etcd is empty"))
        .await
        .unwrap();
    said(&mut own, None).await.unwrap();
    assert_eq!(revision(&site, "n1").await, written);
    for bad in ["two\nlines", &"x".repeat(2000)] {
        let refused = said(&mut own, lost(true, bad)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    }
    said(&mut own, lost(false, "")).await.unwrap();
    assert_eq!(condition().await, None);
}
