//! What a node confirms about its own volumes, and about no others.

use prost::Message;
use quorate::proto::condition::Status as ConditionStatus;
use quorate::proto::publication_status::State;
use quorate::proto::{
    Condition, ConfirmExpandedRequest, ConfirmUnpublishedRequest, Metadata, Publication, PublicationSpec,
    PublicationStatus, Volume,
};
use quorate::term::Notices;
use tonic::{Code, Status};

use super::site::{Client, Site, confirm_unpublished};
use crate::identity::site::certifying_leader;
use crate::support::base::document;
use crate::support::leader::Leader;
use crate::support::quorate::TestReplica;

/// A node n1 that has joined as a worker, at a replica that does not lead.
struct Worker {
    site: Site,
    uid: String,
    /// Calls as the node.
    own: Client,
    /// It certifies, and works on no volume.
    _leader: Leader,
    _replica: TestReplica,
}

impl Worker {
    async fn join() -> Self {
        let site = Site::start().await;
        let token = site.token(&["--role", "worker"]).await;
        let leader = certifying_leader(&site.store, &site.ca, Notices::default()).await;
        let mut replica = site.launch().start("c2");
        let mut client = site.client(&mut replica).await;
        let node = site.member(&mut client, "n1", &token).await;
        let own = site.client_of(&mut replica, &node).await;
        Self {
            site,
            uid: node.uid.clone(),
            own,
            _leader: leader,
            _replica: replica,
        }
    }
}

/// A publication of volume `data`, which no leader works on: there is no plugin.
async fn publish(site: &Site, node: &str, node_uid: &str, state: State) -> Vec<u8> {
    let publication = Publication {
        metadata: Some(Metadata {
            name: node.to_owned(),
            uid: format!("p-{node}"),
            ..Metadata::default()
        }),
        spec: Some(PublicationSpec {
            volume: "data".to_owned(),
            volume_uid: "v".to_owned(),
            node_uid: node_uid.to_owned(),
            again: true,
            ..PublicationSpec::default()
        }),
        status: Some(PublicationStatus {
            state: state.into(),
            ..PublicationStatus::default()
        }),
    };
    let (volume, node) = ("data".parse().unwrap(), node.parse().unwrap());
    let key = site.store.keys.publication(&volume, &node);
    site.put(&key, publication.encode_to_vec()).await;
    key
}

async fn stored(site: &Site, key: &[u8]) -> Publication {
    let stored = site.read(key).await.expect("the publication exists");
    Publication::decode(&*stored.value).unwrap()
}

async fn expanded(client: &mut Client, uid: &str, capacity_bytes: i64) -> Result<(), Status> {
    let request = ConfirmExpandedRequest {
        volume: "data".to_owned(),
        publication_uid: uid.to_owned(),
        capacity_bytes,
    };
    client.confirm_expanded(request).await.map(drop)
}

#[tokio::test]
async fn a_node_confirms_its_own_publication_and_from_one_state_alone() {
    let site = Site::start().await;
    let token = site.token(&["--role", "worker"]).await;
    // Another one leads, and works on no volume.
    let _leader = certifying_leader(&site.store, &site.ca, Notices::default()).await;
    let mut replica = site.launch().start("c2");
    let mut client = site.client(&mut replica).await;
    let first = site.member(&mut client, "n1", &token).await;
    let second = site.member(&mut client, "n2", &token).await;
    let mut own = site.client_of(&mut replica, &first).await;
    let other = site.client_of(&mut replica, &second).await;
    for state in [State::PendingPublish, State::Published] {
        let key = publish(&site, "n1", &first.uid, state).await;
        let refused = confirm_unpublished(&mut own, "p-n1").await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{state:?}: {refused}");
        assert_eq!(stored(&site, &key).await.status.unwrap().state(), state);
    }
    let key = publish(&site, "n1", &first.uid, State::PendingNodeUnpublish).await;
    let before = stored(&site, &key).await;
    for (client, uid) in [(&other, "p-n1"), (&own, "p-n2"), (&own, "")] {
        let refused = confirm_unpublished(&mut client.clone(), uid).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{uid}: {refused}");
    }
    assert_eq!(stored(&site, &key).await, before);
    confirm_unpublished(&mut own, "p-n1").await.unwrap();
    let mut expected = before;
    expected
        .status
        .as_mut()
        .unwrap()
        .set_state(State::PendingUnpublish);
    assert_eq!(
        stored(&site, &key).await,
        expected,
        "a request to publish it again stays"
    );
    confirm_unpublished(&mut own, "p-n1")
        .await
        .expect("the reply may have been lost");
    // One of a former node of the name is another one.
    let key = publish(&site, "n1", "former", State::PendingNodeUnpublish).await;
    let refused = confirm_unpublished(&mut own, "p-n1").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    let left = stored(&site, &key).await.status.unwrap();
    assert_eq!(left.state(), State::PendingNodeUnpublish);
    let nowhere = ConfirmUnpublishedRequest {
        volume: "../data".to_owned(),
        publication_uid: "p-n1".to_owned(),
    };
    let refused = own.confirm_unpublished(nowhere).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_node_confirms_the_expansion_that_is_due_once_and_no_more_than_the_volume_has() {
    let Worker {
        site,
        uid,
        mut own,
        _leader,
        _replica,
    } = Worker::join().await;
    let key = publish(&site, "n1", &uid, State::Published).await;
    let refused = expanded(&mut own, "p-n1", 1).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    site.apply(&document("Plugin", "p", "{endpoint: \"unix:///nowhere.sock\"}"))
        .await;
    let spec = "{driver: {name: p}, accessMode: {scope: singleNode, sharing: none, block: {}}, capacity: {required: 4096}}";
    site.apply(&document("Volume", "data", spec)).await;
    let volume_key = site.store.keys.volume(&"data".parse().unwrap());
    let stored_volume = site.read(&volume_key).await.unwrap();
    let mut volume = Volume::decode(&*stored_volume.value).unwrap();
    let status = volume.status.get_or_insert_default();
    (status.capacity_bytes, status.node_expansion_bytes) = (4096, 3000);
    site.put(&volume_key, volume.encode_to_vec()).await;
    let bytes = async || stored(&site, &key).await.status.unwrap().expanded_bytes;
    let more = expanded(&mut own, "p-n1", 4097).await.unwrap_err();
    assert_eq!(more.code(), Code::InvalidArgument, "{more}");
    assert_eq!(bytes().await, 0);
    // What is due is written once: a node could fill etcd with the steps to it.
    let length = async || site.read(&key).await.unwrap().value.len();
    let before = length().await;
    for confirmed in 1..100 {
        expanded(&mut own, "p-n1", confirmed).await.unwrap();
    }
    assert_eq!((bytes().await, length().await), (0, before));
    for confirmed in [3000, 3001, 4096, 1024] {
        expanded(&mut own, "p-n1", confirmed).await.unwrap();
        assert_eq!(bytes().await, 3000);
    }
    assert!(length().await < before + 20, "{}", length().await);
    let refused = expanded(&mut own, "p-n2", 4096).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    publish(&site, "n1", &uid, State::PendingUnpublish).await;
    let late = expanded(&mut own, "p-n1", 4096).await.unwrap_err();
    assert_eq!(late.code(), Code::FailedPrecondition, "{late}");
}

/// INV-6: the other one may use the volume, and neither knows of the other.
#[tokio::test]
async fn a_node_that_two_agents_run_as_confirms_no_end() {
    let Worker {
        site,
        uid,
        mut own,
        _leader,
        _replica,
    } = Worker::join().await;
    let key = publish(&site, "n1", &uid, State::PendingNodeUnpublish).await;
    let duplicate = Condition {
        r#type: "DuplicateAgent".to_owned(),
        status: ConditionStatus::True.into(),
        ..Condition::default()
    };
    let set = |conditions: Vec<Condition>| {
        site.change("n1", |node| {
            node.status.get_or_insert_default().conditions = conditions;
        })
    };
    set(vec![duplicate]).await;
    let refused = confirm_unpublished(&mut own, "p-n1").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(refused.message().contains("two agents"), "{refused}");
    let left = stored(&site, &key).await.status.unwrap();
    assert_eq!(left.state(), State::PendingNodeUnpublish);
    set(Vec::new()).await;
    confirm_unpublished(&mut own, "p-n1").await.unwrap();
    let left = stored(&site, &key).await.status.unwrap();
    assert_eq!(left.state(), State::PendingUnpublish);
}
