//! Rotations of the authorities, with nodes whose agents the tests play, and replicas that die on the way.

use std::fs;
use std::path::Path;

use prost::Message;
use quorate::identity::AuthorityDigest;
use quorate::proto::node_certificate::State;
use quorate::proto::rotation::Phase;
use quorate::proto::{NodeSession, Roots, Rotation, RotationRequest};

use super::site::{Site, request};
use crate::support::base::parsed;
use crate::support::doomed::Doomed;
use crate::support::quorate::{Finished, Launch};
use crate::support::wait::{QUIET, SOON, eventually, same, stays};

/// Steps of a leader at which it dies: before and after each phase is on record, and each request for another certificate.
const TO_REISSUE: [&str; 4] = [
    "rotation.storing-trust",
    "rotation.stored-trust",
    "rotation.storing-reissue",
    "rotation.stored-reissue",
];
const FROM_REISSUE: [&str; 6] = [
    "rotation.before-ask",
    "rotation.after-ask",
    "rotation.storing-drop",
    "rotation.stored-drop",
    "rotation.storing-done",
    "rotation.stored-done",
];

impl Site {
    async fn rotate(&self, flags: &[&str]) -> Finished {
        let ca = format!("--ca-dir={}", self.ca_dir().display());
        self.run(&[&["ca", "rotate", &ca], flags].concat()).await
    }

    /// The rotation on record.
    async fn rotation(&self) -> Option<Rotation> {
        let stored = self.read(&self.store.keys.rotation()).await?;
        Some(Rotation::decode(&*stored.value).unwrap())
    }

    async fn comes_to(&self, phase: Phase) -> Rotation {
        eventually(SOON, &format!("the phase {phase:?}"), async || {
            let rotation = self.rotation().await.ok_or("there is no rotation")?;
            match rotation.phase() == phase {
                true => Ok(rotation),
                false => Err(format!("{rotation:?}")),
            }
        })
        .await
    }

    /// Waits until this holds the rotation up: kind, name, reason.
    async fn held_up_by(&self, kind: &str, name: &str, reason: &str) {
        eventually(SOON, &format!("{kind} {name} holds it up"), async || {
            let rotation = self.rotation().await.ok_or("there is no rotation")?;
            let is_it = |hold: &quorate::proto::HeldUp| {
                (hold.kind.as_str(), hold.name.as_str(), hold.reason.as_str()) == (kind, name, reason)
            };
            match rotation.waits.iter().any(is_it) {
                true => Ok(()),
                false => Err(format!("{rotation:?}")),
            }
        })
        .await;
    }

    /// Plays the agent of a node until it has a certificate of this authority: it requests another one when it is asked to.
    async fn renews(&self, node: &str, uid: &str, authority: &[u8]) {
        eventually(
            SOON,
            &format!("node {node} has its new certificate"),
            async || {
                let record = self.record(uid).await;
                if record.state() == State::Rotate {
                    self.request(node, uid, &request().0).await;
                }
                let is_new = record.state() == State::Issued && record.authority_sha256 == authority;
                if is_new {
                    Ok(())
                } else {
                    Err(format!("{record:?}"))
                }
            },
        )
        .await;
    }

    /// Writes the session of a node that has proven itself by this authority, as a replica does.
    async fn session(&self, node: &str, uid: &str, authority: &[u8]) {
        let session = NodeSession {
            node_uid: uid.to_owned(),
            session_id: "s".to_owned(),
            authority_sha256: authority.to_vec(),
            ..NodeSession::default()
        };
        self.put(&self.store.keys.alive(&parsed(node)), session.encode_to_vec())
            .await;
    }

    /// Plays the agent until it shows its new certificate.
    async fn follows(&self, node: &str, uid: &str) -> Vec<u8> {
        let rotation = self.comes_to(Phase::Reissue).await;
        let authority = rotation.after.unwrap().node_sha256;
        self.renews(node, uid, &authority).await;
        self.session(node, uid, &authority).await;
        authority
    }
}

#[tokio::test]
async fn a_rotation_that_is_interrupted_before_the_new_authorities_sign_is_carried_on_by_the_next_leader() {
    for point in TO_REISSUE {
        interrupted_at(point).await;
    }
}

#[tokio::test]
async fn a_rotation_that_is_interrupted_while_certificates_are_replaced_is_carried_on_by_the_next_leader() {
    for point in FROM_REISSUE {
        interrupted_at(point).await;
    }
}

async fn interrupted_at(point: &'static str) {
    let site = Site::start().await;
    let uid = site.add_node("n1").await;
    let mut doomed = Doomed::start(&site.launch(), "r1", point, &site.store);
    doomed.wait_leading().await;
    site.request("n1", &uid, &request().0).await;
    let first = site.answered(&uid, State::Issued).await;
    site.rotate(&["--drop-old"]).await.expect_done();

    let replaced = async {
        doomed.aborted().await;
        let mut successor = site.launch().start("r2");
        successor.wait_leading().await;
        successor
    };
    // Its agent knows nothing of that.
    let (_successor, authority) = tokio::join!(replaced, site.follows("n1", &uid));
    assert_ne!(first.authority_sha256, authority, "{point}");
    site.rotate(&["--wait", "--timeout=60s"]).await.expect_done();
    let done = site.comes_to(Phase::Done).await;
    assert_eq!(done.held_up, 0, "{point}: {done:?}");
    assert!(!site.ca_dir().join("next").exists(), "{point}");
    // The authorities that were moved sign.
    site.request("n1", &uid, &request().0).await;
    let record = site.answered(&uid, State::Issued).await;
    assert_eq!(record.authority_sha256, authority, "{point}");
    eventually(SOON, "what replicas have reported is deleted", async || {
        let keys = &site.store.keys;
        let left = [
            site.read(&keys.replica_trust("r1")).await,
            site.read(&keys.replica_trust("r2")).await,
        ];
        same(left.iter().flatten().count(), 0)
    })
    .await;
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[tokio::test]
async fn what_holds_a_rotation_up_is_named_and_it_goes_on_once_that_has_come_along() {
    let site = Site::start().await;
    let uid = site.add_node("n1").await;
    let mut leader = site.launch().start("r1");
    leader.wait_leading().await;
    site.request("n1", &uid, &request().0).await;
    site.answered(&uid, State::Issued).await;
    // A replica with a directory of its own, which only this test fills.
    let other = site.ca_dir().with_file_name("other");
    copy(&site.ca_dir().join("current"), &other.join("current"));
    let mut replica = Launch::on(&site.etcd)
        .flag(format!("--ca-dir={}", other.display()))
        .flag("--control-listen=127.0.0.1:0")
        .start("r2");
    replica.wait_ready().await;

    site.rotate(&[]).await.expect_done();
    site.held_up_by("replica", "r2", "Hindered").await;
    let ca = format!("--ca-dir={}", site.ca_dir().display());
    let waiting = ["ca", "rotate", &ca, "--wait", "--timeout=1s"];
    site.times_out_with(&waiting, "replica r2").await;
    stays(QUIET, "the first phase lasts", async || {
        same(site.rotation().await.unwrap().phase(), Phase::Trust)
    })
    .await;
    copy(&site.ca_dir().join("next"), &other.join("next"));

    let rotation = site.comes_to(Phase::Reissue).await;
    let (before, after) = (rotation.before.unwrap(), rotation.after.unwrap());
    // The agent is down: nothing says that it has the certificate that was signed for it.
    site.renews("n1", &uid, &after.node_sha256).await;
    site.held_up_by("node", "n1", "Down").await;
    site.session("n1", &uid, &before.node_sha256).await;
    site.held_up_by("node", "n1", "ShowsOldCertificate").await;
    let shown = site.run(&["ca", "status"]).await.expect_done();
    assert!(shown.contains("node n1"), "{shown}");
    site.session("n1", &uid, &after.node_sha256).await;
    site.held_up_by("operator", "etcd", "DropUnconfirmed").await;
    eventually(SOON, "the word of the operator alone is missing", async || {
        let shown = site.run(&["ca", "status", "-o", "json"]).await.expect_done();
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        same(
            (shown["phase"].as_str(), shown["heldUp"].as_u64()),
            (Some("reissue"), Some(1)),
        )
        .map(drop)
    })
    .await;

    site.rotate(&["--drop-old", "--wait", "--timeout=60s"])
        .await
        .expect_done();
    site.comes_to(Phase::Done).await;
    let shown = site.run(&["ca", "status"]).await.expect_done();
    assert!(shown.contains("done"), "{shown}");
}

#[tokio::test]
async fn two_rotations_that_are_asked_for_at_once_are_a_conflict_that_names_the_first() {
    let site = Site::start().await;
    let other = site.ca_dir().with_file_name("other");
    copy(&site.ca_dir().join("current"), &other.join("current"));
    site.rotate(&["--drop-old"]).await.expect_done();
    let asked = async || {
        let stored = site.read(&site.store.keys.rotation_request()).await.unwrap();
        RotationRequest::decode(&*stored.value).unwrap()
    };
    let first = asked().await;
    let directory = format!("--ca-dir={}", other.display());
    let refused = site.run(&["ca", "rotate", &directory]).await.expect_code(5);
    let digest = |of: &[u8]| AuthorityDigest(of.try_into().unwrap()).to_string();
    let roots = first.roots.clone().unwrap();
    for named in [digest(&roots.node_sha256), digest(&roots.etcd_sha256)] {
        assert!(refused.contains(&named), "{refused}");
    }
    assert_eq!(asked().await, first);
    // The same one may be asked for again.
    site.rotate(&[]).await.expect_done();
    assert_eq!(asked().await, first);
    // It takes the place of one that was carried out.
    let done = Rotation {
        phase: Phase::Done.into(),
        before: Some(Roots {
            node_sha256: vec![1; 32],
            etcd_sha256: vec![2; 32],
        }),
        after: first.roots,
        ..Rotation::default()
    };
    site.put(&site.store.keys.rotation(), done.encode_to_vec()).await;
    site.run(&["ca", "rotate", &directory]).await.expect_done();
    assert_ne!(asked().await.roots, done.after);
}

/// INV-13: what a record names and the directory does not hold is no authority.
#[tokio::test]
async fn who_writes_to_etcd_brings_in_no_authority_of_their_own() {
    let site = Site::start().await;
    let uid = site.add_node("n1").await;
    let mut leader = site.launch().start("r1");
    leader.wait_leading().await;
    site.request("n1", &uid, &request().0).await;
    site.answered(&uid, State::Issued).await;
    let foreign = |byte: u8| Roots {
        node_sha256: vec![byte; 32],
        etcd_sha256: vec![byte; 32],
    };
    let forged = Rotation {
        phase: Phase::Reissue.into(),
        before: Some(foreign(1)),
        after: Some(foreign(2)),
        ..Rotation::default()
    };
    site.put(&site.store.keys.rotation(), forged.encode_to_vec())
        .await;
    leader
        .wait_for_log("the node authority cannot sign any more")
        .await;
    site.answered(&uid, State::Rotate).await;
    site.request("n1", &uid, &request().0).await;
    stays(QUIET, "nothing is signed", async || {
        same(site.record(&uid).await.state(), State::Pending)
    })
    .await;
}
