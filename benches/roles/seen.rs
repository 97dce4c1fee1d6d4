//! Waits for values with a watch.

use anyhow::{Context as _, Result, bail};
use etcd_client::{Client, EventType, WatchOptions};
use prost::Message;
use quorate::proto::join::Progress;
use quorate::proto::{Join, Node, Role};

use super::LIMIT;

/// A watch that is open.
pub struct Seen {
    pub stream: etcd_client::WatchStream,
}

impl Seen {
    pub async fn watch(client: &Client, prefix: &str) -> Result<Self> {
        let options = WatchOptions::new().with_prefix();
        let mut stream = client.watch_client().watch(prefix, Some(options)).await?;
        // etcd confirms that the watch is open.
        stream.message().await?;
        Ok(Self { stream })
    }

    /// Waits for the first value of this key that fulfils the condition.
    async fn value<T>(&mut self, key: &str, mut wanted: impl FnMut(&[u8]) -> Option<T>) -> Result<T> {
        let waiting = async {
            while let Some(message) = self.stream.message().await? {
                for event in message
                    .events()
                    .iter()
                    .filter(|event| event.event_type() == EventType::Put)
                {
                    if let Some(kv) = event.kv().filter(|kv| kv.key() == key.as_bytes())
                        && let Some(value) = wanted(kv.value())
                    {
                        return Ok(value);
                    }
                }
            }
            bail!("the watch ended")
        };
        tokio::time::timeout(LIMIT, waiting)
            .await
            .with_context(|| format!("{key} is not as wanted within {LIMIT:?}"))?
    }

    pub async fn role(&mut self, key: &str, role: Role) -> Result<()> {
        self.value(key, |value| {
            let node = Node::decode(value).ok()?;
            (node.status?.role() == role).then_some(())
        })
        .await
    }

    pub async fn progress(&mut self, key: &str, progress: Progress) -> Result<u64> {
        self.value(key, |value| {
            let join = Join::decode(value).ok()?;
            (join.progress() == progress).then_some(join.member_id)
        })
        .await
    }
}
