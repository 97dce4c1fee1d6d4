//! What each compare of a transaction requires.

use quorate::etcd::{KeyRange, Revision, Txn, TxnError};

use crate::support::client::{commit, connect, put};
use crate::support::etcd::TestEtcd;

#[tokio::test]
async fn each_compare_holds_for_its_own_state_of_a_key_or_a_range() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let first = put(&client, "/range/key", "1").await.revision;
    let last = put(&client, "/range/key", "2").await.revision;
    let (key, absent) = (b"/range/key", b"/range/absent");
    let (range, empty) = (KeyRange::prefix("/range/"), KeyRange::prefix("/empty/"));
    let cases = [
        (Txn::new().when_absent(absent), Txn::new().when_absent(key)),
        (Txn::new().when_present(key), Txn::new().when_present(absent)),
        (
            Txn::new().when_unchanged(key, last),
            Txn::new().when_unchanged(key, first),
        ),
        (
            Txn::new().when_unchanged(absent, Revision::ABSENT),
            Txn::new().when_unchanged(key, Revision::ABSENT),
        ),
        (
            Txn::new().when_created_at(key, first),
            Txn::new().when_created_at(key, last),
        ),
        (
            Txn::new().when_range_unwritten_since(&range, last),
            Txn::new().when_range_unwritten_since(&range, first),
        ),
        (
            Txn::new().when_range_empty(&empty),
            Txn::new().when_range_empty(&range),
        ),
    ];
    for (holds, refused) in cases {
        let shown = format!("{refused:?}");
        commit(&client, holds.put(b"/written", "x")).await.unwrap();
        let outcome = commit(&client, refused.put(b"/written", "y")).await;
        assert!(
            matches!(outcome, Err(TxnError::Conflict { .. })),
            "{shown}: {outcome:?}"
        );
    }
}
