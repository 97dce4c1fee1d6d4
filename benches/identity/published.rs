//! From the publication of a volume to its path on the node.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use etcd_client::Client as EtcdClient;
use prost::Message;
use quorate::csi::{CsiNodeId, NodeSession, Plugin, PublishVolume, Secrets, Session, VolumeOnNode};
use quorate::metrics::Metrics;
use quorate::proto::publication_status::State;
use quorate::proto::{Metadata, Node, Publication, PublicationSpec, PublicationStatus, Volume};
use quorate_dev::agent::{self, Agent};
use quorate_dev::csi_plugin::options::{NodeOptions, Options};
use quorate_dev::csi_plugin::process::PluginProcess;
use quorate_dev::workspace::programs;
use tokio::process::Command;
use tokio::time::sleep;

use super::Scale;
use super::cluster::Cluster;
use super::csi;
use super::measure::{Samples, Table, Unit};
use super::servers::{LIMIT, wait_for};

const DRIVER: &str = "bench.csi.quorate.dev";
const NODE: &str = "n1";
const CSI_NODE: &str = "csi-n1";

/// Between two looks at the path of a volume.
const LOOK: Duration = Duration::from_millis(1);

pub async fn measure(scale: Scale) -> Result<()> {
    let cluster = Cluster::start(1).await?;
    let home = cluster.directory.path();
    let mut options = Options::in_directory(&home.join("csi"), DRIVER);
    options.node = Some(NodeOptions::new(CSI_NODE));
    let plugin = PluginProcess::start(&programs()?.quorate_dev, options).await?;
    let mut agent = Agent::start(
        &home.join("agents"),
        agent::Options {
            binary: programs()?.quorate,
            name: NODE.to_owned(),
            servers: cluster.servers.clone(),
            token_file: Some(cluster.token_file.clone()),
            flags: vec![format!("--csi-node={DRIVER}={}", plugin.endpoint())],
            env: Vec::new(),
        },
    )?;
    agent.wait_ready(LIMIT).await?;
    let records = Records {
        etcd: cluster.etcd_client().await?,
    };
    let node_uid = records.node_uid().await?;
    apply(&cluster, &plugin, scale.published).await?;
    let raw = Raw::connect(&plugin, home.join("raw")).await?;

    let (mut through, mut alone) = (Samples::default(), Samples::default());
    eprintln!("{} volumes published one after the other", scale.published);
    for number in 0..scale.published {
        let volume = name(number);
        let volume_uid = records.created(&volume).await?;
        let path = agent.state.join("volumes").join(&volume);
        let begun = Instant::now();
        records.publish(&volume, &volume_uid, &node_uid).await?;
        while std::fs::metadata(&path).is_err() {
            ensure!(begun.elapsed() < LIMIT, "{} is not there", path.display());
            sleep(LOOK).await;
        }
        through.push_time(begun.elapsed());
        alone.push_time(raw.publish(number).await?);
    }
    let mut table = Table::new("A volume: from its publication to its path on the node");
    table.row(
        "ControllerPublish, NodeStage, NodePublish: the plugin's calls alone",
        &alone,
        Unit::Millis,
        "",
    );
    table.row("publication written → path there", &through, Unit::Millis, "");
    table.row(
        "the latter over the former",
        &through.per(&alone),
        Unit::Times,
        "",
    );
    table.note(
        "The plugin makes links, so that its own part is as short as it can be: what a mount takes is the same on both sides.",
    );
    println!("{table}");
    Ok(())
}

fn name(number: usize) -> String {
    format!("v{number:03}")
}

/// Applies the plugin and so many volumes.
async fn apply(cluster: &Cluster, plugin: &PluginProcess, volumes: usize) -> Result<()> {
    let object = |kind: &str, name: &str, spec: &str| {
        format!("apiVersion: quorate.dev/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n---\n")
    };
    let spec = format!("{{endpoint: \"{}\"}}", plugin.endpoint());
    let mut documents = object("Plugin", DRIVER, &spec);
    let spec = format!(
        "{{driver: {{name: {DRIVER}}}, accessMode: {{scope: singleNode, sharing: none, mount: {{}}}}, \
         capacity: {{required: 1Mi}}}}"
    );
    documents.extend((0..volumes).map(|number| object("Volume", &name(number), &spec)));
    let file = cluster.directory.path().join("objects.yaml");
    std::fs::write(&file, documents)?;
    let mut command = Command::new(&programs()?.quorate);
    command
        .args(["apply", "-f"])
        .arg(&file)
        .env("QUORATE_ETCD_ENDPOINTS", cluster.etcd.endpoint())
        .kill_on_drop(true);
    let done = command.output().await?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "quorate apply: {said}");
    Ok(())
}

/// What is stored about the node and its volumes.
struct Records {
    etcd: EtcdClient,
}

impl Records {
    async fn read<M: Message + Default>(&self, key: &str) -> Result<Option<M>> {
        let answer = self.etcd.kv_client().get(key, None).await?;
        let stored = answer.kvs().first().map(|kv| M::decode(kv.value()));
        Ok(stored.transpose()?)
    }

    /// Waits until the node has reported its plugin; the uid of the node.
    async fn node_uid(&self) -> Result<String> {
        wait_for("the node has reported its plugin", async || {
            let node: Option<Node> = self.read(&format!("/quorate/nodes/{NODE}")).await?;
            let node = node.unwrap_or_default();
            let has_reported = !node.status.unwrap_or_default().csi.is_empty();
            Ok(node
                .metadata
                .filter(|_| has_reported)
                .map(|metadata| metadata.uid))
        })
        .await
    }

    /// Waits until a volume is created; the uid of the volume.
    async fn created(&self, volume: &str) -> Result<String> {
        wait_for("the volume is created", async || {
            let record: Option<Volume> = self.read(&format!("/quorate/volumes/{volume}")).await?;
            let record = record.context("the volume was applied")?;
            let is_created = !record.status.unwrap_or_default().volume_id.is_empty();
            Ok(record
                .metadata
                .filter(|_| is_created)
                .map(|metadata| metadata.uid))
        })
        .await
    }

    /// Writes what `quorate publish` writes.
    async fn publish(&self, volume: &str, volume_uid: &str, node_uid: &str) -> Result<()> {
        let publication = Publication {
            metadata: Some(Metadata::new(NODE, uuid::Uuid::new_v4(), jiff::Timestamp::now())),
            spec: Some(PublicationSpec {
                volume: volume.to_owned(),
                volume_uid: volume_uid.to_owned(),
                node_uid: node_uid.to_owned(),
                ..PublicationSpec::default()
            }),
            status: Some(PublicationStatus {
                state: State::PendingPublish.into(),
                ..PublicationStatus::default()
            }),
        };
        let key = format!("/quorate/publications/{volume}/{NODE}");
        let mut kv = self.etcd.kv_client();
        kv.put(key, publication.encode_to_vec(), None).await?;
        Ok(())
    }
}

/// The plugin without Quorate around it.
struct Raw {
    controller: Arc<Session>,
    node: Arc<NodeSession>,
    directory: PathBuf,
}

impl Raw {
    async fn connect(plugin: &PluginProcess, directory: PathBuf) -> Result<Self> {
        let endpoint = || plugin.endpoint().clone();
        let controller = Plugin::new(DRIVER, endpoint(), LIMIT, Metrics::new("0.0.0"));
        let node = Plugin::on_node(DRIVER, endpoint(), LIMIT, Metrics::new("0.0.0"));
        Ok(Self {
            controller: controller.session().await?,
            node: node.session().await?,
            directory,
        })
    }

    /// Creates a volume and publishes it; how long its publication takes.
    async fn publish(&self, number: usize) -> Result<Duration> {
        let create = csi::create(format!("raw-{number}"))?;
        let none = Secrets::none();
        let created = self.controller.create_volume(&create, &none).await?;
        let on_node = |path: &str| self.directory.join(number.to_string()).join(path);
        std::fs::create_dir_all(on_node("staging"))?;
        let publish = PublishVolume {
            volume: created.id.clone(),
            node: CsiNodeId::new(CSI_NODE)?,
            capability: create.capability.clone(),
            read_only: false,
            context: created.context.clone(),
        };
        let begun = Instant::now();
        let publish_context = self.controller.publish_volume(&publish, &none).await?;
        let volume = VolumeOnNode {
            volume: created.id,
            capability: create.capability,
            read_only: false,
            volume_context: created.context,
            publish_context,
            staging: on_node("staging"),
            target: on_node("target"),
        };
        self.node.stage(&volume, &none).await?;
        self.node.publish(&volume, &none).await?;
        ensure!(volume.target.exists(), "the volume is not there");
        Ok(begun.elapsed())
    }
}
