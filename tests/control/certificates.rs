//! Certificates over the control API: their renewal, and clocks that are wrong.

use std::time::Duration;

use quorate::proto::Role;
use quorate::proto::node_certificate::State;
use rcgen::KeyPair;
use tonic::Code;

use super::site::{Joined, Key, Member, Site, in_time, leads, renew, report, status, status_within};
use crate::support::clock::off_by;
use crate::support::quorate::Replicas;

/// INV-13.
#[tokio::test]
async fn a_node_renews_its_certificate_with_another_key_and_gets_the_observed_role() {
    let Joined {
        site,
        mut replica,
        mut client,
        node,
        mut own,
        ..
    } = Joined::start().await;
    let key = Key::new();
    renew(&mut own, &key.csr).await.unwrap();
    let answer = status(&mut client, &node.uid).await.unwrap();
    assert_eq!((answer.state(), answer.role()), (State::Issued, Role::Worker));
    assert_ne!(answer.chain, node.chain);
    let renewed = Member {
        chain: answer.chain,
        key,
        ..node
    };
    let mut new = site.client_of(&mut replica, &renewed).await;
    report(&mut new, 1, &[]).await.unwrap();
    // The former certificate is valid until its end: the record of the node decides, not which certificate is the last.
    report(&mut own, 2, &[]).await.unwrap();

    let broken = renew(&mut new, b"no request").await.unwrap_err();
    assert_eq!(broken.code(), Code::InvalidArgument, "{broken}");
    assert_eq!(site.record(&renewed.uid).await.state(), State::Issued);
    site.run(&["certificate", "rotate", "n1"]).await.expect_done();
    let asked = status(&mut client, &renewed.uid).await.unwrap();
    assert_eq!(asked.state(), State::Rotate, "it has no answer to wait for");
}

#[tokio::test]
async fn a_renewal_that_is_repeated_with_the_same_key_is_one_request() {
    let Joined {
        site,
        mut replica,
        node,
        mut own,
        ..
    } = Joined::start().await;
    // The leader leaves the request pending.
    std::fs::remove_file(format!("{}/current/node-ca.key", site.ca)).unwrap();
    let says = "the node authority cannot sign any more";
    replica.wait_for_log(says).await;
    let key = Key::new();
    let again = Key::of(KeyPair::from_pem(&key.pair.serialize_pem()).unwrap());
    assert_ne!(again.csr, key.csr, "its signature is another one");
    renew(&mut own, &key.csr).await.unwrap();
    let first = site.record(&node.uid).await;
    assert_eq!(first.state(), State::Pending);
    renew(&mut own, &again.csr).await.unwrap();
    assert_eq!(site.record(&node.uid).await, first);
    renew(&mut own, &Key::new().csr).await.unwrap();
    assert_ne!(site.record(&node.uid).await, first);
}

#[tokio::test]
async fn a_request_waits_for_a_leader_and_is_answered_through_every_replica() {
    let site = Site::start().await;
    let token = site.token(&["--role", "worker"]).await;
    // Neither can sign: the key is away.
    let (file, away) = (
        format!("{}/current/node-ca.key", site.ca),
        site.path("node-ca.key"),
    );
    let replicas = site.launch().start_all(&["c1", "c2"]);
    let (leader, _) = replicas.leader().await;
    let Replicas(mut replicas) = replicas;
    let mut clients = Vec::new();
    for replica in &mut replicas {
        clients.push(site.client(replica).await);
    }
    std::fs::rename(&file, &away).unwrap();
    // Each has noticed by then that it cannot sign; the control port serves on.
    for replica in &mut replicas {
        replica
            .wait_for_log("the control port gets no new certificate")
            .await;
    }
    let says = "the node authority cannot sign any more";
    replicas[leader].wait_for_log(says).await;
    let uid = Key::new().join(&mut clients[0], "n1", &token).await.unwrap();
    let waits = in_time(async || status_within(&mut clients[1], &uid, Duration::from_secs(1)).await).await;
    assert_eq!((waits.state(), waits.membership_pending), (State::Pending, false));
    let [first, second] = &mut clients[..] else {
        panic!("two clients");
    };
    let mending = async { std::fs::rename(&away, &file).unwrap() };
    let (one, other, ()) = tokio::join!(status(first, &uid), status(second, &uid), mending);
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!(one.state(), State::Issued);
    assert_eq!(one, other);
}

/// The life is 3 h, and a certificate begins 2 h before it is issued.
#[tokio::test]
async fn a_clock_that_is_an_hour_wrong_either_way_refuses_no_valid_certificate() {
    let site = Site::start().await;
    let token = site.token(&["--role", "worker"]).await;
    let launch = || site.launch().flag("--node-cert-ttl=3h");
    let mut right = launch().start("c1");
    leads(&right).await;
    let mut client = site.client(&mut right).await;
    let node = site.member(&mut client, "n1", &token).await;
    for (offset, name) in [("-1h", "behind"), ("+1h", "ahead")] {
        let mut wrong = off_by(offset, launch()).start(name);
        let mut own = site.client_of(&mut wrong, &node).await;
        report(&mut own, 1, &[]).await.unwrap();
    }
}
