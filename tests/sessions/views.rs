//! What a session shows its node.

use std::collections::BTreeMap;

use prost::Message;
use quorate::proto::node_publication::Instruction;
use quorate::proto::publication_status::State;
use quorate::proto::volume_spec::Driver;
use quorate::proto::{
    AccessMode, Metadata, NodePublication, NodeView, Publication, PublicationSpec, PublicationStatus, Secret,
    Volume, VolumeSecret, VolumeSpec, VolumeStatus, access_mode,
};
use quorate::store::Name;

use super::agent::Agent;
use crate::control::site::{Member, Site};
use crate::support::quorate::TestReplica;

/// The sessions last as long as the test.
const LEASE: &str = "--session-lease-ms=300000";

fn metadata(name: &str, uid: &str) -> Option<Metadata> {
    Some(Metadata::new(name, uid, jiff::Timestamp::now()))
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// A replica, and nodes n1 and n2 that have joined there.
async fn begin() -> (Site, TestReplica, [Member; 2]) {
    let site = Site::start().await;
    let token = site.token(&["--role", "worker"]).await;
    let mut replica = site.launch().flag(LEASE).start("c1");
    replica.wait_leading().await;
    let mut client = site.client(&mut replica).await;
    let nodes = [
        site.member(&mut client, "n1", &token).await,
        site.member(&mut client, "n2", &token).await,
    ];
    (site, replica, nodes)
}

/// Writes a volume that needs one secret of this name, as the leader leaves it. No plugin serves it.
async fn put_volume(site: &Site, volume: &str, secret: &str) {
    let record = Volume {
        metadata: metadata(volume, &format!("uid-of-{volume}")),
        spec: Some(VolumeSpec {
            driver: Some(Driver {
                name: "absent.csi".to_owned(),
                ..Driver::default()
            }),
            access_mode: Some(AccessMode {
                scope: access_mode::Scope::MultiNode.into(),
                kind: Some(access_mode::Kind::Block(access_mode::Block {})),
                ..AccessMode::default()
            }),
            secrets: vec![VolumeSecret {
                key: "token".to_owned(),
                secret: secret.to_owned(),
            }],
            ..VolumeSpec::default()
        }),
        status: Some(VolumeStatus {
            volume_id: format!("id-of-{volume}"),
            ..VolumeStatus::default()
        }),
    };
    let key = site.store.keys.volume(&name(volume));
    site.put(&key, record.encode_to_vec()).await;
}

async fn put_secret(site: &Site, secret: &str, value: &str) {
    let record = Secret {
        metadata: metadata(secret, &format!("uid-of-{secret}")),
        data: BTreeMap::from([("token".to_owned(), value.as_bytes().to_vec())]),
    };
    let key = site.store.keys.secret(&name(secret));
    site.put(&key, record.encode_to_vec()).await;
}

/// Writes the publication of a volume to a node.
async fn publish(site: &Site, volume: &str, node: &Member, state: State, context: &str) {
    let record = Publication {
        metadata: metadata(&node.name, "p"),
        spec: Some(PublicationSpec {
            volume: volume.to_owned(),
            volume_uid: format!("uid-of-{volume}"),
            node_uid: node.uid.clone(),
            ..PublicationSpec::default()
        }),
        status: Some(PublicationStatus {
            state: state.into(),
            csi_node_id: "csi".to_owned(),
            publish_context: BTreeMap::from([("context".to_owned(), context.to_owned())]),
            ..PublicationStatus::default()
        }),
    };
    let key = site.store.keys.publication(&name(volume), &name(&node.name));
    site.put(&key, record.encode_to_vec()).await;
}

fn find<'v>(view: &'v NodeView, volume: &str) -> Option<&'v NodePublication> {
    view.publications.iter().find(|one| one.volume == volume)
}

fn instruction(view: &NodeView, volume: &str) -> Option<Instruction> {
    find(view, volume).map(|one| one.instruction())
}

#[tokio::test]
async fn a_node_is_shown_its_own_publications_and_their_secrets_and_no_others() {
    let (site, mut replica, [n1, n2]) = begin().await;
    let secrets = ["s3cr3t-of-n1", "s3cr3t-of-n2"];
    put_secret(&site, "first", secrets[0]).await;
    put_secret(&site, "second", secrets[1]).await;
    put_volume(&site, "data", "first").await;
    put_volume(&site, "logs", "second").await;
    publish(&site, "data", &n1, State::Published, "c1").await;
    publish(&site, "logs", &n2, State::Published, "c2").await;

    let mut agents = Vec::new();
    for (at, (node, volume, other)) in [(&n1, "data", "logs"), (&n2, "logs", "data")]
        .into_iter()
        .enumerate()
    {
        let mut agent = Agent::open(&site, &mut replica, node).await;
        let is_shown = |view: &NodeView| instruction(view, volume) == Some(Instruction::Publish);
        let view = agent.view_where(is_shown).await;
        assert_eq!(view.publications.len(), 1, "{volume}");
        let shown = find(&view, volume).unwrap();
        assert_eq!(shown.volume_id, format!("id-of-{volume}"));
        assert_eq!(shown.plugin, "absent.csi");
        assert_eq!(shown.publish_context["context"], format!("c{}", at + 1));
        assert_eq!(shown.secrets["token"], secrets[at].as_bytes());
        let sent = view.encode_to_vec();
        for foreign in [other, secrets[1 - at]] {
            let found = sent.windows(foreign.len()).any(|part| part == foreign.as_bytes());
            assert!(!found, "{} is shown {foreign}", node.name);
        }
        agents.push(agent);
    }

    // The word to unmount comes without secrets, and to this node alone.
    publish(&site, "data", &n1, State::PendingNodeUnpublish, "c1").await;
    let is_shown = |view: &NodeView| instruction(view, "data") == Some(Instruction::Unpublish);
    let view = agents[0].view_where(is_shown).await;
    assert!(find(&view, "data").unwrap().secrets.is_empty());
    assert!(!agents[1].is_over());
    let log = replica.log();
    for secret in secrets {
        assert!(!log.contains(secret), "{log}");
    }
}

#[tokio::test]
async fn a_volume_whose_secret_is_missing_is_shown_without_an_instruction_until_it_is_there() {
    let (site, mut replica, [n1, _]) = begin().await;
    put_volume(&site, "data", "late").await;
    publish(&site, "data", &n1, State::Published, "c").await;
    let mut agent = Agent::open(&site, &mut replica, &n1).await;
    let stands = |view: &NodeView| instruction(view, "data") == Some(Instruction::Unspecified);
    let view = agent.view_where(stands).await;
    assert!(find(&view, "data").unwrap().secrets.is_empty());
    put_secret(&site, "late", "there").await;
    let is_shown = |view: &NodeView| instruction(view, "data") == Some(Instruction::Publish);
    let view = agent.view_where(is_shown).await;
    assert_eq!(find(&view, "data").unwrap().secrets["token"], b"there");
}

#[tokio::test]
async fn a_node_that_reads_slowly_is_shown_the_latest_and_not_all_before() {
    const CHANGES: usize = 40;
    let (site, mut replica, [n1, _]) = begin().await;
    put_secret(&site, "first", "s").await;
    put_volume(&site, "data", "first").await;
    let mut agent = Agent::open(&site, &mut replica, &n1).await;
    // More at once than the flow control of a connection lets through.
    let context = |number: usize| format!("{number} {}", "x".repeat(400_000));
    for number in 1..=CHANGES {
        publish(&site, "data", &n1, State::Published, &context(number)).await;
    }
    let mut views = 0;
    let last = context(CHANGES);
    loop {
        let view = agent.next_view().await;
        views += 1;
        let shown = find(&view, "data").map(|one| &one.publish_context["context"]);
        if shown == Some(&last) {
            break;
        }
    }
    assert!(views < CHANGES, "{views} views");
}
