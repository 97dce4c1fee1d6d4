//! What a session shows its node.

use std::collections::BTreeMap;

use prost::Message;
use quorate::etcd::{MemberId, Txn};
use quorate::proto::node_publication::Instruction;
use quorate::proto::publication_status::State;
use quorate::proto::volume_spec::Driver;
use quorate::proto::{
    AccessMode, Join, JoinRequest, Metadata, NodePublication, NodeView, Publication, PublicationSpec,
    PublicationStatus, Role, Secret, Volume, VolumeSecret, VolumeSpec, VolumeStatus, access_mode,
};
use quorate::secrets::{Keyring, seal};
use quorate::store::Name;

use super::agent::Agent;
use crate::control::site::{Member, Serving, Site};
use crate::support::directory::directory;
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
    begin_with(&[LEASE]).await
}

/// The same with a replica of these flags.
async fn begin_with(flags: &[&str]) -> (Site, TestReplica, [Member; 2]) {
    let Serving {
        site,
        token,
        replica,
        mut client,
    } = Serving::with(flags).await;
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
                calls: Vec::new(),
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
        sealed: None,
        kubernetes: None,
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
async fn a_node_is_shown_the_values_of_an_encrypted_secret_and_none_whose_key_is_lost() {
    let directory = directory();
    // Of 32 bytes, in base64.
    let [held, lost] = ["A", "B"].map(|letter| {
        let file = directory.path().join(letter);
        std::fs::write(&file, format!("{}A=", letter.repeat(42))).unwrap();
        file
    });
    let flag = format!("--encryption-key-file={}", held.display());
    let (site, mut replica, [n1, _]) = begin_with(&[LEASE, &flag]).await;
    for (volume, file) in [("data", held), ("logs", lost)] {
        let key = site.store.keys.secret(&name(volume));
        let values = BTreeMap::from([("token".to_owned(), b"s3cr3t".to_vec())]);
        let keyring = Keyring::read(&[file]).unwrap();
        let record = Secret {
            metadata: metadata(volume, "s"),
            data: BTreeMap::new(),
            sealed: Some(seal(keyring.first().unwrap().recipient(), &key, &values).unwrap()),
            kubernetes: None,
        };
        site.put(&key, record.encode_to_vec()).await;
        put_volume(&site, volume, volume).await;
        publish(&site, volume, &n1, State::Published, "c").await;
    }
    let mut agent = Agent::open(&site, &mut replica, &n1).await;
    let is_shown = |view: &NodeView| {
        let shown = ["data", "logs"].map(|volume| instruction(view, volume));
        shown == [Some(Instruction::Publish), Some(Instruction::Unspecified)]
    };
    let view = agent.view_where(is_shown).await;
    assert_eq!(find(&view, "data").unwrap().secrets["token"], b"s3cr3t");
    assert!(find(&view, "logs").unwrap().secrets.is_empty());
    replica
        .wait_for_log("node n1 waits for volumes: secret logs: its values are encrypted with key")
        .await;
}

/// No session follows secrets: they are read again after a while.
#[tokio::test]
async fn a_secret_that_is_replaced_reaches_the_node_that_was_shown_the_former_one() {
    let (site, mut replica, [n1, _]) = begin().await;
    put_secret(&site, "first", "wrong").await;
    put_volume(&site, "data", "first").await;
    publish(&site, "data", &n1, State::Published, "c").await;
    let mut agent = Agent::open(&site, &mut replica, &n1).await;
    let shows = |view: &NodeView, value: &str| {
        let secrets = find(view, "data").map(|one| &one.secrets);
        secrets.is_some_and(|secrets| secrets.get("token").map(Vec::as_slice) == Some(value.as_bytes()))
    };
    agent.view_where(|view| shows(view, "wrong")).await;
    put_secret(&site, "first", "right").await;
    let next = agent.next_view().await;
    assert!(shows(&next, "right"), "nothing else is sent");
    assert_eq!(instruction(&next, "data"), Some(Instruction::Publish));
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

#[tokio::test]
async fn a_manager_is_shown_its_member_and_the_list_of_revoked_certificates_and_a_worker_neither() {
    let (site, mut replica, [node, _]) = begin().await;
    let mut agent = Agent::open(&site, &mut replica, &node).await;
    let view = agent.view_where(|_| true).await;
    assert!(view.member.is_none() && view.revocation.is_none());
    // Without `--wait`: this agent reports nothing.
    site.done(&["promote", "n1"]).await;
    // The change of its role has ended the session.
    agent.ended().await;
    let mut agent = Agent::open(&site, &mut replica, &node).await;
    let lists = |view: &NodeView| view.revocation.as_ref().is_some_and(|list| !list.crl.is_empty());
    let view = agent
        .view_where(|view| view.role() == Role::Manager && lists(view))
        .await;
    assert!(view.member.is_none());
    // The leader would add the member.
    site.done(&["pause", "roles"]).await;
    let join = Join {
        request: Some(JoinRequest {
            id: "r".to_owned(),
            node_uid: node.uid.clone(),
            peer_urls: vec!["https://10.0.0.1:2380".to_owned()],
            ..JoinRequest::default()
        }),
        removed_members: vec![5],
        ..Join::default()
    };
    let member = quorate::proto::Member {
        node: "n1".to_owned(),
        node_uid: node.uid.clone(),
        ..quorate::proto::Member::default()
    };
    let keys = &site.store.keys;
    let txn = Txn::new()
        .put(&keys.join(&name("n1")), join.encode_to_vec())
        .put(&keys.member(MemberId(7)), member.encode_to_vec());
    site.commit(txn).await;
    let view = agent.view_where(|view| view.member.is_some()).await;
    let shown = view.member.unwrap();
    assert_eq!((shown.member_id, shown.removed), (7, vec![5]));
    assert_eq!(shown.peer_urls, ["https://10.0.0.1:2380"]);
}
