//! Each call is judged by the record of its node (INV-13).

use quorate::proto::SessionRequest;
use quorate::proto::certificate_refused::Reason;
use quorate::proto::node_spec::Membership;
use tonic::{Code, Status};

use super::site::{Client, Joined, Key, Serving, Site, not_proven, removed_uid, renew, report, status};
use crate::support::proxy::Network;
use crate::support::quorate::{Replicas, TestReplica};
use crate::support::wait::{SOON, eventually};

/// Calls everything that only a node may call; the refusals.
async fn refusals(client: &mut Client) -> Vec<Status> {
    let unpublished = quorate::proto::ConfirmUnpublishedRequest {
        volume: "data".to_owned(),
        publication_uid: "u".to_owned(),
    };
    let expanded = quorate::proto::ConfirmExpandedRequest {
        volume: "data".to_owned(),
        publication_uid: "u".to_owned(),
        capacity_bytes: 1,
    };
    let member = quorate::proto::JoinMemberRequest {
        peer_urls: vec!["http://127.0.0.1:2380".to_owned()],
        ..quorate::proto::JoinMemberRequest::default()
    };
    let certificate = quorate::proto::EtcdCertificateRequest { csr: Key::new().csr };
    let heartbeats = futures::stream::iter([SessionRequest {}]);
    let session = match client.session(heartbeats).await {
        Err(refused) => refused,
        Ok(mut opened) => opened.get_mut().message().await.map(drop).unwrap_err(),
    };
    vec![
        renew(client, &Key::new().csr).await.unwrap_err(),
        report(client, 1, &[]).await.unwrap_err(),
        client.confirm_unpublished(unpublished).await.unwrap_err(),
        client.confirm_expanded(expanded).await.unwrap_err(),
        client.join_member(member).await.unwrap_err(),
        client.etcd_certificate(certificate).await.unwrap_err(),
        session,
    ]
}

#[track_caller]
fn expect_codes(refusals: &[Status], code: Code) {
    for refused in refusals {
        assert_eq!(refused.code(), code, "{refused:?}");
    }
}

async fn two(site: &Site) -> [TestReplica; 2] {
    let replicas = site.launch().start_all(&["c1", "c2"]);
    replicas.leader().await;
    let Replicas(replicas) = replicas;
    replicas.try_into().unwrap_or_else(|_| panic!("two replicas"))
}

#[tokio::test]
async fn a_removed_node_is_refused_at_the_next_call_on_new_and_open_connections_through_every_replica() {
    let site = Site::start().await;
    let token = site.token(&["--role", "worker"]).await;
    let [mut first, mut second] = two(&site).await;
    let mut client = site.client(&mut first).await;
    let node = site.member(&mut client, "n1", &token).await;
    let mut open = Vec::new();
    for replica in [&mut first, &mut second] {
        let mut client = site.client_of(replica, &node).await;
        report(&mut client, 1, &[]).await.unwrap();
        open.push(client);
    }
    site.remove("n1").await;
    for replica in [&mut first, &mut second] {
        open.push(site.client_of(replica, &node).await);
    }
    for client in &mut open {
        let refused = refusals(client).await;
        expect_codes(&refused, Code::PermissionDenied);
        for refused in refused {
            assert_eq!(removed_uid(&refused), Some(node.uid.clone()), "{refused:?}");
        }
    }
    // Its record is gone with it, and says no more than that.
    let gone = status(&mut client, &node.uid).await.unwrap_err();
    assert_eq!(removed_uid(&gone), Some(node.uid));
}

#[tokio::test]
async fn a_node_whose_key_is_gone_is_not_found_and_never_called_removed() {
    let Joined {
        site,
        replica: _replica,
        mut client,
        mut own,
        ..
    } = Joined::start().await;
    let key = site.store.keys.node(&"n1".parse().unwrap());
    site.commit(quorate::etcd::Txn::new().delete(&key)).await;
    for refused in refusals(&mut own).await {
        assert_eq!(refused.code(), Code::NotFound, "{refused:?}");
        assert_eq!(removed_uid(&refused), None);
    }
    // Another node of the name is none of its business.
    site.add_node("n1").await;
    expect_codes(&refusals(&mut own).await, Code::NotFound);
    let unknown = status(&mut client, "0b3a2f0e-55a6-4a3e-9d0c-2f6f4d1c9b11").await;
    assert_eq!(unknown.unwrap_err().code(), Code::NotFound);
    for malformed in ["", "n1", "0B3A2F0E-55A6-4A3E-9D0C-2F6F4D1C9B11", "a/b"] {
        let refused = status(&mut client, malformed).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{malformed}: {refused}");
    }
}

#[tokio::test]
async fn a_node_that_is_no_longer_accepted_is_refused_and_accepted_again_at_once() {
    let Joined {
        site,
        replica: _replica,
        mut own,
        ..
    } = Joined::start().await;
    let set = async |membership| {
        site.change("n1", |node| {
            node.spec.get_or_insert_default().set_membership(membership)
        })
        .await;
    };
    set(Membership::Pending).await;
    for refused in refusals(&mut own).await {
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
        assert_eq!(removed_uid(&refused), None);
    }
    set(Membership::Accepted).await;
    report(&mut own, 1, &[]).await.unwrap();
}

#[tokio::test]
async fn everything_is_refused_while_etcd_cannot_be_asked() {
    let (serving, proxy) = Serving::behind_proxy(&["--etcd-request-timeout-ms=1000"]).await;
    let token = serving.token.clone();
    let Joined {
        site: _site,
        replica: _replica,
        mut client,
        node,
        mut own,
        ..
    } = serving.join("n1").await;
    eventually(SOON, "it reports", async || report(&mut own, 1, &[]).await).await;
    for network in [Network::BlackHole, Network::Resets] {
        proxy.set(network);
        expect_codes(&refusals(&mut own).await, Code::Unavailable);
        let refused = Key::new().join(&mut client, "n2", &token).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        let refused = status(&mut client, &node.uid).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    }
    proxy.set(Network::Passes);
    eventually(SOON, "it answers again", async || report(&mut own, 2, &[]).await).await;
}

#[tokio::test]
async fn a_connection_without_a_certificate_may_join_and_look_and_nothing_else() {
    let site = Site::start().await;
    let mut replica = site.replica().await;
    let mut client = site.client(&mut replica).await;
    let refused = refusals(&mut client).await;
    expect_codes(&refused, Code::PermissionDenied);
    for refused in refused {
        assert_eq!(not_proven(&refused), Some(Reason::Missing), "{refused:?}");
    }
}
