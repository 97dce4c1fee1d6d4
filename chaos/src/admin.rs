//! What an administrator of etcd asks it for. Etcd may be broken: each request is tried at every member, and given up in time.

use std::time::Duration;

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client, Error};
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
