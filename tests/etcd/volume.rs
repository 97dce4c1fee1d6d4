//! Large ranges and large transactions.

use std::time::Instant;

use quorate::etcd::{Class, KeyRange, Txn, TxnError};
use quorate::store::Cache;
use tokio::time::timeout;

use crate::support::client::{commit, connect, connect_patiently, put};
use crate::support::etcd::TestEtcd;
use crate::support::wait::SOON;

#[tokio::test]
async fn a_hundred_thousand_keys_are_taken_up_in_pages_at_one_revision() {
    let etcd = TestEtcd::with(1, &["--max-txn-ops=5000"]).await;
    let client = connect_patiently(&etcd).await;
    for transaction in 0..20 {
        let txn = (0..5000).fold(Txn::new(), |txn, index| {
            txn.put(format!("/many/{transaction:02}{index:04}").as_bytes(), "small")
        });
        commit(&client, txn).await.unwrap();
    }
    let mut cache = Cache::new(&client, KeyRange::prefix("/many/"), |kv| kv.mod_revision);
    let begun = Instant::now();
    // Changes keys of pages that are read already and of pages that are not. At the revision of the first page none of these
    // changes has happened.
    let mut pages = 0;
    timeout(SOON, async {
        while !cache.is_complete() {
            cache.next(|_| {}).await;
            pages += 1;
            if pages == 2 {
                let txn = Txn::new()
                    .delete(b"/many/000000")
                    .delete(b"/many/194999")
                    .put(b"/many/last", "");
                commit(&client, txn).await.unwrap();
            }
        }
    })
    .await
    .unwrap();
    println!("100,000 keys in {:?}", begun.elapsed());
    assert!(pages > 5, "one page per step, {pages} steps");
    assert_eq!(cache.len(), 100_000);
    assert!(cache.get(b"/many/194999").is_some() && cache.get(b"/many/last").is_none());
    timeout(SOON, cache.next(|_| {})).await.unwrap();
    assert_eq!(cache.len(), 99_999);
}

#[tokio::test]
async fn values_too_large_for_a_whole_page_are_read_in_smaller_pages() {
    let etcd = TestEtcd::start().await;
    let client = connect_patiently(&etcd).await;
    let megabyte = vec![7; 1 << 20];
    for index in 0..70 {
        put(&client, &format!("/large/{index:02}"), megabyte.clone()).await;
    }
    let (keys, _) = client.list(&KeyRange::prefix("/large/")).await.unwrap();
    assert_eq!(keys.len(), 70);
    assert!(keys.is_sorted_by_key(|kv| kv.key.clone()));
}

#[tokio::test]
async fn the_largest_transaction_is_committed_and_a_larger_one_refused_whole() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let txn = |writes: usize| {
        (0..writes).fold(Txn::new(), |txn, index| {
            let key = format!("/txn/{index}");
            txn.when_absent(key.as_bytes()).put(key.as_bytes(), "")
        })
    };
    let too_many = commit(&client, txn(129)).await;
    assert!(
        matches!(&too_many, Err(TxnError::Failed(error)) if error.class == Class::Refused),
        "{too_many:?}"
    );
    let too_large = commit(&client, Txn::new().put(b"/txn/large", vec![0; 2 << 20])).await;
    assert!(
        matches!(&too_large, Err(TxnError::Failed(error)) if error.class == Class::TooLarge),
        "{too_large:?}"
    );
    let range = KeyRange::prefix("/txn/");
    assert_eq!(client.count(&range).await.unwrap().0, 0, "nothing was written");
    commit(&client, txn(128)).await.unwrap();
    assert_eq!(client.count(&range).await.unwrap().0, 128);
}

#[tokio::test]
async fn a_list_whose_revision_is_compacted_meanwhile_starts_again() {
    let etcd = TestEtcd::with(1, &["--max-txn-ops=5000"]).await;
    let client = connect_patiently(&etcd).await;
    for transaction in 0..3 {
        let txn = (0..5000).fold(Txn::new(), |txn, index| {
            txn.put(format!("/many/{transaction}{index:04}").as_bytes(), "small")
        });
        commit(&client, txn).await.unwrap();
    }
    let mut cache = Cache::new(&client, KeyRange::prefix("/many/"), |_| ());
    cache.next(|_| {}).await;
    assert_eq!(cache.len(), 10_000, "the first page");
    commit(&client, Txn::new().delete(b"/many/00000")).await.unwrap();
    etcd.compact();
    timeout(SOON, async {
        while !cache.is_complete() {
            cache.next(|_| {}).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(cache.len(), 14_999);
    assert!(
        cache.get(b"/many/00000").is_none(),
        "the first attempt's pages are void"
    );
}
