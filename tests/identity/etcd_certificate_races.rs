//! What changes while a leader signs a certificate of etcd or the list of revoked ones, and leaders that die meanwhile.

use prost::Message;
use quorate::etcd::MemberId;
use quorate::proto::node_certificate::State;
use quorate::proto::{Member, Removal, Role};
use rcgen::PublicKeyData;

use super::etcd_site::serials;
use super::held::{BEFORE, Held};
use super::site::{Site, read, request};
use crate::support::doomed::Doomed;
use crate::support::wait::{SOON, eventually, same};

/// INV-13.
#[tokio::test]
async fn no_certificate_is_recorded_for_a_node_that_was_demoted_meanwhile() {
    for point in BEFORE {
        let held = Held::of_etcd_at(point, &request().0).await;
        held.site.observe("n1", Role::Worker).await;
        let (site, uid, _replica) = held.refused().await;
        let record = site.answered_of_etcd(&uid, State::Failed).await;
        assert_eq!(
            (record.reason.as_str(), serials(&record).len()),
            ("NotAManager", 0),
            "{point}"
        );
    }
}

/// INV-13: the record of the removal alone is enough.
#[tokio::test]
async fn no_certificate_is_recorded_for_a_node_that_was_removed_meanwhile() {
    let held = Held::of_etcd_at("identity.before-store", &request().0).await;
    let removed = held.site.store.keys.removed(&held.uid);
    held.site.put(&removed, Vec::<u8>::new()).await;
    let (site, uid, _replica) = held.refused().await;
    // The record goes at once: nothing was issued.
    eventually(SOON, "the record is deleted", async || {
        same(site.stored_of_etcd(&uid).await, None)
    })
    .await;
}

#[tokio::test]
async fn no_certificate_is_recorded_for_a_member_that_leaves_or_hosts_that_have_changed_meanwhile() {
    let held = Held::of_etcd_at("identity.before-store", &request().0).await;
    let leaving = Member {
        node: "n1".to_owned(),
        node_uid: held.uid.clone(),
        removal: Some(Removal::default()),
        ..Member::default()
    };
    let key = held.site.store.keys.member(MemberId(7));
    held.site.put(&key, leaving.encode_to_vec()).await;
    let (site, uid, _replica) = held.refused().await;
    let record = site.answered_of_etcd(&uid, State::Failed).await;
    assert_eq!(record.reason, "NotJoined");

    let held = Held::of_etcd_at("identity.before-store", &request().0).await;
    let uid = held.uid.clone();
    held.site.join("n1", &uid, 7, "10.0.0.9").await;
    let (site, uid, _replica) = held.refused().await;
    let record = site.answered_of_etcd(&uid, State::Issued).await;
    let names = super::etcd_site::names(&record.chain);
    assert!(names.contains(&"[10, 0, 0, 9]".to_owned()), "{names:?}");
}

#[tokio::test]
async fn no_key_of_an_older_request_is_certified() {
    for point in BEFORE {
        let held = Held::of_etcd_at(point, &request().0).await;
        let (csr, key) = request();
        held.site.request_of_etcd("n1", &held.uid, &csr).await;
        let (site, uid, _replica) = held.refused().await;
        let record = site.answered_of_etcd(&uid, State::Issued).await;
        let (_, public) = read(&record.chain);
        assert_eq!(public, key.subject_public_key_info(), "{point}");
        // What was signed before has left nothing.
        assert_eq!(serials(&record).len(), 1, "{point}");
    }
}

#[tokio::test]
async fn a_request_and_a_revocation_outlive_leaders_that_die_at_every_step() {
    for point in [
        "identity.before-sign",
        "identity.before-store",
        "identity.after-store",
    ] {
        let site = Site::start().await;
        site.done(&["pause", "roles"]).await;
        let uid = site.add_manager("n1", 7, "10.0.0.1").await;
        let mut dying = Doomed::start(&site.launch(), "r1", point, &site.store);
        dying.wait_leading().await;
        let _replica = dying
            .aborted_during(async {
                site.request_of_etcd("n1", &uid, &request().0).await;
                let replica = site.launch().start("r2");
                site.answered_of_etcd(&uid, State::Issued).await;
                replica
            })
            .await;
        let record = site.answered_of_etcd(&uid, State::Issued).await;
        assert_eq!(serials(&record).len(), 1, "{point}: it is answered once");
    }
    for point in ["identity.before-revoke", "identity.after-revoke"] {
        let site = Site::start().await;
        site.done(&["pause", "roles"]).await;
        let uid = site.add_manager("n1", 7, "10.0.0.1").await;
        let first = site.leader().await;
        site.request_of_etcd("n1", &uid, &request().0).await;
        let issued = site.answered_of_etcd(&uid, State::Issued).await;
        // The first list is there, so that the next one is that of the revocation.
        site.revoked(&[]).await;
        first.resign().await;
        let mut dying = Doomed::start(&site.launch(), "r1", point, &site.store);
        dying.wait_leading().await;
        let _replica = dying
            .aborted_during(async {
                site.observe("n1", Role::Worker).await;
                let replica = site.launch().start("r2");
                site.revoked(&serials(&issued)).await;
                replica
            })
            .await;
        let list = site.revoked(&serials(&issued)).await;
        assert_eq!(list.revoked.len(), 1, "{point}");
    }
}

/// INV-1: the leader does not know that its term is over, as after a pause.
#[tokio::test]
async fn a_stale_leaders_list_is_refused_at_the_current_revision() {
    let site = Site::start().await;
    let uid = site.add_manager("n1", 7, "10.0.0.1").await;
    let mut leader = site.leader().await;
    site.request_of_etcd("n1", &uid, &request().0).await;
    let issued = site.answered_of_etcd(&uid, State::Issued).await;
    let before = site.revoked(&[]).await;
    for key in site.etcd.keys("/quorate/kubernetes/reconciler/leader/") {
        site.etcd.etcdctl(&["del", &key]);
    }
    site.observe("n1", Role::Worker).await;
    leader.work_ended().await;
    assert_eq!(site.revocation_list().await.unwrap(), before);
    let _next = site.leader().await;
    site.revoked(&serials(&issued)).await;
}
