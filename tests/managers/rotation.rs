//! The authorities of a cluster are rotated while it is at work: three members, of which a person keeps the first one, and a writer.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use prost::Message;
use quorate::etcd::Config;
use quorate::proto::rotation::Phase;
use quorate::proto::{HeldUp, NodeSession, Rotation};

use super::site::{Manager, Managers};
use super::tls::{Identity, asked};
use crate::support::base::parsed;
use crate::support::client::follow;
use crate::support::etcd::EtcdVersion;
use crate::support::quorate::{Finished, quorate};
use crate::support::wait::{SOON, eventually, same};
use crate::support::writer::Writer;

/// The most that a writer may wait: an election, on a machine that is busy with other tests.
const LONGEST_GAP: Duration = Duration::from_secs(20);

/// Steps at which an agent dies that starts its etcd again.
pub(super) const RESTARTED: [&str; 3] = [
    "manager.restart-trusts",
    "manager.restart-stopped",
    "manager.restart-noted",
];

/// What a person keeps by hand: the first member, and the client certificate of the replica.
struct ByHand {
    member: PathBuf,
    client: PathBuf,
}

impl ByHand {
    fn of(managers: &Managers) -> Self {
        let tls = managers.etcd.tls.clone().unwrap();
        let folder = |file: &Path| file.parent().unwrap().to_owned();
        Self {
            member: folder(&tls.ca),
            client: folder(&tls.client.cert),
        }
    }

    /// Issues new certificates for both, and puts them in place.
    async fn reissue(&self, managers: &Managers) {
        for (holder, folder) in [
            (&["etcd-member", "--host=127.0.0.1"][..], &self.member),
            (&["etcd-client"][..], &self.client),
        ] {
            let (ca, output) = (format!("--ca-dir={}", managers.ca), folder.display().to_string());
            let args = [&["ca", "issue"][..], holder, &[&ca, "-o", &output]].concat();
            quorate(args).await.expect_done();
        }
    }

    /// Has the first member trust the new authority alone, and starts it again.
    async fn drop_old(&self, managers: &mut Managers) {
        let next = Path::new(&managers.ca).join("next/etcd-ca.crt");
        let placed = self.member.join("ca.crt.new");
        fs::copy(next, &placed).unwrap();
        fs::rename(placed, self.member.join("ca.crt")).unwrap();
        let member = &mut managers.etcd_mut().members[0];
        member.stop().await.unwrap();
        member.start().await.unwrap();
    }
}

async fn rotate(managers: &Managers, flags: &[&str]) -> Finished {
    let ca = format!("--ca-dir={}", managers.ca);
    managers.run(&[&["ca", "rotate", &ca], flags].concat()).await
}

async fn rotation(managers: &Managers) -> Option<Rotation> {
    let stored = managers.read(&managers.store.keys.rotation()).await?;
    Some(Rotation::decode(&*stored.value).unwrap())
}

/// Waits until this holds the rotation up: kind, name, reason.
async fn held_up_by(managers: &Managers, wanted: (&str, &str, &str)) {
    eventually(SOON, &format!("{wanted:?} holds it up"), async || {
        let rotation = rotation(managers).await.ok_or("there is no rotation")?;
        let is_it = |hold: &HeldUp| (hold.kind.as_str(), hold.name.as_str(), hold.reason.as_str()) == wanted;
        match rotation.waits.iter().any(is_it) {
            true => Ok(()),
            false => Err(format!("{rotation:?}")),
        }
    })
    .await;
}

/// Does what a person does in a rotation, up to the word that the former authorities may be dropped, and waits until the first member
/// alone has to be started again.
async fn up_to_the_last_member(managers: &Managers, by_hand: &ByHand) {
    held_up_by(managers, ("member", "etcd-1", "MemberShowsOldCertificate")).await;
    held_up_by(managers, ("replica", "c1", "Hindered")).await;
    by_hand.reissue(managers).await;
    held_up_by(managers, ("operator", "etcd", "DropUnconfirmed")).await;
    rotate(managers, &["--drop-old"]).await.expect_done();
    held_up_by(managers, ("member", "etcd-1", "RestartByHand")).await;
}

/// Since when a node is ready without a break.
async fn ready_since(managers: &Managers, name: &str) -> prost_types::Timestamp {
    let key = managers.store.keys.alive(&parsed(name));
    eventually(SOON, &format!("{name} is ready"), async || {
        let stored = managers.read(&key).await.ok_or("it is down")?;
        NodeSession::decode(&*stored.value)
            .unwrap()
            .ready_since
            .ok_or("it is of an earlier release")
    })
    .await
}

/// How often an agent has started its etcd.
async fn starts(manager: &Manager) -> f64 {
    manager.metric("quorate_agent_etcd_starts_total").await
}

#[tokio::test]
async fn authorities_are_rotated_under_load_and_the_former_ones_are_refused_after_that() {
    rotated_under_load(EtcdVersion::Installed).await;
}

#[tokio::test]
async fn authorities_are_rotated_under_load_on_the_next_release_of_etcd() {
    rotated_under_load(EtcdVersion::Next).await;
}

async fn rotated_under_load(version: EtcdVersion) {
    let mut managers = Managers::with_tls(version, &[]).await;
    let n2 = managers.worker("n2").await;
    let n3 = managers.worker("n3").await;
    let _n4 = managers.worker("n4").await;
    managers.voter(&n2).await;
    managers.voter(&n3).await;
    let _following = follow(&managers.store.etcd);
    let by_hand = ByHand::of(&managers);
    // What a client keeps a copy of.
    let old = managers.home().join("old");
    fs::create_dir(&old).unwrap();
    for file in ["client.crt", "client.key"] {
        fs::copy(by_hand.client.join(file), old.join(file)).unwrap();
    }
    let (old_cert, old_key) = (old.join("client.crt"), old.join("client.key"));
    let mut before = Vec::new();
    for name in ["n2", "n3", "n4"] {
        before.push((name, ready_since(&managers, name).await));
    }
    let started = [starts(&n2).await, starts(&n3).await];
    let mut credentials = Config::new(managers.etcd.endpoints());
    credentials.tls = managers.store.etcd.config().tls.clone();
    let writer = Writer::with(credentials).await;

    rotate(&managers, &[]).await.expect_done();
    up_to_the_last_member(&managers, &by_hand).await;
    for (manager, before) in [&n2, &n3].into_iter().zip(started) {
        same(starts(manager).await, before + 1.0).unwrap();
        manager.serves().await;
    }
    by_hand.drop_old(&mut managers).await;
    rotate(&managers, &["--wait", "--timeout=60s"])
        .await
        .expect_done();
    assert_eq!(rotation(&managers).await.unwrap().phase(), Phase::Done);

    let longest = writer.longest_gap().await;
    assert!(longest < LONGEST_GAP, "{longest:?} without a write");
    for (name, since) in before {
        assert_eq!(ready_since(&managers, name).await, since, "{name} was down");
    }
    // The old root opens nothing.
    let ca = Path::new(&managers.ca).join("current/etcd-ca.crt");
    let of_old: Identity<'_> = Some((&old_cert, &old_key));
    let (new_cert, new_key) = (
        by_hand.client.join("client.crt"),
        by_hand.client.join("client.key"),
    );
    let of_new: Identity<'_> = Some((&new_cert, &new_key));
    let first = managers.etcd.members[0].client_url.clone();
    let first: u16 = first.rsplit(':').next().unwrap().parse().unwrap();
    for port in [n2.client, n3.client, first] {
        asked(port, &ca, of_new).await.unwrap();
        asked(port, &ca, of_old).await.unwrap_err();
    }
    managers.writes("after the rotation").await;
    let mut late = managers.agent_with("n5", Some(&managers.token), &[]);
    late.logs("UnknownIssuer").await;
    let token = managers.token_of(&["rotate", "--role=worker"]).await;
    let mut new = managers.agent_with("n6", Some(&token), &[]);
    new.ready().await;
}

#[tokio::test]
async fn a_node_whose_agent_is_gone_holds_a_rotation_up_by_name_and_ends_it_once_it_is_back() {
    let mut managers = Managers::with_tls(EtcdVersion::Installed, &[]).await;
    // Its etcd outlives its agent.
    let mut n2 = managers.worker_with("n2", &[]).await;
    managers.voter(&n2).await;
    let by_hand = ByHand::of(&managers);
    n2.stop().await.unwrap();
    rotate(&managers, &["--drop-old"]).await.expect_done();
    held_up_by(&managers, ("node", "n2", "OldCertificate")).await;
    held_up_by(&managers, ("node", "n2", "OldEtcdCertificate")).await;
    held_up_by(&managers, ("member", "n2", "MemberShowsOldCertificate")).await;
    by_hand.reissue(&managers).await;
    let ca = format!("--ca-dir={}", managers.ca);
    let waiting = ["ca", "rotate", &ca, "--wait", "--timeout=2s"];
    managers.times_out_with(&waiting, "node n2").await;
    managers.relaunch(&mut n2, &[]);
    held_up_by(&managers, ("member", "etcd-1", "RestartByHand")).await;
    by_hand.drop_old(&mut managers).await;
    rotate(&managers, &["--wait", "--timeout=60s"])
        .await
        .expect_done();
    n2.serves().await;
    managers.writes("with both").await;
}

#[tokio::test]
async fn an_agent_that_is_killed_while_it_starts_etcd_again_ends_with_one_that_trusts_the_new_authority() {
    for point in RESTARTED {
        let mut managers = Managers::with_tls(EtcdVersion::Installed, &[]).await;
        let mut n2 = managers.worker_with("n2", &[]).await;
        managers.voter(&n2).await;
        let by_hand = ByHand::of(&managers);
        n2.stop().await.unwrap();
        managers.relaunch(&mut n2, &[&format!("--crash-at={point}")]);
        n2.ready().await;
        rotate(&managers, &[]).await.expect_done();
        held_up_by(&managers, ("member", "etcd-1", "MemberShowsOldCertificate")).await;
        by_hand.reissue(&managers).await;
        rotate(&managers, &["--drop-old"]).await.expect_done();
        let status = n2.ended().await;
        assert_eq!(status.code(), None, "{point}: {}", n2.log());
        assert!(n2.log().contains(&format!("failpoint {point}")), "{}", n2.log());
        managers.relaunch(&mut n2, &[]);
        held_up_by(&managers, ("member", "etcd-1", "RestartByHand")).await;
        by_hand.drop_old(&mut managers).await;
        rotate(&managers, &["--wait", "--timeout=60s"])
            .await
            .expect_done();
        n2.serves().await;
        managers.writes(point).await;
    }
}
