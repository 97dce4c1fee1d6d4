//! Units that share transactions stand or fall by themselves.

use std::time::Duration;

use futures::future::join_all;
use quorate::etcd::{Etcd, FencedError, KeyRange, Revision, Txn, TxnError};
use quorate::grpc_code::Code;
use quorate::store::writer::{Proof, Unit, Writer, writer};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::client::{commit, config, connect, connect_with, put, requests};
use crate::support::etcd::TestEtcd;
use crate::support::leader::{Leader, store_on};
use crate::support::proxy::{Network, Proxy};
use crate::support::wait::{SOON, eventually, same};

const ABSENT: Revision = Revision::ABSENT;

type Outcome = Result<Revision, FencedError>;

/// A writer in the term of this leader.
fn writer_of(leader: &mut Leader) -> Writer {
    let (writer, transactions) = writer(&leader.store.etcd, leader.fence());
    leader.work(transactions);
    writer
}

async fn start(etcd: &TestEtcd) -> (Leader, Writer) {
    let mut leader = Leader::elect(&store_on(&etcd.endpoints()).await, "test").await;
    let writer = writer_of(&mut leader);
    (leader, writer)
}

/// Writes all of them at once.
async fn write_all(writer: &Writer, units: Vec<Unit>) -> Vec<Outcome> {
    let writing = join_all(units.into_iter().map(|unit| writer.write(unit)));
    timeout(SOON, writing).await.expect("every unit is answered")
}

fn key(name: &str) -> Vec<u8> {
    format!("/k/{name}").into_bytes()
}

fn create(name: &str) -> Unit {
    Unit::new().put(key(name), ABSENT, b"v".to_vec())
}

async fn revision_of(etcd: &Etcd, name: &str) -> Option<Revision> {
    let (stored, _) = etcd.get(&key(name)).await.unwrap();
    stored.map(|kv| kv.mod_revision)
}

#[tokio::test]
async fn units_that_come_together_share_a_transaction() {
    let etcd = TestEtcd::start().await;
    let (leader, writer) = start(&etcd).await;
    let units = (0..100).map(|number| create(&format!("{number}"))).collect();
    let mut revisions: Vec<Revision> = write_all(&writer, units)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    revisions.dedup();
    assert_eq!(revisions.len(), 1, "{revisions:?}");
    leader.resign().await;
}

/// Each transaction costs etcd an entry of its log and a write of its disk.
#[tokio::test]
async fn units_that_come_while_a_transaction_is_under_way_share_the_next_one() {
    let etcd = TestEtcd::start().await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let mut leader = Leader::elect(&store_on(&etcd.endpoints()).await, "test").await;
    leader.store = store_on(&[proxy.url()]).await;
    let writer = writer_of(&mut leader);
    proxy.set(Network::Delays(Duration::from_millis(200)));
    let mut writing = JoinSet::new();
    for number in 0..20 {
        let writer = writer.clone();
        writing.spawn(async move { writer.write(create(&format!("{number}"))).await });
        // It is sent, and the writer has taken it in.
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
    }
    while let Some(written) = timeout(SOON, writing.join_next()).await.unwrap() {
        written.unwrap().unwrap();
    }
    // The first one went alone. A machine that stops for a moment makes one more of the others.
    let transactions = requests(&leader.store.etcd, "txn", Code::Ok);
    assert!(transactions < 5.0, "{transactions} transactions");
    leader.resign().await;
}

#[tokio::test]
async fn a_refused_unit_delays_none_that_shared_its_transaction() {
    let etcd = TestEtcd::start().await;
    let (leader, writer) = start(&etcd).await;
    let client = &leader.store.etcd;
    let there = put(client, "/k/there", "x").await.revision;
    let units = vec![
        create("a"),
        create("there"),
        create("b").proving(Proof::Empty(KeyRange::prefix("/k/the"))),
        create("c").proving(Proof::Unchanged(key("there"), there)),
    ];
    let outcomes = write_all(&writer, units).await;
    assert!(matches!(
        outcomes[..],
        [
            Ok(_),
            Err(FencedError::Conflict),
            Err(FencedError::Conflict),
            Ok(_)
        ]
    ));
    assert_eq!(revision_of(client, "a").await, outcomes[0].clone().ok());
    assert_eq!(revision_of(client, "there").await, Some(there));
    assert_eq!(revision_of(client, "b").await, None);
    leader.resign().await;
}

#[tokio::test]
async fn what_a_unit_writes_is_written_in_one_revision_or_not_at_all() {
    let etcd = TestEtcd::start().await;
    let (leader, writer) = start(&etcd).await;
    let client = &leader.store.etcd;
    let old = put(client, "/k/old", "x").await.revision;
    let pair = |expected| {
        Unit::new()
            .put(key("new"), ABSENT, b"v".to_vec())
            .delete(key("old"), expected)
    };
    let refused = write_all(&writer, vec![pair(Revision(old.0 - 1)), create("a")]).await;
    assert!(matches!(refused[..], [Err(FencedError::Conflict), Ok(_)]));
    assert_eq!(revision_of(client, "new").await, None);
    assert_eq!(revision_of(client, "old").await, Some(old));

    let written = writer.write(pair(old)).await.unwrap();
    assert_eq!(revision_of(client, "new").await, Some(written));
    assert_eq!(revision_of(client, "old").await, None);
    leader.resign().await;
}

#[tokio::test]
async fn of_two_units_for_one_key_and_of_two_that_prove_each_others_keys_one_is_made() {
    let etcd = TestEtcd::start().await;
    let (leader, writer) = start(&etcd).await;
    let one_is_made = |outcomes: Vec<Outcome>| {
        let one = matches!(
            outcomes[..],
            [Ok(_), Err(FencedError::Conflict)] | [Err(FencedError::Conflict), Ok(_)]
        );
        assert!(one, "{outcomes:?}");
    };
    one_is_made(write_all(&writer, vec![create("a"), create("a")]).await);

    let without = |name: &str| Proof::Unchanged(key(name), ABSENT);
    let crossed = vec![
        create("x").proving(without("y")),
        create("y").proving(without("x")),
    ];
    one_is_made(write_all(&writer, crossed).await);
    leader.resign().await;
}

#[tokio::test]
async fn an_etcd_that_takes_fewer_operations_a_transaction_gets_the_units_one_by_one() {
    let etcd = TestEtcd::with(1, &["--max-txn-ops=10"]).await;
    let (leader, writer) = start(&etcd).await;
    let mut units: Vec<Unit> = (0..30).map(|number| create(&format!("{number}"))).collect();
    let large = |unit: Unit, number: i32| unit.put(key(&format!("large-{number}")), ABSENT, Vec::new());
    units.push((0..20).fold(Unit::new(), large));
    let mut outcomes = write_all(&writer, units).await;
    let last = outcomes.pop().unwrap();
    assert!(matches!(last, Err(FencedError::Failed(_))), "{last:?}");
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    leader.resign().await;
}

#[tokio::test]
async fn a_key_that_exists_keeps_its_lease() {
    let etcd = TestEtcd::start().await;
    let (leader, writer) = start(&etcd).await;
    let client = &leader.store.etcd;
    // The leader's own lease is at hand.
    let (candidates, _) = client.list(&leader.store.keys.candidates()).await.unwrap();
    let lease = candidates[0].lease.unwrap();
    let leased = commit(client, Txn::new().put_leased(&key("a"), "v", lease)).await;
    let unit = Unit::new().put(key("a"), leased.unwrap().revision, b"w".to_vec());
    writer.write(unit).await.unwrap();
    let (stored, _) = client.get(&key("a")).await.unwrap();
    let stored = stored.unwrap();
    assert_eq!((stored.value, stored.lease), (b"w".to_vec(), Some(lease)));
    leader.resign().await;
}

#[tokio::test]
async fn after_the_term_every_unit_is_refused_as_the_leaders_no_longer() {
    let etcd = TestEtcd::start().await;
    let (leader, writer) = start(&etcd).await;
    let client = leader.store.etcd.clone();
    let (candidates, _) = client.list(&leader.store.keys.candidates()).await.unwrap();
    commit(&client, Txn::new().delete(&candidates[0].key))
        .await
        .unwrap();
    let outcomes = write_all(&writer, vec![create("a"), create("b")]).await;
    let lost = |outcome: &Outcome| matches!(outcome, Err(FencedError::LostLeadership(_)));
    assert!(outcomes.iter().all(lost), "{outcomes:?}");
    leader.resign().await;
    let late = writer.write(create("c")).await;
    assert!(lost(&late), "nothing makes transactions any more: {late:?}");
    let (stored, _) = client.list(&KeyRange::prefix("/k/")).await.unwrap();
    assert_eq!(stored, []);
}

#[tokio::test]
async fn without_an_answer_every_unit_is_unknown_and_nothing_is_repeated() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let mut impatient = config(vec![proxy.url()]);
    impatient.sync_endpoints = false;
    impatient.request_timeout = Duration::from_secs(3);
    let mut leader = Leader::elect(&store_on(&etcd.endpoints()).await, "test").await;
    leader.store.etcd = connect_with(impatient).await;
    let writer = writer_of(&mut leader);
    proxy.set(Network::LosesReplies);
    let outcomes = write_all(&writer, vec![create("a"), create("b")]).await;
    let unknown = |outcome: &Outcome| matches!(outcome, Err(FencedError::Unknown(_)));
    assert!(outcomes.iter().all(unknown), "{outcomes:?}");
    let unanswered = requests(&leader.store.etcd, "txn", Code::DeadlineExceeded);
    assert_eq!(unanswered, 1.0, "one transaction");
    eventually(SOON, "both are written", async || {
        let written = (revision_of(&client, "a").await, revision_of(&client, "b").await);
        same(written.0.is_some() && written.0 == written.1, true).map_err(|_| format!("{written:?}"))
    })
    .await;
    leader.resign().await;
}

#[tokio::test]
async fn units_that_etcd_has_no_room_for_are_not_sent_one_by_one() {
    let etcd = TestEtcd::with(1, &["--quota-backend-bytes=100000"]).await;
    let (leader, writer) = start(&etcd).await;
    let client = &leader.store.etcd;
    eventually(SOON, "etcd is full", async || {
        let full = commit(client, Txn::new().put(b"/filler", vec![0; 50_000])).await;
        same(full.is_err(), true)
    })
    .await;
    let refused = || requests(client, "txn", Code::ResourceExhausted);
    let before = refused();
    let outcomes = write_all(&writer, vec![create("a"), create("b")]).await;
    let unknown = |outcome: &Outcome| matches!(outcome, Err(FencedError::Unknown(_)));
    assert!(outcomes.iter().all(unknown), "{outcomes:?}");
    assert_eq!(refused() - before, 1.0, "one transaction");
    leader.resign().await;
}

/// etcd applies what was proposed before its database was full, and then answers that there is no space.
#[tokio::test]
async fn what_fills_etcd_is_not_said_to_be_unwritten_where_it_may_be_written() {
    let etcd = TestEtcd::with(1, &["--quota-backend-bytes=1000000"]).await;
    let client = connect(&etcd).await;
    let write = async |key: String| {
        let written = commit(&client, Txn::new().put(key.as_bytes(), vec![0; 20_000])).await;
        (key, written)
    };
    let (mut unknown, mut written) = (0, 0);
    for round in 0..100 {
        let keys = (0..64).map(|number| format!("/fill/{round}/{number}"));
        for (key, outcome) in join_all(keys.map(write)).await {
            let is_there = client.get(key.as_bytes()).await.unwrap().0.is_some();
            match outcome {
                Ok(_) => assert!(is_there, "{key}"),
                Err(TxnError::Unknown(_)) => {
                    unknown += 1;
                    written += usize::from(is_there);
                }
                Err(error) => assert!(!is_there, "{key} is written: {error}"),
            }
        }
        if unknown > 0 {
            println!("{written} of {unknown} were written");
            return;
        }
    }
    panic!("etcd never ran out of space");
}
