//! `JoinMember` and `EtcdCertificate`: what a manager's agent calls before it starts etcd.

use std::fs;
use std::time::Duration;

use prost::Message;
use quorate::etcd::{MemberId, Txn};
use quorate::grpc_status;
use quorate::proto::join::Progress;
use quorate::proto::node_certificate::State;
use quorate::proto::{
    EtcdCertificateRequest, EtcdCertificateResponse, Join, JoinMemberRequest, JoinMemberResponse,
    JoinRefused, NodeCertificate, RevocationList, Role, WrongRole,
};
use quorate_dev::ports::free_port;
use rcgen::KeyPair;
use tonic::{Code, Request, Status};

use super::site::{Client, Joined, Key, Member, Serving, Site, in_time};
use crate::support::base::parsed;
use crate::support::etcd::EtcdVersion;
use crate::support::proxy::Network;
use crate::support::quorate::TestReplica;
use crate::support::wait::{SOON, eventually, same};

/// A replica that leads and serves, and the node n1, which is observed as a manager.
struct Manager {
    site: Site,
    replica: TestReplica,
    node: Member,
    own: Client,
}

impl Manager {
    async fn start() -> Self {
        let site = Site::start().await;
        let replica = site.replica().await;
        Self::of(site, replica).await
    }

    async fn of(site: Site, mut replica: TestReplica) -> Self {
        let token = site.token(&["--role", "manager"]).await;
        let mut client = site.client(&mut replica).await;
        let node = site.member(&mut client, "n1", &token).await;
        let own = site.client_of(&mut replica, &node).await;
        eventually(SOON, "it is a manager", async || {
            let status = site.node("n1").await.status.unwrap();
            same(status.role(), Role::Manager)
        })
        .await;
        Self {
            site,
            replica,
            node,
            own,
        }
    }

    /// The same, with a learner on record that has not started.
    async fn joined() -> Self {
        let mut manager = Self::start().await;
        let joined = join(&mut manager.own, &[&free_url()], &[], SOON).await.unwrap();
        assert_eq!(joined.progress(), Progress::Learner, "{joined:?}");
        manager
    }
}

/// A URL on this machine where nothing listens.
fn free_url() -> String {
    format!("http://127.0.0.1:{}", free_port().unwrap())
}

async fn join(
    client: &mut Client,
    peer: &[&str],
    of_clients: &[&str],
    limit: Duration,
) -> Result<JoinMemberResponse, Status> {
    let owned = |urls: &[&str]| urls.iter().map(ToString::to_string).collect();
    let mut request = Request::new(JoinMemberRequest {
        peer_urls: owned(peer),
        client_urls: owned(of_clients),
        no_dial: false,
    });
    request.set_timeout(limit);
    Ok(client.join_member(request).await?.into_inner())
}

async fn certificate(
    client: &mut Client,
    csr: &[u8],
    limit: Duration,
) -> Result<EtcdCertificateResponse, Status> {
    let mut request = Request::new(EtcdCertificateRequest { csr: csr.to_vec() });
    request.set_timeout(limit);
    Ok(client.etcd_certificate(request).await?.into_inner())
}

/// The settings as `quorate join -o env` prints them.
fn environment(answer: &JoinMemberResponse) -> String {
    let settings = answer.settings.iter();
    settings
        .map(|setting| format!("{}={}\n", setting.name, setting.value))
        .collect()
}

async fn stored_join(site: &Site) -> Join {
    let stored = site.read(&site.store.keys.join(&parsed("n1"))).await;
    Join::decode(&*stored.expect("there is a join").value).unwrap()
}

fn rule(refused: &Status) -> String {
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    let why: Option<JoinRefused> = grpc_status::find("quorate.v1.JoinRefused", refused.details());
    why.expect("the refusal is typed").rule
}

fn observed(refused: &Status) -> Role {
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    let why: Option<WrongRole> = grpc_status::find("quorate.v1.WrongRole", refused.details());
    why.expect("the refusal is typed").observed()
}

#[tokio::test]
async fn a_manager_joins_with_the_settings_of_the_answer_and_the_same_call_finds_it_a_voter() {
    let Manager {
        site,
        replica: _replica,
        mut own,
        ..
    } = Manager::start().await;
    let (peer, client) = (free_url(), free_url());
    let begun = join(&mut own, &[&peer], &[&client], SOON).await.unwrap();
    assert_eq!(begun.progress(), Progress::Learner, "{begun:?}");
    assert!(begun.learner && !begun.started);
    assert_eq!(begun.cluster_id, site.store.etcd.cluster_id().unwrap().0);
    let request = stored_join(&site).await.request.unwrap();
    assert_eq!(request.client_urls, [client.as_str()]);
    let (data, log) = (site.path("n1.data"), site.path("n1.log"));
    let _etcd = crate::members::started(
        EtcdVersion::Installed,
        "n1",
        data.as_ref(),
        &environment(&begun),
        log.as_ref(),
    );
    let votes = eventually(SOON, "the member votes", async || {
        // Without client URLs: those on record stay.
        let answer = join(&mut own, &[&peer], &[], SOON).await;
        let answer = answer.map_err(|status| status.to_string())?;
        same(answer.progress(), Progress::Voter).map(|_| answer)
    })
    .await;
    assert_eq!(votes.member_id, begun.member_id);
    assert!(votes.started && !votes.learner);
    let printed = [
        "join",
        "n1",
        "--peer-url",
        &peer,
        "--client-url",
        &client,
        "-o",
        "env",
    ];
    assert_eq!(environment(&votes), site.done(&printed).await);
    assert!(
        !environment(&votes).contains("ETCD_INITIAL_CLUSTER="),
        "{votes:?}"
    );
    let after = stored_join(&site).await.request.unwrap();
    assert_eq!(after.id, request.id, "it was one request all the time");
}

/// INV-13.
#[tokio::test]
async fn who_is_no_manager_is_refused_by_its_role_and_every_other_refusal_by_its_rule() {
    let Joined {
        site,
        replica: _replica,
        mut own,
        ..
    } = Joined::start().await;
    let csr = Key::new().csr;
    let peer = free_url();
    let refused = join(&mut own, &[&peer], &[], SOON).await.unwrap_err();
    assert_eq!(observed(&refused), Role::Worker);
    let refused = certificate(&mut own, &csr, SOON).await.unwrap_err();
    assert_eq!(observed(&refused), Role::Worker);
    assert_eq!(
        site.read(&site.store.keys.join(&parsed("n1"))).await,
        None,
        "nothing was written"
    );

    // Its certificate still says that it is a worker.
    site.done(&["promote", "n1", "--wait", "--timeout=60s"]).await;
    let refused = certificate(&mut own, &csr, SOON).await.unwrap_err();
    assert_eq!(rule(&refused), "NotJoined");
    let taken = site.etcd.members[0].peer_url.clone();
    let refused = join(&mut own, &[&taken], &[], SOON).await.unwrap_err();
    assert_eq!(rule(&refused), "PeerUrlTaken");
    let unknown = "http://no-such-host.invalid:2380";
    let refused = join(&mut own, &[unknown], &[], SOON).await.unwrap_err();
    assert_eq!(rule(&refused), "PeerUnreachable", "the leader's own refusal");
    for urls in [&[][..], &["127.0.0.1:2380"]] {
        let refused = join(&mut own, urls, &[], SOON).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    }
    let refused = certificate(&mut own, b"no request", SOON).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    // A desired worker: its demotion is under way.
    site.done(&["pause", "roles"]).await;
    site.change("n1", |node| {
        node.spec.get_or_insert_default().set_desired_role(Role::Worker);
    })
    .await;
    let refused = join(&mut own, &[&peer], &[], SOON).await.unwrap_err();
    assert_eq!(rule(&refused), "NotAManager");
}

#[tokio::test]
async fn a_join_that_waits_is_answered_before_the_deadline_and_goes_on_with_the_next_call() {
    let Manager {
        site,
        replica: _replica,
        mut own,
        ..
    } = Manager::start().await;
    site.done(&["pause", "roles"]).await;
    let peer = free_url();
    let mut ids = Vec::new();
    for _ in 0..2 {
        let waits = in_time(async || join(&mut own, &[&peer], &[], Duration::from_secs(2)).await).await;
        assert_eq!((waits.progress(), waits.member_id), (Progress::Unspecified, 0));
        assert!(waits.settings.is_empty(), "{waits:?}");
        ids.push(stored_join(&site).await.request.unwrap().id);
    }
    assert_eq!(ids[0], ids[1]);
    // An operator's request takes the place of the one that a call waits for.
    let (third, other) = (free_url(), free_url());
    let urls = [third.as_str()];
    let (refused, ()) = tokio::join!(join(&mut own, &urls, &[], SOON), async {
        eventually(SOON, "the call has written its request", async || {
            let request = stored_join(&site).await.request.unwrap();
            same(&request.peer_urls, &vec![third.clone()]).map(drop)
        })
        .await;
        let command = ["join", "n1", "--peer-url", &other, "--timeout=1s"];
        let _: crate::support::quorate::Finished = site.run(&command).await;
    });
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted, "{refused:?}");
    let urls = [other.as_str()];
    let (joined, _) = tokio::join!(join(&mut own, &urls, &[], SOON), site.done(&["resume", "roles"]));
    assert_eq!(joined.unwrap().progress(), Progress::Learner);
}

/// The read that says who the caller is takes longer than the answer leaves before the deadline.
#[tokio::test]
async fn the_time_of_a_call_counts_from_its_arrival() {
    let (serving, proxy) = Serving::behind_proxy(&[]).await;
    let Manager {
        site,
        replica: _replica,
        mut own,
        ..
    } = Manager::of(serving.site, serving.replica).await;
    site.done(&["pause", "roles"]).await;
    proxy.set(Network::Delays(Duration::from_millis(350)));
    let peer = free_url();
    let waits = in_time(async || join(&mut own, &[&peer], &[], Duration::from_secs(5)).await).await;
    assert_eq!(waits.progress(), Progress::Unspecified, "{waits:?}");
}

#[tokio::test]
async fn each_key_gets_one_certificate_and_the_answer_brings_the_list_of_revoked_ones() {
    let Manager {
        site,
        mut replica,
        node,
        mut own,
    } = Manager::joined().await;
    let key = Key::new();
    let first = certificate(&mut own, &key.csr, SOON).await.unwrap();
    assert_eq!(first.state(), State::Issued, "{first:?}");
    let record = site.read(&site.store.keys.etcd_certificate(&node.uid)).await;
    let record = NodeCertificate::decode(&*record.unwrap().value).unwrap();
    assert_eq!(first.chain, record.chain);
    let authority = fs::read_to_string(format!("{}/current/etcd-ca.crt", site.ca)).unwrap();
    assert_eq!(first.authorities, authority);
    let revocation = first.revocation.clone().unwrap();
    assert!(revocation.number > 0 && !revocation.crl.is_empty());
    // The reply may have been lost, and the agent have made another request of the same key.
    let again = Key::of(KeyPair::from_pem(&key.pair.serialize_pem()).unwrap());
    assert_ne!(again.csr, key.csr);
    assert_eq!(certificate(&mut own, &again.csr, SOON).await.unwrap(), first);
    assert_eq!(certificate(&mut own, &[], SOON).await.unwrap(), first);
    let second = certificate(&mut own, &Key::new().csr, SOON).await.unwrap();
    assert_ne!(second.chain, first.chain);
    // A rotation leads to another certificate, of whatever key.
    site.done(&["certificate", "rotate", "n1", "--etcd"]).await;
    let asked = certificate(&mut own, &[], SOON).await.unwrap();
    assert_eq!((asked.state(), &asked.chain), (State::Rotate, &second.chain));
    let third = Key::new();
    let rotated = certificate(&mut own, &third.csr, SOON).await.unwrap();
    assert_eq!(rotated.state(), State::Issued);

    // The leader leaves the next one pending.
    let (file, away) = (
        format!("{}/current/etcd-ca.key", site.ca),
        site.path("etcd-ca.key"),
    );
    fs::rename(&file, &away).unwrap();
    replica
        .wait_for_log("the etcd authority cannot sign any more")
        .await;
    let fourth = Key::new();
    let waits = in_time(async || certificate(&mut own, &fourth.csr, Duration::from_secs(2)).await).await;
    assert_eq!((waits.state(), &waits.chain), (State::Pending, &rotated.chain));
    fs::rename(&away, &file).unwrap();
    let issued = certificate(&mut own, &fourth.csr, SOON).await.unwrap();
    assert_eq!(issued.state(), State::Issued);
    assert_ne!(issued.chain, rotated.chain);
}

/// The certificates of all managers would end for it.
#[tokio::test]
async fn a_list_of_revoked_certificates_that_cannot_be_read_is_reported_and_stops_no_certificate() {
    let Manager {
        site,
        mut replica,
        mut own,
        ..
    } = Manager::joined().await;
    let key = Key::new();
    let first = certificate(&mut own, &key.csr, SOON).await.unwrap();
    let list = site.store.keys.revocation_list();
    site.put(&list, b"\xff\xff".to_vec()).await;
    replica
        .wait_for_log(
            "no other list of revoked certificates of etcd is made: the list on record cannot be read",
        )
        .await;
    let second = certificate(&mut own, &Key::new().csr, SOON).await.unwrap();
    assert_eq!((second.state(), &second.revocation), (State::Issued, &None));
    assert_ne!(second.chain, first.chain);
    // Whether it was revoked is not known: the same key gets another one.
    let third = Key::new();
    let once = certificate(&mut own, &third.csr, SOON).await.unwrap();
    let twice = certificate(&mut own, &third.csr, SOON).await.unwrap();
    assert_ne!(once.chain, twice.chain);
    site.commit(Txn::new().delete(&list)).await;
    eventually(SOON, "the leader has made another list", async || {
        let answer = certificate(&mut own, &[], SOON).await.unwrap();
        match answer.revocation {
            Some(list) if !list.crl.is_empty() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// INV-13.
#[tokio::test]
async fn a_demoted_manager_is_refused_its_certificates_are_revoked_and_its_member_is_named_as_gone() {
    let Manager {
        site,
        replica: _replica,
        node,
        mut own,
    } = Manager::joined().await;
    let member = stored_join(&site).await.member_id;
    for _ in 0..2 {
        let issued = certificate(&mut own, &Key::new().csr, SOON).await.unwrap();
        assert_eq!(issued.state(), State::Issued);
    }
    site.demoted("n1", &["--wait", "--timeout=60s"]).await;
    let csr = Key::new().csr;
    for refused in [
        join(&mut own, &[&free_url()], &[], SOON).await.unwrap_err(),
        certificate(&mut own, &csr, SOON).await.unwrap_err(),
        certificate(&mut own, &[], SOON).await.unwrap_err(),
    ] {
        assert_eq!(observed(&refused), Role::Worker);
    }
    assert_eq!(stored_join(&site).await.removed_members, [member]);
    let key = site.store.keys.member(MemberId(member));
    assert_eq!(site.read(&key).await, None);
    eventually(SOON, "both certificates are revoked", async || {
        let stored = site.read(&site.store.keys.revocation_list()).await;
        let list = RevocationList::decode(&*stored.unwrap().value).unwrap();
        let of_node = list.revoked.iter().filter(|of| of.node_uid == node.uid);
        same(of_node.count(), 2)
    })
    .await;
}
