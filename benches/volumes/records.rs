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

/// The limit of every wait here; only a fault exceeds it. Shorter than [`super::site::LIMIT`], since these waits say more.
const LIMIT: Duration = Duration::from_secs(240);

/// Between two looks at what is waited for.
const POLL: Duration = Duration::from_millis(2);

/// The largest answer in bytes: all volumes of a part come in one.
const LARGEST_ANSWER: usize = 256 << 20;

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

fn is_published(value: &[u8]) -> Result<bool> {
    let status = Publication::decode(value)?.status.unwrap_or_default();
    Ok(status.state() == State::Published)
}

/// What a stored volume or publication says of itself, for people.
fn described(kv: &etcd_client::KeyValue) -> String {
    let is_publication = kv.key().starts_with(b"/quorate/publications/");
    match is_publication {
        true => match Publication::decode(kv.value()) {
            Ok(publication) => {
                let status = publication.status.unwrap_or_default();
                format!(
                    "{:?}, with the conditions {:?}",
                    status.state(),
                    status.conditions
                )
            }
            Err(error) => error.to_string(),
        },
        false => match Volume::decode(kv.value()) {
            Ok(volume) => format!("{:?}", volume.status),
            Err(error) => error.to_string(),
        },
    }
}

impl Records {
    pub async fn connect(endpoint: &str) -> Result<Self> {
        Ok(Self {
            client: Client::connect([endpoint], None).await?,
        })
    }

    pub fn kv(&self) -> KvClient {
        self.client.kv_client().max_decoding_message_size(LARGEST_ANSWER)
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

    /// Requests the end of every publication, confirmed by its node. What the leader wrote stays in its record.
    pub async fn unpublish(&self, volumes: usize) -> Result<()> {
        let mut puts = Vec::new();
        for (key, value) in self.stored("/quorate/publications/", volumes).await? {
            let mut publication = Publication::decode(&*value)?;
            publication
                .status
                .get_or_insert_default()
                .set_state(State::PendingUnpublish);
            puts.push((key, publication.encode_to_vec()));
        }
        self.put_all(puts.into_iter()).await
    }

    /// Marks every volume for deletion. What the leader wrote stays in its record.
    pub async fn delete(&self, volumes: usize) -> Result<()> {
        let mut puts = Vec::new();
        for (key, value) in self.stored("/quorate/volumes/", volumes).await? {
            let mut volume = Volume::decode(&*value)?;
            volume.status.get_or_insert_default().delete_requested = ONCE;
            puts.push((key, volume.encode_to_vec()));
        }
        self.put_all(puts.into_iter()).await
    }

    /// The keys below a prefix, so many of them, with their values.
    async fn stored(&self, prefix: &str, count: usize) -> Result<Vec<(String, Vec<u8>)>> {
        let options = GetOptions::new().with_prefix();
        let stored = self.kv().get(prefix, Some(options)).await?;
        let found = stored.kvs().len();
        ensure!(found == count, "{found} keys below {prefix}, not {count}");
        let pair = |kv: &etcd_client::KeyValue| Ok((kv.key_str()?.to_owned(), kv.value().to_vec()));
        stored.kvs().iter().map(pair).collect()
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

    /// Looks at the last one until it is published, and then at all of them: a look at each would take longer than what is measured.
    pub async fn wait_until_published(&self, volumes: usize) -> Result<()> {
        let begun = Instant::now();
        // The volumes that were not published at the last look.
        let mut open: Vec<usize> = (0..volumes).collect();
        let mut is_read_whole = false;
        while let Some(number) = open.last() {
            let stored = self.kv().get(publication_key(*number), None).await?;
            let is_published = match stored.kvs().first() {
                Some(kv) => is_published(kv.value())?,
                None => false,
            };
            if is_published && is_read_whole {
                open.pop();
            } else if is_published {
                open = self.unpublished(volumes).await?;
                is_read_whole = true;
            } else {
                ensure!(
                    begun.elapsed() < LIMIT,
                    "{} of {volumes} volumes are not published after {LIMIT:?}; {} is {}",
                    open.len(),
                    name(*number),
                    stored.kvs().first().map_or("gone".to_owned(), described)
                );
                tokio::time::sleep(POLL).await;
            }
        }
        Ok(())
    }

    /// The volumes that are not published.
    async fn unpublished(&self, volumes: usize) -> Result<Vec<usize>> {
        let mut open = Vec::new();
        // In the order of their numbers.
        let stored = self.stored("/quorate/publications/", volumes).await?;
        for (number, (_, value)) in stored.iter().enumerate() {
            if !is_published(value)? {
                open.push(number);
            }
        }
        Ok(open)
    }

    pub async fn wait_until_unpublished(&self, volumes: usize) -> Result<()> {
        self.wait_until_one_is_gone(publication_key(volumes - 1)).await?;
        self.wait_until_gone("publications/").await
    }

    pub async fn wait_until_deleted(&self, volumes: usize) -> Result<()> {
        self.wait_until_one_is_gone(volume_key(volumes - 1)).await?;
        self.wait_until_gone("volumes/").await
    }

    /// Looks at one key, which is one of the last to go. To read the first key of a range, etcd walks the whole range, those that were
    /// deleted in it included, and holds up writes meanwhile: over 10,000 keys, looks at that would be a load of their own.
    async fn wait_until_one_is_gone(&self, key: String) -> Result<()> {
        let begun = Instant::now();
        loop {
            let stored = self.kv().get(key.as_str(), None).await?;
            let Some(kv) = stored.kvs().first() else {
                return Ok(());
            };
            ensure!(
                begun.elapsed() < LIMIT,
                "{key} is there after {LIMIT:?}: {}",
                described(kv)
            );
            tokio::time::sleep(POLL).await;
        }
    }

    pub async fn wait_until_gone(&self, below: &str) -> Result<()> {
        let begun = Instant::now();
        loop {
            // Few are left, where there were many: see above.
            let options = GetOptions::new().with_prefix().with_limit(1);
            let stored = self.kv().get(format!("/quorate/{below}"), Some(options)).await?;
            let Some(first) = stored.kvs().first() else {
                return Ok(());
            };
            ensure!(
                begun.elapsed() < LIMIT,
                "{below} still has keys after {LIMIT:?}, as {}: {}",
                first.key_str()?,
                described(first)
            );
            tokio::time::sleep(POLL).await;
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
