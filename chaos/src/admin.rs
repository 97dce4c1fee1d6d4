//! What an administrator of etcd asks it for. Etcd may be broken: each request is tried at every member, and given up in time.

use std::time::Duration;

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client, Compare, CompareOp, Error, Txn, TxnOp};
use prost::Message;
use quorate::proto::{self, Node};
use tokio::time::{sleep, timeout};

use crate::watch::client;

/// How long a member may take.
const LIMIT: Duration = Duration::from_secs(3);

/// How often the end of a fault is tried: without it nothing settles.
const PERSISTENCE: usize = 40;

/// The first answer of a member.
async fn ask<T, F>(endpoints: &[String], request: impl Fn(Client) -> F) -> Option<T>
where
    F: Future<Output = Result<T, Error>>,
{
    for endpoint in endpoints {
        let asking = async { request(client(endpoint).await?).await };
        if let Ok(Ok(answer)) = timeout(LIMIT, asking).await {
            return Some(answer);
        }
    }
    None
}

/// The revision of the store.
pub async fn revision(endpoints: Vec<String>) -> Option<i64> {
    let read = ask(
        &endpoints,
        |mut client| async move { client.get("/", None).await },
    );
    let header = read.await?.take_header();
    header.map(|header| header.revision())
}

/// Forgets what is older than this revision.
pub async fn compact(endpoints: Vec<String>, revision: i64) {
    ask(&endpoints, |mut client| async move {
        client.compact(revision, None).await
    })
    .await;
}

/// Defragments one member.
pub async fn defragment(endpoint: String) {
    ask(&[endpoint], |mut client| async move { client.defragment().await }).await;
}

/// Raises the alarm by which etcd takes no writes.
pub async fn raise_no_space(endpoints: Vec<String>) {
    ask(&endpoints, |mut client| async move {
        client
            .alarm(AlarmAction::Activate, AlarmType::Nospace, None)
            .await
    })
    .await;
}

/// Writes something that is no record of Quorate's.
pub async fn put_garbage(endpoints: Vec<String>, key: String) {
    ask(&endpoints, |mut client| {
        let key = key.clone();
        async move { client.put(key, [0xff, 0x00, 0xff], None).await }
    })
    .await;
}

/// Deletes it again.
pub async fn delete(endpoints: Vec<String>, key: String) {
    for _ in 0..PERSISTENCE {
        let deleted = ask(&endpoints, |mut client| {
            let key = key.clone();
            async move { client.delete(key, None).await }
        });
        if deleted.await.is_some() {
            return;
        }
        sleep(Duration::from_millis(500)).await;
    }
}

/// Writes that the desired role of a node is worker, unless the node changes meanwhile; whether it is written.
pub async fn write_worker(endpoints: &[String], node: &str) -> bool {
    let key = format!("/quorate/nodes/{node}");
    let written = ask(endpoints, |mut client| {
        let key = key.clone();
        async move {
            let read = client.get(key.clone(), None).await?;
            let stored = read.kvs().first();
            let decoded = stored.map(|kv| (kv.mod_revision(), Node::decode(kv.value())));
            let Some((revision, Ok(mut node))) = decoded else {
                return Ok(false);
            };
            node.spec
                .get_or_insert_default()
                .set_desired_role(proto::Role::Worker);
            let unchanged = Compare::mod_revision(key.clone(), CompareOp::Equal, revision);
            let put = TxnOp::put(key, node.encode_to_vec(), None);
            let txn = Txn::new().when([unchanged]).and_then([put]);
            Ok(client.txn(txn).await?.succeeded())
        }
    });
    written.await == Some(true)
}

/// Clears the alarm, at every member for which it was raised.
pub async fn clear_no_space(endpoints: Vec<String>) {
    for _ in 0..PERSISTENCE {
        let cleared = ask(&endpoints, |mut client| async move {
            let raised = client.alarm(AlarmAction::Get, AlarmType::Nospace, None).await?;
            for alarm in raised.alarms() {
                let mut of = AlarmOptions::new();
                of.with_member(alarm.member_id());
                client
                    .alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(of))
                    .await?;
            }
            Ok(raised.alarms().is_empty())
        });
        if cleared.await == Some(true) {
            return;
        }
        sleep(Duration::from_millis(500)).await;
    }
}
