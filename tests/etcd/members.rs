//! Members of real clusters, each asked by itself; the list, and changes of it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use quorate::dev::etcd::Member;
use quorate::etcd::members::{Fault, List, Listed, Survey, most_committed, raft_leader};
use quorate::etcd::{Etcd, MemberId};

use crate::support::client::{config, connect, connect_to, connect_with, metric, put};
use crate::support::etcd::{PASSWORD, TestEtcd, USER};
use crate::support::proxy::{Network, Proxy};
use crate::support::wait::{SOON, eventually, same};

/// Long enough for a healthy member on a busy machine.
const LIMIT: Duration = Duration::from_secs(5);

fn named<'a>(list: &'a List, name: &str) -> &'a Listed {
    let found = list.members.iter().find(|member| member.name == name);
    found.unwrap_or_else(|| panic!("no member {name} in {list:?}"))
}

fn of<'a>(surveys: &'a [Survey], member: &Listed) -> &'a Survey {
    surveys.iter().find(|survey| survey.id == member.id).unwrap()
}

/// The list, once every member in it has published its name.
async fn list(client: &Etcd, size: usize) -> List {
    eventually(SOON, "the member list", async || {
        let list = client.list_members().await.map_err(|error| error.to_string())?;
        let started = list.members.iter().filter(|member| member.is_started());
        same((list.members.len(), started.count()), (size, size)).map(|_| list)
    })
    .await
}

/// The raft leader and another voter.
async fn leader_and_other(client: &Etcd, list: &List) -> (Listed, Listed) {
    let leader = eventually(SOON, "a raft leader", async || {
        raft_leader(&client.survey(&list.members, LIMIT).await).ok_or("none")
    })
    .await;
    let other = list.voters().find(|member| member.id != leader).unwrap();
    (list.member(leader).unwrap().clone(), other.clone())
}

/// What `--initial-cluster` is for a member of this name that is listed by its peer URL.
fn initial_cluster(list: &List, joining: &Member) -> String {
    let entry = |member: &Listed| {
        let name = if member.is_started() {
            &member.name
        } else {
            &joining.name
        };
        format!("{name}={}", member.peer_urls[0])
    };
    list.members.iter().map(entry).collect::<Vec<_>>().join(",")
}

/// Tries a change until it is not refused for the quorum: etcd counts a member only 5 s after it connected.
async fn once_settled<T>(
    what: &str,
    mut change: impl AsyncFnMut() -> Result<T, quorate::etcd::members::ChangeError>,
) -> T {
    eventually(SOON, what, async || change().await).await
}

#[tokio::test]
async fn every_member_tells_of_itself_over_one_connection_that_is_kept() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    // A proxy before each, to count connections.
    let mut proxies = Vec::new();
    for member in &mut etcd.members {
        let proxy = Proxy::in_front_of(&member.client_url);
        member.stop().await.unwrap();
        member.advertise(&proxy.url());
        proxies.push(proxy);
        member.start().await.unwrap();
    }
    let client = connect_to(vec![etcd.endpoints()[0].clone()]).await;
    let list = eventually(SOON, "each member's new address", async || {
        let list = list(&client, 3).await;
        let urls: BTreeSet<_> = list.members.iter().flat_map(|m| m.client_urls.clone()).collect();
        same(urls, proxies.iter().map(Proxy::url).collect()).map(|_| list)
    })
    .await;
    for _ in 0..3 {
        let surveys = client.survey(&list.members, LIMIT).await;
        for survey in &surveys {
            assert!(survey.is_healthy(), "{survey:?}");
            let status = survey.status.as_ref().unwrap();
            assert!(status.version.starts_with("3."), "{status:?}");
            assert!(status.db_size >= status.db_in_use && status.db_in_use > 0);
            assert!(!status.learner && status.alarms.is_empty());
            assert!(status.applied > 0 && status.committed <= most_committed(&surveys));
            assert_eq!(status.raft_leader, raft_leader(&surveys));
        }
    }
    let connections: Vec<_> = proxies.iter().map(Proxy::accepted_connections).collect();
    assert_eq!(connections, [1, 1, 1]);
}

#[tokio::test]
async fn a_member_that_is_black_holed_delays_no_other_and_is_met_anew_afterwards() {
    let mut etcd = TestEtcd::with(2, &[]).await;
    let proxy = Proxy::in_front_of(&etcd.members[1].client_url);
    etcd.members[1].stop().await.unwrap();
    etcd.members[1].advertise(&proxy.url());
    etcd.members[1].start().await.unwrap();
    let client = connect_to(vec![etcd.endpoints()[0].clone()]).await;
    let list = eventually(SOON, "the proxy's address", async || {
        let list = list(&client, 2).await;
        same(named(&list, "etcd-2").client_urls.clone(), vec![proxy.url()]).map(|_| list)
    })
    .await;
    assert!(
        client
            .survey(&list.members, LIMIT)
            .await
            .iter()
            .all(Survey::is_healthy)
    );
    proxy.set(Network::BlackHole);
    let (limit, begun) = (Duration::from_secs(1), Instant::now());
    let surveys = client.survey(&list.members, limit).await;
    assert!(begun.elapsed() < 4 * limit, "{:?}", begun.elapsed());
    assert!(of(&surveys, named(&list, "etcd-1")).is_healthy());
    let cut_off = of(&surveys, named(&list, "etcd-2"));
    assert!(!cut_off.is_healthy() && cut_off.status.is_err(), "{cut_off:?}");
    proxy.set(Network::Passes);
    eventually(SOON, "the member answers again", async || {
        let surveys = client.survey(&list.members, LIMIT).await;
        same(surveys.iter().all(Survey::is_healthy), true)
    })
    .await;
}

#[tokio::test]
async fn a_member_without_a_quorum_is_not_healthy_and_gives_no_list() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    let client = connect(&etcd).await;
    let list = list(&client, 3).await;
    etcd.members[0].kill().await.unwrap();
    etcd.members[1].kill().await.unwrap();
    let left = named(&list, "etcd-3");
    let surveys = client.survey(&list.members, Duration::from_secs(1)).await;
    assert!(surveys.iter().all(|survey| !survey.is_healthy()), "{surveys:?}");
    assert!(client.list_members().await.is_err());
    assert!(client.list_through(left, LIMIT).await.is_err());
    etcd.members[0].launch().unwrap();
    etcd.members[1].launch().unwrap();
    eventually(SOON, "all are healthy again", async || {
        let surveys = client.survey(&list.members, LIMIT).await;
        same(surveys.iter().filter(|survey| survey.is_healthy()).count(), 3)
    })
    .await;
}

#[tokio::test]
async fn whoever_answers_at_a_members_address_in_its_place_proves_nothing() {
    let etcd = TestEtcd::with(2, &[]).await;
    let client = connect(&etcd).await;
    let list = list(&client, 2).await;
    let mut posing = named(&list, "etcd-1").clone();
    posing.client_urls = named(&list, "etcd-2").client_urls.clone();
    let surveys = client.survey(std::slice::from_ref(&posing), LIMIT).await;
    assert!(!surveys[0].is_healthy());
    let said = surveys[0].status.as_ref().unwrap_err().to_string();
    assert!(said.contains("answers at the client URLs of member"), "{said}");
    // Of several addresses, one of which is somebody else's and one of nobody, its own is found.
    posing.client_urls.push("http://127.0.0.1:1".to_owned());
    posing
        .client_urls
        .extend(named(&list, "etcd-1").client_urls.clone());
    let surveys = client.survey(std::slice::from_ref(&posing), LIMIT).await;
    assert!(surveys[0].is_healthy(), "{surveys:?}");
}

#[tokio::test]
async fn a_learner_is_added_refused_until_it_is_in_sync_promoted_and_removed() {
    let mut etcd = TestEtcd::start().await;
    let client = connect_with(config(etcd.endpoints())).await;
    let first = list(&client, 1).await.members.remove(0);
    let (client_url, peer_url) = {
        let second = etcd.add().unwrap();
        (second.client_url.clone(), second.peer_url.clone())
    };
    let urls = vec![peer_url];
    let added = client.add_learner(&first, &urls).await.unwrap();
    assert!(added.learner && !added.is_started() && added.has_peer_urls(&urls));
    // Done twice is done once.
    let again = client.add_learner(&first, &urls).await.unwrap_err();
    assert_eq!(again.fault, Fault::PeerUrlExists, "{again}");
    let third = vec!["http://127.0.0.1:1".to_owned()];
    let third = client.add_learner(&first, &third).await.unwrap_err();
    assert_eq!(third.fault, Fault::TooManyLearners, "{third}");
    let bad = client
        .add_learner(&first, &["nonsense".to_owned()])
        .await
        .unwrap_err();
    assert_eq!(bad.fault, Fault::BadUrls, "{bad}");
    // It has never started: nothing to ask, nothing to promote.
    let surveys = client.survey(std::slice::from_ref(&added), LIMIT).await;
    assert!(!surveys[0].is_healthy());
    let early = client.promote_learner(&first, added.id).await.unwrap_err();
    assert_eq!(early.fault, Fault::LearnerNotReady, "{early}");

    let listed = client.list_members().await.unwrap();
    let joining = etcd.members.last_mut().unwrap();
    joining.join(&initial_cluster(&listed, joining)).unwrap();
    let listed = list(&client, 2).await;
    let second = listed.member(added.id).unwrap().clone();
    assert!(second.learner && second.client_urls == [client_url]);
    eventually(SOON, "a healthy learner", async || {
        let surveys = client.survey(&listed.members, LIMIT).await;
        same(surveys.iter().all(Survey::is_healthy), true)
    })
    .await;
    once_settled("promoted", async || {
        client.promote_learner(&first, second.id).await
    })
    .await;
    let twice = client.promote_learner(&first, second.id).await.unwrap_err();
    assert_eq!(twice.fault, Fault::NotALearner, "{twice}");
    let listed = client.list_members().await.unwrap();
    assert_eq!(listed.voters().count(), 2);
    // Every member that stays has the same list, through itself.
    for member in &listed.members {
        let list = client.list_through(member, LIMIT).await.unwrap();
        assert_eq!((list.answered_by, list.voters().count()), (member.id, 2));
        // What it has itself is at least as new as what it read before.
        assert_eq!(client.own_list_of(member, LIMIT).await.unwrap(), list);
    }
    let (leader, other) = leader_and_other(&client, &listed).await;
    let refused = client.move_leadership(&other, leader.id).await.unwrap_err();
    assert_eq!(refused.fault, Fault::NotLeader, "{refused}");
    let refused = client.move_leadership(&leader, MemberId(1)).await.unwrap_err();
    assert_eq!(refused.fault, Fault::BadTransferee, "{refused}");
    let moved_urls = vec!["http://127.0.0.1:1".to_owned()];
    let unknown = client.update_peer_urls(&leader, MemberId(1), &moved_urls).await;
    assert_eq!(unknown.unwrap_err().fault, Fault::MemberNotFound);
    let itself = client.remove_member(&other, &other).await.unwrap_err();
    assert_eq!(itself.fault, Fault::Refused, "{itself}");
    once_settled("removed", async || client.remove_member(&leader, &other).await).await;
    let gone = client.remove_member(&leader, &other).await.unwrap_err();
    assert_eq!(gone.fault, Fault::MemberNotFound, "{gone}");
    assert_eq!(client.list_members().await.unwrap().members.len(), 1);
}

#[tokio::test]
async fn a_voter_gets_other_peer_urls() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let only = list(&client, 1).await.members[0].clone();
    let urls = vec!["http://127.0.0.1:1".to_owned()];
    client.update_peer_urls(&only, only.id, &urls).await.unwrap();
    let listed = client.list_members().await.unwrap();
    assert!(listed.members[0].has_peer_urls(&urls), "{listed:?}");
    assert_eq!(listed.members[0].id, only.id);
}

#[tokio::test]
async fn nothing_is_asked_of_a_victim_and_its_endpoint_leaves_before_it_goes() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    let client = connect(&etcd).await;
    let listed = list(&client, 3).await;
    let (leader, victim) = leader_and_other(&client, &listed).await;
    assert!(
        client
            .survey(&listed.members, LIMIT)
            .await
            .iter()
            .all(Survey::is_healthy)
    );
    once_settled("removed", async || client.remove_member(&leader, &victim).await).await;
    assert!(!client.live_endpoints().contains(&victim.client_urls[0]));
    // Asked by the old list, as a reader that has not noticed yet would: it is not bothered.
    let asked = metric(
        &client,
        r#"quorate_etcd_request_seconds_count{operation="status",code="OK"}"#,
    );
    let surveys = client.survey(std::slice::from_ref(&victim), LIMIT).await;
    let said = surveys[0].health.as_ref().unwrap_err().to_string();
    assert!(said.contains("its removal is under way"), "{said}");
    assert_eq!(
        metric(
            &client,
            r#"quorate_etcd_request_seconds_count{operation="status",code="OK"}"#
        ),
        asked
    );
    let gone = etcd
        .members
        .iter_mut()
        .find(|member| member.name == victim.name)
        .unwrap();
    eventually(SOON, "the removed member ends", async || {
        same(gone.has_ended(), true)
    })
    .await;
    let said = std::fs::read_to_string(gone.log_file()).unwrap();
    assert!(!said.contains("panic"), "{said}");
    // An endpoint that refuses connections would fail one of these.
    for value in 0..20 {
        put(&client, "/m", value.to_string()).await;
    }
}

#[tokio::test]
async fn a_removal_that_etcd_refuses_takes_the_member_back() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    let client = connect_with(config(etcd.endpoints())).await;
    let listed = list(&client, 3).await;
    let (leader, victim) = leader_and_other(&client, &listed).await;
    let third = listed
        .members
        .iter()
        .find(|member| member.id != leader.id && member.id != victim.id)
        .unwrap();
    let down = etcd
        .members
        .iter_mut()
        .find(|member| member.name == third.name)
        .unwrap();
    down.kill().await.unwrap();
    // Of the two voters that would be left one is down.
    let refused = eventually(SOON, "etcd notices", async || {
        match client.remove_member(&leader, &victim).await {
            Err(refused) if refused.fault == Fault::QuorumAtRisk => Ok(refused),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_ne!(refused.fault, Fault::Unknown);
    let surveys = client.survey(&[leader, victim], LIMIT).await;
    assert!(surveys.iter().all(Survey::is_healthy), "{surveys:?}");
}

#[tokio::test]
async fn leadership_moves_to_the_member_that_is_named() {
    let etcd = TestEtcd::with(3, &[]).await;
    let client = connect(&etcd).await;
    let listed = list(&client, 3).await;
    let (leader, other) = leader_and_other(&client, &listed).await;
    client.move_leadership(&leader, other.id).await.unwrap();
    eventually(SOON, "the new leader", async || {
        let surveys = client.survey(&listed.members, LIMIT).await;
        same(raft_leader(&surveys), Some(other.id))
    })
    .await;
}

#[tokio::test]
async fn the_reply_to_a_change_that_is_lost_leaves_its_outcome_unknown() {
    let mut etcd = TestEtcd::start().await;
    let proxy = Proxy::in_front_of(&etcd.members[0].client_url);
    etcd.members[0].stop().await.unwrap();
    etcd.members[0].advertise(&proxy.url());
    etcd.members[0].start().await.unwrap();
    let client = connect_to(etcd.endpoints()).await;
    let only = eventually(SOON, "the proxy's address", async || {
        let only = list(&client, 1).await.members[0].clone();
        same(only.client_urls.clone(), vec![proxy.url()]).map(|_| only)
    })
    .await;
    assert!(client.survey(std::slice::from_ref(&only), LIMIT).await[0].is_healthy());
    proxy.set(Network::LosesReplies);
    let urls = vec!["http://127.0.0.1:1".to_owned()];
    let lost = client.add_learner(&only, &urls).await.unwrap_err();
    assert_eq!(lost.fault, Fault::Unknown, "{lost}");
    // It was made all the same; the list tells.
    let listed = client.list_members().await.unwrap();
    let learner = listed.members.iter().find(|member| member.learner).unwrap();
    assert!(learner.has_peer_urls(&urls));
    let lost = client.remove_member(&only, learner).await.unwrap_err();
    assert_eq!(lost.fault, Fault::Unknown, "{lost}");
    assert_eq!(client.list_members().await.unwrap().members.len(), 1);
}

#[tokio::test]
async fn members_behind_passwords_and_tls_are_asked_with_the_credentials_of_the_connection() {
    let etcd = TestEtcd::with_password("/q", 300).await;
    let file = etcd.directory().join("password");
    std::fs::write(&file, PASSWORD).unwrap();
    let mut with_password = config(etcd.endpoints());
    with_password.user = Some((USER.to_owned(), file));
    let client = connect_with(with_password).await;
    let members = client.list_members().await.unwrap().members;
    let surveys = client.survey(&members, LIMIT).await;
    assert!(surveys[0].is_healthy(), "{surveys:?}");
    // Changes are for etcd's root role.
    let denied = client
        .add_learner(&members[0], &["http://127.0.0.1:1".to_owned()])
        .await;
    assert_eq!(denied.unwrap_err().fault, Fault::Denied);

    let etcd = TestEtcd::with_tls().await;
    let tls = etcd.tls.as_ref().unwrap();
    let mut with_tls = config(etcd.endpoints());
    with_tls.tls.ca = Some(tls.ca.clone());
    with_tls.tls.identity = Some((tls.client.cert.clone(), tls.client.key.clone()));
    let client = connect_with(with_tls).await;
    let members = client.list_members().await.unwrap().members;
    let surveys = client.survey(&members, LIMIT).await;
    assert!(surveys[0].is_healthy(), "{surveys:?}");
}

#[tokio::test]
async fn an_alarm_shows_in_the_status() {
    // The least quota that etcd takes is filled at once.
    let etcd = TestEtcd::with(1, &["--quota-backend-bytes=100000"]).await;
    let client = connect(&etcd).await;
    for value in 0..40 {
        let filled = etcd.try_etcdctl(&["put", &format!("/fill/{value}"), &"x".repeat(10_000)]);
        if filled.is_err() {
            break;
        }
    }
    let members = client.list_members().await.unwrap().members;
    let alarms = eventually(SOON, "the alarm", async || {
        let surveys = client.survey(&members, LIMIT).await;
        let status = surveys[0].status.clone().map_err(|error| error.to_string())?;
        same(status.alarms.is_empty(), false).map(|_| status.alarms)
    })
    .await;
    assert_eq!(
        (alarms[0].member, alarms[0].kind.as_str()),
        (members[0].id, "NOSPACE")
    );
    // It reads, so it counts towards a quorum.
    assert!(client.survey(&members, LIMIT).await[0].is_healthy());
}
