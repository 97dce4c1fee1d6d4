//! Members of real clusters, each asked for itself.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use quorate::etcd::Etcd;
use quorate::etcd::members::{ChangeFault, Evidence, ListedMember, MemberList, latest_raft_leader};

use crate::support::client::{config, config_of, connect, connect_to, connect_with};
use crate::support::etcd::{PASSWORD, TestEtcd, USER};
use crate::support::proxy::{Network, Proxy};
use crate::support::quorate::quorate_on;
use crate::support::wait::{SOON, eventually, same};

/// Long enough for a healthy member on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(5);

pub fn named<'a>(list: &'a MemberList, name: &str) -> &'a ListedMember {
    let found = list.members.iter().find(|member| member.name == name);
    found.unwrap_or_else(|| panic!("no member {name} in {list:?}"))
}

fn of<'a>(surveys: &'a [Evidence], member: &ListedMember) -> &'a Evidence {
    surveys.iter().find(|survey| survey.member == member.id).unwrap()
}

/// The list, once it has this many members and each has published its name.
pub async fn list(client: &Etcd, size: usize) -> MemberList {
    eventually(SOON, "the member list", async || {
        let list = client.list_members().await.map_err(|error| error.to_string())?;
        let started = list.members.iter().filter(|member| member.is_started());
        same((list.members.len(), started.count()), (size, size)).map(|_| list)
    })
    .await
}

#[tokio::test]
async fn every_member_reports_its_own_status_over_one_kept_connection() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    // A proxy before each, to count connections.
    let mut proxies = Vec::new();
    for index in 0..3 {
        proxies.push(etcd.behind_proxy(index).await);
    }
    let client = connect_to(vec![etcd.endpoints()[0].clone()]).await;
    let list = eventually(SOON, "each member's new address", async || {
        let list = list(&client, 3).await;
        let urls: BTreeSet<_> = list.members.iter().flat_map(|m| m.client_urls.clone()).collect();
        same(urls, proxies.iter().map(Proxy::url).collect()).map(|_| list)
    })
    .await;
    for _ in 0..3 {
        for survey in &client.survey(&list.members, LIMIT).await {
            assert!(survey.is_healthy(), "{survey:?}");
            let status = survey.status.answer().unwrap();
            assert!(status.version.starts_with("3."), "{status:?}");
            assert!(status.db_size >= status.db_in_use && status.db_in_use > 0);
            assert!(!status.learner && status.alarms.is_empty());
            assert!(status.applied > 0 && status.committed > 0, "{status:?}");
        }
    }
    eventually(SOON, "all report the same raft leader", async || {
        let surveys = client.survey(&list.members, LIMIT).await;
        let said = surveys.iter().map(|survey| survey.status.answer()?.raft_leader);
        let leader = latest_raft_leader(&surveys).ok_or("no raft leader".to_owned())?;
        same(said.collect(), vec![Some(leader); 3])
    })
    .await;
    let connections: Vec<_> = proxies.iter().map(Proxy::accepted_connections).collect();
    assert_eq!(connections, [1, 1, 1]);
}

#[tokio::test]
async fn a_black_holed_member_delays_no_other_and_answers_again_afterwards() {
    let mut etcd = TestEtcd::with(2, &[]).await;
    let proxy = etcd.behind_proxy(1).await;
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
            .all(Evidence::is_healthy)
    );
    proxy.set(Network::BlackHole);
    let begun = Instant::now();
    let surveys = client.survey(&list.members, LIMIT).await;
    assert!(begun.elapsed() < 2 * LIMIT, "{:?}", begun.elapsed());
    assert!(of(&surveys, named(&list, "etcd-1")).is_healthy());
    let cut_off = of(&surveys, named(&list, "etcd-2"));
    assert!(
        !cut_off.is_healthy() && cut_off.status.answer().is_none(),
        "{cut_off:?}"
    );
    proxy.set(Network::Passes);
    eventually(SOON, "the member answers again", async || {
        let surveys = client.survey(&list.members, LIMIT).await;
        same(surveys.iter().all(Evidence::is_healthy), true)
    })
    .await;
}

#[tokio::test]
async fn a_member_without_a_quorum_is_not_healthy_and_gives_no_list() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    let client = connect(&etcd).await;
    let list = list(&client, 3).await;
    let left = named(&list, "etcd-3");
    // Its own list may be a little older.
    eventually(SOON, "its own list equals that of the others", async || {
        let own = client
            .own_list_of(left, LIMIT)
            .await
            .map_err(|error| error.to_string())?;
        same((own.answered_by, own.members), (left.id, list.members.clone()))
    })
    .await;
    etcd.members[0].kill().await.unwrap();
    etcd.members[1].kill().await.unwrap();
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
async fn an_answer_of_another_member_proves_nothing() {
    let etcd = TestEtcd::with(2, &[]).await;
    let client = connect(&etcd).await;
    let list = list(&client, 2).await;
    let mut posing = named(&list, "etcd-1").clone();
    posing.client_urls = named(&list, "etcd-2").client_urls.clone();
    let surveys = client.survey(std::slice::from_ref(&posing), LIMIT).await;
    assert!(!surveys[0].is_healthy());
    let said = surveys[0].status.result().unwrap_err().to_string();
    assert!(said.contains("answers at the client URLs of member"), "{said}");
    // Of three addresses, one is another member's and one no member's. The member is found at its own.
    posing.client_urls.push("http://127.0.0.1:1".to_owned());
    posing
        .client_urls
        .extend(named(&list, "etcd-1").client_urls.clone());
    let surveys = client.survey(std::slice::from_ref(&posing), LIMIT).await;
    assert!(surveys[0].is_healthy(), "{surveys:?}");
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
    // Only etcd's root role may change the members.
    let denied = client
        .add_learner(&members[0], &["http://127.0.0.1:1".to_owned()])
        .await;
    assert_eq!(denied.unwrap_err().fault, ChangeFault::Denied);

    let etcd = TestEtcd::with_tls().await;
    let client = connect_with(config_of(&etcd)).await;
    let members = client.list_members().await.unwrap().members;
    let surveys = client.survey(&members, LIMIT).await;
    assert!(surveys[0].is_healthy(), "{surveys:?}");
}

/// What is stored of it would change with each survey otherwise.
#[tokio::test]
async fn a_member_that_hangs_is_reported_in_the_same_words_each_time() {
    const SHORT: Duration = Duration::from_millis(300);
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let mut member = client.list_members().await.unwrap().members.remove(0);
    member.client_urls = vec![proxy.url()];
    assert!(client.survey_one(&member, LIMIT).await.is_healthy());
    proxy.set(Network::BlackHole);
    for _ in 0..3 {
        let survey = client.survey_one(&member, SHORT).await;
        let why = survey.health().map_err(|why| why.to_string());
        assert_eq!(why, Err("no answer within 300ms".to_owned()));
        let leaving = client.survey_leaving(&member, SHORT).await;
        let why = leaving.health().map_err(|why| why.to_string());
        assert_eq!(why, Err("no answer within 300ms".to_owned()));
    }
}

#[tokio::test]
async fn an_alarm_shows_in_the_status() {
    // The smallest quota that etcd accepts is quickly full.
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
        let status = surveys[0].status.result().map_err(|why| why.to_string())?;
        same(status.alarms.is_empty(), false).map(|_| status.alarms.clone())
    })
    .await;
    assert_eq!(
        (alarms[0].member, alarms[0].kind.as_str()),
        (members[0].id, "NOSPACE")
    );
    let status = quorate_on(&etcd, &["status"], "").await.expect_done();
    let shown = format!("NOSPACE of member {}: etcd refuses every write", members[0].id);
    assert!(status.contains(&shown), "{status}");
    let node = "{apiVersion: quorate.dev/v1, kind: Node, metadata: {name: n1}, spec: {desiredRole: worker}}";
    let refused = quorate_on(&etcd, &["apply", "-f", "-"], node)
        .await
        .expect_code(1);
    assert!(refused.contains("then etcdctl alarm disarm"), "{refused}");
    // It serves reads, so it counts towards a quorum.
    assert!(client.survey(&members, LIMIT).await[0].is_healthy());
}
