//! What operators write about volumes, written in bulk.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use etcd_client::{Client, DeleteOptions, GetOptions, KvClient, Txn, TxnOp};
use futures::StreamExt as _;
use futures::stream;
use prost::Message as _;
use prost_types::Timestamp;
use quorate::proto::access_mode::{Kind, Mount, Scope, Sharing};
use quorate::proto::publication_status::State;
use quorate::proto::volume_spec::{Availability, Driver};
use quorate::proto::{
    AccessMode, Backend, Capacity, CsiNode, Metadata, Node, NodeStatus, Plugin, PluginSpec, Publication,
    PublicationSpec, PublicationStatus, Volume, VolumeSpec, VolumeStatus,
};

/// The plugin's name.
pub const DRIVER: &str = "bench.csi.quorate.dev";

/// The node of every publication, as etcd and as the plugin know it.
pub const NODE: &str = "n1";
const CSI_NODE: &str = "csi-n1";
const NODE_UID: &str = "1f0c6a1e-6a55-4dc5-9df2-0d70f1d2a6b1";

/// Transactions in flight at once.
const PARALLEL: usize = 8;

/// The limit of every wait here; only a fault exceeds it.
const LIMIT: Duration = Duration::from_secs(600);

const ONCE: Option<Timestamp> = Some(Timestamp {
    seconds: 1_700_000_000,
    nanos: 0,
});

/// The records below the prefix.
pub struct Records {
    client: Client,
}

pub fn name(number: usize) -> String {
    format!("v{number:06}")
}

fn uid(number: usize) -> String {
    format!("7d3f2c10-33aa-4b52-8f6e-{number:012}")
}

fn metadata(name: &str, uid: String) -> Option<Metadata> {
    Some(Metadata {
        name: name.to_owned(),
        uid,
        generation: 1,
        creation_time: ONCE,
        ..Metadata::default()
    })
}

fn volume(number: usize) -> Volume {
    Volume {
        metadata: metadata(&name(number), uid(number)),
        spec: Some(VolumeSpec {
            driver: Some(Driver {
                name: DRIVER.to_owned(),
                ..Driver::default()
            }),
            access_mode: Some(AccessMode {
                scope: Scope::SingleNode.into(),
                sharing: Sharing::None.into(),
                kind: Some(Kind::Mount(Mount::default())),
            }),
            capacity: Some(Capacity {
                required: 1 << 20,
                limit: 0,
            }),
            availability: Availability::Active.into(),
            ..VolumeSpec::default()
        }),
        status: None,
    }
}

fn publication(number: usize, state: State) -> Publication {
    Publication {
        metadata: metadata(NODE, uid(number + 500_000_000)),
        spec: Some(PublicationSpec {
            volume: name(number),
            volume_uid: uid(number),
            node_uid: NODE_UID.to_owned(),
            ..PublicationSpec::default()
        }),
        status: Some(PublicationStatus {
            state: state.into(),
            ..PublicationStatus::default()
        }),
    }
}

fn volume_key(number: usize) -> String {
    format!("/quorate/volumes/{}", name(number))
}

fn publication_key(number: usize) -> String {
    format!("/quorate/publications/{}/{NODE}", name(number))
}

impl Records {
    pub async fn connect(endpoint: &str) -> Result<Self> {
        Ok(Self {
            client: Client::connect([endpoint], None).await?,
        })
    }

    pub fn kv(&self) -> KvClient {
        self.client.kv_client()
    }

    /// The plugin and the node.
    pub async fn put_surroundings(&self, endpoint: &str, concurrency: u32) -> Result<()> {
        let plugin = Plugin {
            metadata: metadata(DRIVER, uid(999_999)),
            spec: Some(PluginSpec {
                endpoint: endpoint.to_owned(),
                concurrency,
                ..PluginSpec::default()
            }),
        };
        let node = Node {
            metadata: metadata(NODE, NODE_UID.to_owned()),
            spec: Some(quorate::proto::NodeSpec::default()),
            status: Some(NodeStatus {
                csi: vec![CsiNode {
                    plugin: DRIVER.to_owned(),
                    node_id: CSI_NODE.to_owned(),
                    ..CsiNode::default()
                }],
                ..NodeStatus::default()
            }),
        };
        let puts = [
            (format!("/quorate/plugins/{DRIVER}"), plugin.encode_to_vec()),
            (format!("/quorate/nodes/{NODE}"), node.encode_to_vec()),
        ];
        self.put_all(puts.into_iter()).await
    }

    /// Writes new volumes, each with a request to publish it.
    pub async fn create_and_publish(&self, volumes: usize) -> Result<()> {
        let puts = (0..volumes).flat_map(|number| {
            let publication = publication(number, State::PendingPublish);
            [
                (volume_key(number), volume(number).encode_to_vec()),
                (publication_key(number), publication.encode_to_vec()),
            ]
        });
        self.put_all(puts).await
    }

    /// Requests the end of every publication, confirmed by its node.
    pub async fn unpublish(&self, volumes: usize) -> Result<()> {
        let puts = (0..volumes).map(|number| {
            let mut publication = publication(number, State::PendingUnpublish);
            if let Some(status) = &mut publication.status {
                status.csi_node_id = CSI_NODE.to_owned();
            }
            (publication_key(number), publication.encode_to_vec())
        });
        self.put_all(puts).await
    }

    /// Marks every volume for deletion. What the leader wrote stays in its record.
    pub async fn delete(&self, volumes: usize) -> Result<()> {
        let options = GetOptions::new().with_prefix();
        let stored = self.kv().get("/quorate/volumes/", Some(options)).await?;
        ensure!(
            stored.kvs().len() == volumes,
            "{} volumes are there",
            stored.kvs().len()
        );
        let mut puts = Vec::new();
        for kv in stored.kvs() {
            let mut volume = Volume::decode(kv.value())?;
            volume.status.get_or_insert_default().delete_requested = ONCE;
            puts.push((kv.key_str()?.to_owned(), volume.encode_to_vec()));
        }
        self.put_all(puts.into_iter()).await
    }

    /// Writes settled volumes, each published, that were made at this endpoint.
    pub async fn fill_settled(&self, volumes: usize, endpoint: &str) -> Result<()> {
        let puts = (0..volumes).flat_map(|number| {
            let mut settled = volume(number);
            settled.status = Some(VolumeStatus {
                volume_id: format!("vol-{}", uid(number)),
                context: [(
                    "path".to_owned(),
                    format!("/srv/volumes/vol-{}/data", uid(number)),
                )]
                .into(),
                capacity_bytes: 1 << 20,
                fulfilled_bytes: 1 << 20,
                backend: Some(Backend {
                    endpoint: endpoint.to_owned(),
                    publishes: true,
                    ..Backend::default()
                }),
                ..VolumeStatus::default()
            });
            let mut published = publication(number, State::Published);
            if let Some(status) = &mut published.status {
                status.csi_node_id = CSI_NODE.to_owned();
            }
            [
                (volume_key(number), settled.encode_to_vec()),
                (publication_key(number), published.encode_to_vec()),
            ]
        });
        self.put_all(puts).await
    }

    /// Writes a marked volume that was never created: a leader's first step needs nothing but etcd.
    pub async fn put_one_to_drop(&self) -> Result<()> {
        let mut marked = volume(888_888);
        marked.status.get_or_insert_default().delete_requested = ONCE;
        self.put_all([(volume_key(888_888), marked.encode_to_vec())].into_iter())
            .await
    }

    pub async fn wait_until_dropped(&self) -> Result<()> {
        self.wait_until_gone(&format!("volumes/{}", name(888_888))).await
    }

    pub async fn wait_until_published(&self, volumes: usize) -> Result<()> {
        let begun = Instant::now();
        // The volumes that were not published at the last look.
        let mut open: Vec<usize> = (0..volumes).collect();
        while let Some(number) = open.last() {
            let stored = self.kv().get(publication_key(*number), None).await?;
            let state = match stored.kvs().first() {
                Some(kv) => Publication::decode(kv.value())?
                    .status
                    .unwrap_or_default()
                    .state(),
                None => State::Unspecified,
            };
            if state == State::Published {
                open.pop();
            } else {
                ensure!(
                    begun.elapsed() < LIMIT,
                    "{} is not published after {LIMIT:?}",
                    name(*number)
                );
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        Ok(())
    }

    pub async fn wait_until_gone(&self, below: &str) -> Result<()> {
        let begun = Instant::now();
        loop {
            // One key is read, not all of them counted: etcd counts by walking.
            let options = GetOptions::new().with_prefix().with_keys_only().with_limit(1);
            let stored = self.kv().get(format!("/quorate/{below}"), Some(options)).await?;
            if stored.kvs().is_empty() {
                return Ok(());
            }
            ensure!(begun.elapsed() < LIMIT, "{below} still has keys after {LIMIT:?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Everything below the prefix.
    pub async fn clear(&self) -> Result<()> {
        let options = DeleteOptions::new().with_prefix();
        self.kv().delete("/quorate/", Some(options)).await?;
        Ok(())
    }

    async fn put_all(&self, puts: impl Iterator<Item = (String, Vec<u8>)>) -> Result<()> {
        let puts: Vec<TxnOp> = puts.map(|(key, value)| TxnOp::put(key, value, None)).collect();
        let commits = puts.chunks(128).map(|puts| {
            let mut kv = self.kv();
            async move { kv.txn(Txn::new().and_then(puts)).await }
        });
        let mut commits = stream::iter(commits).buffer_unordered(PARALLEL);
        while let Some(committed) = commits.next().await {
            committed?;
        }
        Ok(())
    }
}
