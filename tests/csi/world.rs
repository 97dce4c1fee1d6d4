//! A controller with a plugin: what an operator does with volumes, by the commands.

use std::time::Duration;

use quorate::dev::csi_plugin::server::Options;
use serde_json::Value;

use crate::support::csi::{DRIVER, TestPlugin};
use crate::support::etcd::TestEtcd;
use crate::support::quorate::{Finished, Launch, quorate_with};

/// The nodes there are; the plugin calls them `csi-…`.
pub const NODES: [&str; 3] = ["a", "b", "c"];

/// One prefix of an etcd, and a plugin of its own.
pub struct World<'e> {
    etcd: &'e TestEtcd,
    prefix: String,
    pub plugin: TestPlugin,
}

impl<'e> World<'e> {
    /// With the Plugin, a Secret that each call needs, and all nodes.
    pub async fn start(
        etcd: &'e TestEtcd,
        prefix: &str,
        limit: Duration,
        change: impl FnOnce(&mut Options),
    ) -> Self {
        let world = Self {
            etcd,
            prefix: prefix.to_owned(),
            plugin: TestPlugin::start_with(change).await,
        };
        world
            .apply(&format!(
                "{{apiVersion: quorate.dev/v1, kind: Plugin, metadata: {{name: {DRIVER}}}, \
                 spec: {{endpoint: \"{}\", timeout: {}ms}}}}\n---\n\
                 {{apiVersion: quorate.dev/v1, kind: Secret, metadata: {{name: token}}, stringData: {{token: s3cr3t}}}}\n",
                world.plugin.endpoint(),
                limit.as_millis()
            ))
            .await
            .expect_done();
        for node in NODES {
            world.create_node(node).await.expect_done();
        }
        world
    }

    /// Replicas for this prefix that take over quickly.
    pub fn launch(&self) -> Launch {
        Launch::on(self.etcd)
            .flag("--lease-ttl=2")
            .flag(format!("--prefix={}", self.prefix))
    }

    /// A command.
    pub async fn quorate(&self, args: &[&str]) -> Finished {
        self.with_stdin(args, None).await
    }

    /// `apply -f -`
    pub async fn apply(&self, documents: &str) -> Finished {
        self.with_stdin(&["apply", "-f", "-"], Some(documents)).await
    }

    async fn with_stdin(&self, args: &[&str], stdin: Option<&str>) -> Finished {
        let endpoints = self.etcd.endpoints().join(",");
        let variables = [
            ("QUORATE_ETCD_ENDPOINTS", endpoints.as_str()),
            ("QUORATE_PREFIX", &self.prefix),
        ];
        quorate_with(args, stdin, &variables).await
    }

    /// A node that reports its id.
    pub async fn create_node(&self, node: &str) -> Finished {
        let document = |rest: &str| {
            format!("{{apiVersion: quorate.dev/v1, kind: Node, metadata: {{name: {node}}}, {rest}}}\n")
        };
        let created = self.apply(&document("spec: {desiredRole: worker}")).await;
        if created.code != 0 {
            return created;
        }
        let status = document(&format!(
            "status: {{csi: [{{plugin: {DRIVER}, nodeID: csi-{node}}}]}}"
        ));
        let report = ["apply", "--subresource", "status", "-f", "-"];
        self.with_stdin(&report, Some(&status)).await
    }

    /// A volume of so many MiB, for one node or for many.
    pub async fn create_volume(&self, name: &str, many: bool, mebibytes: u64) -> Finished {
        let (scope, sharing) = if many {
            ("multiNode", "all")
        } else {
            ("singleNode", "none")
        };
        self.apply(&format!(
            "{{apiVersion: quorate.dev/v1, kind: Volume, metadata: {{name: {name}}}, spec: {{driver: {{name: {DRIVER}}}, \
             accessMode: {{scope: {scope}, sharing: {sharing}, mount: {{}}}}, capacity: {{required: {mebibytes}Mi}}, \
             secrets: [{{key: token, secret: token}}]}}}}\n"
        ))
        .await
    }

    /// The objects of a kind, as JSON.
    pub async fn list(&self, plural: &str) -> Vec<Value> {
        let shown = self.quorate(&["get", plural, "-o", "json"]).await.expect_done();
        let list: Value = serde_json::from_str(&shown).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    /// Volume and node of each publication, with its state.
    pub async fn publications(&self) -> Vec<(String, String, String)> {
        let list = self.list("publications").await.into_iter();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        list.map(|one| {
            (
                text(&one["spec"]["volume"]),
                text(&one["metadata"]["name"]),
                text(&one["status"]["state"]),
            )
        })
        .collect()
    }

    /// What is left of volumes anywhere.
    pub async fn remains(&self) -> Result<(), String> {
        let names = |list: Vec<Value>| -> Vec<Value> {
            list.into_iter()
                .map(|one| one["metadata"]["name"].clone())
                .collect()
        };
        let volumes = names(self.list("volumes").await);
        let publications = names(self.list("publications").await);
        let backend = self.plugin.backend().ids().unwrap();
        if volumes.is_empty() && publications.is_empty() && backend.is_empty() {
            return Ok(());
        }
        Err(format!(
            "volumes {volumes:?}, publications {publications:?}, at the backend {backend:?}"
        ))
    }
}
