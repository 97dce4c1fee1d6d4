//! What changes while a leader signs, and leaders that die or lose their term meanwhile.

use quorate::proto::Role;
use quorate::proto::node_certificate::State;
use quorate::proto::node_spec::Membership;
use rcgen::PublicKeyData;

use super::held::{BEFORE, Held};
use super::site::{Site, read, request};
use crate::support::doomed::{Doomed, LASTING_LEASES, expire_leases};
use crate::support::quorate::Launch;
use crate::support::wait::{SOON, eventually, same};

/// INV-13.
#[tokio::test]
async fn no_certificate_says_the_role_of_yesterday() {
    for point in BEFORE {
        let held = Held::at(point, &request().0).await;
        // The leader would have the role follow the desired one.
        held.site.run(&["pause", "roles"]).await.expect_done();
        held.site.observe("n1", Role::Manager).await;
        let (site, uid, _replica) = held.refused().await;
        let record = site.answered(&uid, State::Issued).await;
        assert_eq!(record.role(), Role::Manager, "{point}");
        let (subject, _) = read(&record.chain);
        assert!(subject.ends_with("OU=quorate-manager"), "{point}: {subject}");
    }
}

#[tokio::test]
async fn no_key_of_an_older_request_is_certified() {
    for point in BEFORE {
        let held = Held::at(point, &request().0).await;
        let (csr, key) = request();
        held.site.request("n1", &held.uid, &csr).await;
        let (site, uid, _replica) = held.refused().await;
        let record = site.answered(&uid, State::Issued).await;
        let (_, public) = read(&record.chain);
        assert_eq!(public, key.subject_public_key_info(), "{point}");
    }
}

#[tokio::test]
async fn the_refusal_of_an_older_request_is_not_recorded() {
    let held = Held::at("identity.before-store", b"no request").await;
    held.site.request("n1", &held.uid, &request().0).await;
    let (site, uid, _replica) = held.refused().await;
    let record = site.answered(&uid, State::Issued).await;
    assert_eq!(record.reason, "");
}

/// INV-13: the record of the removal alone is enough.
#[tokio::test]
async fn no_certificate_is_recorded_for_a_node_that_was_removed_meanwhile() {
    let held = Held::at("identity.before-store", &request().0).await;
    let removed = held.site.store.keys.removed(&held.uid);
    held.site.put(&removed, Vec::<u8>::new()).await;
    let (site, uid, _replica) = held.refused().await;
    let record = site.answered(&uid, State::Failed).await;
    assert_eq!(
        (record.reason.as_str(), record.chain.as_str()),
        ("NodeRemoved", "")
    );
}

/// INV-13.
#[tokio::test]
async fn no_certificate_is_recorded_for_a_node_that_is_no_longer_accepted() {
    let held = Held::at("identity.before-store", &request().0).await;
    held.site
        .change("n1", |node| {
            node.spec
                .get_or_insert_default()
                .set_membership(Membership::Pending);
        })
        .await;
    let (site, uid, _replica) = held.refused().await;
    assert_eq!(site.record(&uid).await.state(), State::Pending);
    site.run(&["accept", "n1"]).await.expect_done();
    site.answered(&uid, State::Issued).await;
}

#[tokio::test]
async fn no_record_comes_back_after_its_node_was_deleted() {
    let held = Held::at("identity.before-store", &request().0).await;
    held.site
        .run(&["delete", "node", "n1", "--yes"])
        .await
        .expect_done();
    let (site, uid, _replica) = held.refused().await;
    assert_eq!(site.stored(&uid).await, None);
}

/// INV-1: the leader does not know that its term is over, as after a pause, and the node and the record are what it has read.
#[tokio::test]
async fn a_stale_leaders_answer_is_refused_at_the_current_revision() {
    let site = Site::start().await;
    let uid = site.add_node("n1").await;
    let mut leader = site.leader().await;
    for key in site.etcd.keys("/quorate/kubernetes/reconciler/leader/") {
        site.etcd.etcdctl(&["del", &key]);
    }
    site.request("n1", &uid, &request().0).await;
    leader.work_ended().await;
    assert_eq!(leader.metric("quorate_fenced_writes_refused_total"), 1.0);
    assert_eq!(site.record(&uid).await.state(), State::Pending);
    let _next = site.leader().await;
    site.answered(&uid, State::Issued).await;
}

#[tokio::test]
async fn a_leader_that_is_woken_after_its_term_records_nothing() {
    for point in BEFORE {
        // A successor that has answered, and one that cannot: then the record is as the former leader has read it, and nothing
        // but the end of its term refuses its answer.
        for successor_signs in [true, false] {
            woken_after_its_term(point, successor_signs).await;
        }
    }
}

async fn woken_after_its_term(point: &'static str, successor_signs: bool) {
    let Held {
        site,
        uid,
        hold,
        replica: mut former,
        ..
    } = Held::at(point, &request().0).await;
    former.pause();
    let (launch, state) = match successor_signs {
        true => (site.launch(), State::Issued),
        false => (Launch::on(&site.etcd), State::Pending),
    };
    let mut successor = launch.flag(LASTING_LEASES).start("r2");
    expire_leases(&site.store, "r1").await;
    successor.wait_leading().await;
    site.answered(&uid, state).await;
    let recorded = site.stored(&uid).await;
    hold.release();
    former.resume();
    eventually(SOON, "the former leader leads no more", async || {
        same(former.status_of("/leaderz").await, Some(503))
    })
    .await;
    assert_eq!(site.stored(&uid).await, recorded, "{point} {successor_signs}");
    if !successor_signs {
        let _next = site.launch().flag(LASTING_LEASES).start("r3");
        successor.stop().await.unwrap();
        site.answered(&uid, State::Issued).await;
    }
}

#[tokio::test]
async fn a_request_outlives_leaders_that_die_at_every_step() {
    for point in [
        "identity.before-sign",
        "identity.before-store",
        "identity.after-store",
    ] {
        let site = Site::start().await;
        let uid = site.add_node("n1").await;
        let mut dying = Doomed::start(&site.launch(), "r1", point, &site.store);
        dying.wait_leading().await;
        let replica = dying
            .aborted_during(async {
                site.request("n1", &uid, &request().0).await;
                let replica = site.launch().start("r2");
                site.answered(&uid, State::Issued).await;
                replica
            })
            .await;
        let record = site.answered(&uid, State::Issued).await;
        assert_eq!(record.role(), Role::Worker, "{point}");
        let recorded = site.stored(&uid).await;
        let other = site.add_node("n2").await;
        site.request("n2", &other, &request().0).await;
        site.answered(&other, State::Issued).await;
        assert_eq!(site.stored(&uid).await, recorded, "{point}: it is answered once");
        drop(replica);
    }
}

#[tokio::test]
async fn a_certificate_whose_recording_got_no_reply_is_counted() {
    let site = Site::start().await;
    let uid = site.add_node("n1").await;
    let launch = site.launch().flag(LASTING_LEASES);
    let mut replica = launch.flag("--crash-at=identity.reply").start("r1");
    replica.wait_leading().await;
    site.request("n1", &uid, &request().0).await;
    replica
        .wait_for_log("failpoint identity.reply: losing the reply")
        .await;
    replica.wait_for_log("issued a certificate for node n1").await;
    let issued = replica.metric("quorate_node_certificates_issued_total").await;
    assert_eq!(issued, 1.0);
    assert_eq!(site.record(&uid).await.state(), State::Issued);
}
