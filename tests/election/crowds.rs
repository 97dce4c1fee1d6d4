//! Many candidates: what a change among them costs, and that every change that concerns a candidate reaches it.

use std::time::Instant;

use quorate::etcd::election::{CampaignError, Leader, Leadership, campaign, candidates, observe};
use quorate::etcd::{Etcd, Pulse, Txn};
use quorate::grpc_code::Code;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::support::client::{
    LONG_TTL, commit, config, connect, connect_to, connect_with, lead, pulse, requests_so_far, store,
    until_a_failure,
};
use crate::support::etcd::TestEtcd;
use crate::support::proxy::Proxy;
use crate::support::wait::{SOON, eventually, same};

/// Candidates that stand for election in this order, over one connection.
struct Crowd {
    client: Etcd,
    pulse: Pulse,
    standing: JoinSet<(usize, Result<Leadership, CampaignError>)>,
    withdraws: Vec<CancellationToken>,
    _beating: JoinSet<()>,
}

impl Crowd {
    fn new(client: &Etcd) -> Self {
        let mut beating = JoinSet::new();
        Self {
            client: client.clone(),
            pulse: pulse(&mut beating),
            standing: JoinSet::new(),
            withdraws: Vec::new(),
            _beating: beating,
        }
    }

    /// The names of the candidates, the leader first.
    async fn names(&self) -> Vec<String> {
        let found = candidates(&self.client, &store(&self.client).keys.election()).await;
        found.unwrap().into_iter().map(|one| one.name).collect()
    }

    /// The key of a candidate.
    async fn key(&self, name: usize) -> Vec<u8> {
        let found = candidates(&self.client, &store(&self.client).keys.election()).await;
        let mut found = found.unwrap().into_iter();
        found.find(|one| one.name == name.to_string()).unwrap().key
    }

    /// Adds a candidate behind all others.
    async fn add(&mut self) -> usize {
        let (name, withdraw) = (self.withdraws.len(), CancellationToken::new());
        self.withdraws.push(withdraw.clone());
        let (client, pulse) = (self.client.clone(), self.pulse.clone());
        let before = self.names().await.len();
        self.standing.spawn(async move {
            let election = store(&client).keys.election();
            let won = campaign(&client, &election, &name.to_string(), LONG_TTL, &pulse, &withdraw).await;
            (name, won)
        });
        eventually(SOON, "it stands for election", async || {
            same(self.names().await.len(), before + 1)
        })
        .await;
        name
    }

    /// The next campaign that ends.
    async fn ended(&mut self) -> (usize, Result<Leadership, CampaignError>) {
        let ended = timeout(SOON, self.standing.join_next()).await;
        ended.expect("a campaign ends").unwrap().unwrap()
    }

    fn reads(&self) -> f64 {
        requests_so_far(&self.client, "range", Code::Ok)
    }
}

/// What etcd has sent to its clients.
const SENT: &str = "etcd_network_client_grpc_sent_bytes_total";

/// How many candidates the crowd has. A list of them all has over 20 kB.
const CROWD: usize = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_among_two_hundred_candidates_costs_a_read_or_two_and_a_few_kilobytes() {
    let etcd = TestEtcd::start().await;
    // The test reads over another connection, so that the metrics count the candidates alone.
    let mut crowd = Crowd::new(&connect(&etcd).await);
    let mut config = config(etcd.endpoints());
    config.sync_endpoints = false;
    // A watch that is opened again reads; and so many at once take their time.
    (config.watch_silence, config.request_timeout) = (LONG_TTL, SOON);
    let counted = connect_with(config).await;
    let observer = std::mem::replace(&mut crowd.client, counted.clone());
    let leader = lead(&observer, "leader", &crowd.pulse).await.unwrap();
    let election = store(&observer).keys.election();
    for name in 0..CROWD {
        let (client, pulse, withdraw) = (counted.clone(), crowd.pulse.clone(), CancellationToken::new());
        crowd.withdraws.push(withdraw.clone());
        let election = election.clone();
        crowd.standing.spawn(async move {
            let won = campaign(
                &client,
                &election,
                &format!("{name}"),
                LONG_TTL,
                &pulse,
                &withdraw,
            )
            .await;
            (name, won)
        });
    }
    let standing = async || candidates(&observer, &election).await.unwrap();
    eventually(SOON, "all stand for election", async || {
        same(standing().await.len(), CROWD + 1)
    })
    .await;
    // Each has looked once, and has found a predecessor, which it watches beside its own key.
    eventually(SOON, "each watches two keys", async || {
        let watches = requests_so_far(&counted, "watch", Code::Ok);
        let (reads, wanted) = (crowd.reads(), CROWD as f64);
        same((reads >= wanted, watches >= 2.0 * wanted), (true, true))
    })
    .await;
    let order = standing().await;
    let nth = |place: usize| order[place].name.parse::<usize>().unwrap();
    let sent = async || etcd.members[0].metric(SENT).await.unwrap();
    let (before, sent_before, begun) = (crowd.reads(), sent().await, Instant::now());
    const CHANGES: usize = 10;
    for place in 0..CHANGES {
        let middle = nth(CROWD / 3 + place);
        crowd.withdraws[middle].cancel();
        let (name, ended) = crowd.ended().await;
        assert!(matches!(ended, Err(CampaignError::Withdrawn)));
        assert_eq!(name, middle);
    }
    leader.resign().await;
    let (name, won) = crowd.ended().await;
    assert_eq!(name, nth(1));
    won.unwrap().resign().await;
    let (_, won) = crowd.ended().await;
    let (reads, took) = (crowd.reads() - before, begun.elapsed());
    let bytes = sent().await - sent_before;
    assert!(won.is_ok());
    let changes = (CHANGES + 2) as f64;
    assert!(
        reads <= 2.0 * (changes + 1.0),
        "{reads} reads for {changes} changes among {CROWD} candidates"
    );
    // Beside that each candidate renews its lease once in ten seconds.
    let renewals = 200.0 * CROWD as f64 / 10.0 * (took.as_secs_f64() + 1.0);
    assert!(
        bytes <= 4000.0 * changes + renewals,
        "{bytes} bytes for {changes} changes among {CROWD} candidates in {took:?}"
    );
}

/// Each replica follows who leads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_reads_once_for_each_leader_and_not_for_other_candidates() {
    let etcd = TestEtcd::start().await;
    let mut config = config(etcd.endpoints());
    config.sync_endpoints = false;
    // A watch that is opened again reads.
    config.watch_silence = LONG_TTL;
    let observer = connect_with(config).await;
    let (seen, mut leader) = watch::channel(None);
    let mut observing = JoinSet::new();
    let (client, election) = (observer.clone(), store(&observer).keys.election());
    observing.spawn(async move {
        observe(&client, &election, |name| {
            seen.send_replace(name);
        })
        .await;
    });
    let mut crowd = Crowd::new(&connect(&etcd).await);
    let first = lead(&crowd.client, "first", &crowd.pulse).await.unwrap();
    let is_first = |leader: &Option<Leader>| leader.as_ref().is_some_and(|leader| leader.name == "first");
    let shown = timeout(SOON, leader.wait_for(is_first)).await;
    shown.expect("the first leader is seen").unwrap();

    let reads = || requests_so_far(&observer, "range", Code::Ok);
    let before = reads();
    let next = crowd.add().await;
    for _ in 0..6 {
        let other = crowd.add().await;
        crowd.withdraws[other].cancel();
        assert_eq!(crowd.ended().await.0, other);
    }
    first.resign().await;
    let (name, won) = crowd.ended().await;
    assert_eq!(name, next);
    let name = next.to_string();
    let is_next = |leader: &Option<Leader>| leader.as_ref().is_some_and(|leader| leader.name == name);
    let shown = timeout(SOON, leader.wait_for(is_next)).await;
    shown.expect("the next leader is seen").unwrap();
    let made = reads() - before;
    assert!(made <= 2.0, "{made} reads for one change of the leader");
    won.unwrap().resign().await;
}

/// What happens to the key of the candidate ahead.
type Loss = fn(&TestEtcd, &str, &str);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_candidate_notices_every_way_in_which_the_one_ahead_goes() {
    let etcd = TestEtcd::start().await;
    let ways: [(&str, Loss); 4] = [
        ("its key is deleted", |etcd, key, _| {
            etcd.etcdctl(&["del", key]);
        }),
        ("its lease is revoked", |etcd, _, lease| {
            etcd.etcdctl(&["lease", "revoke", lease]);
        }),
        ("its key is deleted and written again", |etcd, key, _| {
            etcd.etcdctl(&["del", key]);
            etcd.etcdctl(&["put", key, "another"]);
            etcd.etcdctl(&["del", key]);
        }),
        ("its key is written by hand", |etcd, key, _| {
            etcd.etcdctl(&["put", key, "by hand"]);
        }),
    ];
    for (way, lose) in ways {
        eprintln!("{way}");
        let mut crowd = Crowd::new(&connect(&etcd).await);
        let first = lead(&crowd.client, "first", &crowd.pulse).await.unwrap();
        let (ahead, behind) = (crowd.add().await, crowd.add().await);
        let key = String::from_utf8(crowd.key(ahead).await).unwrap();
        let lease = key.rsplit('/').next().unwrap().to_owned();
        lose(&etcd, &key, &lease);
        let (name, lost) = crowd.ended().await;
        assert_eq!(name, ahead, "{way}");
        assert!(matches!(lost, Err(CampaignError::CandidacyLost)), "{way}");
        assert_eq!(
            crowd.names().await,
            ["first".to_owned(), behind.to_string()],
            "{way}"
        );
        first.resign().await;
        let (name, won) = crowd.ended().await;
        assert_eq!(name, behind, "{way}");
        won.unwrap().resign().await;
        assert_eq!(etcd.keys("/q/"), [""; 0], "{way}");
    }
}

/// A put by hand takes a key off its lease: no lease ends it, and it would block the election for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_key_is_written_by_hand_makes_way_and_leaves_no_key() {
    let etcd = TestEtcd::start().await;
    let mut crowd = Crowd::new(&connect(&etcd).await);
    let first = lead(&crowd.client, "first", &crowd.pulse).await.unwrap();
    let next = crowd.add().await;
    let key = candidates(&crowd.client, &store(&crowd.client).keys.election())
        .await
        .unwrap()[0]
        .key
        .clone();
    commit(&crowd.client, Txn::new().put(&key, "by hand"))
        .await
        .unwrap();
    timeout(SOON, first.lost()).await.expect("it sees the put");
    first.resign().await;
    let (name, won) = crowd.ended().await;
    assert_eq!(name, next);
    won.unwrap().resign().await;
    assert_eq!(etcd.keys("/q/"), [""; 0]);
}

/// The requests that delete such a key may fail at first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_key_is_written_by_hand_leaves_none_although_etcd_is_out_of_reach_for_a_moment() {
    let etcd = TestEtcd::start().await;
    let direct = connect(&etcd).await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let client = connect_to(vec![proxy.url()]).await;
    let mut beating = JoinSet::new();
    let pulse = pulse(&mut beating);
    // On a busy machine the second may pass before the key can be deleted.
    for _ in 0..5 {
        let leader = lead(&client, "leader", &pulse).await.unwrap();
        let key = candidates(&direct, &store(&direct).keys.election())
            .await
            .unwrap()[0]
            .key
            .clone();
        commit(&direct, Txn::new().put(&key, "by hand")).await.unwrap();
        timeout(SOON, leader.lost()).await.expect("it sees the put");
        until_a_failure(&client, "range", &proxy, leader.resign()).await;
        if etcd.keys("/q/").is_empty() {
            return;
        }
        commit(&direct, Txn::new().delete(&key)).await.unwrap();
    }
    panic!("each leader left its key");
}
