//! The servers around the cluster: the apiserver with its webhook, and the plugins.

use std::fs;
use std::path::Path;

use data_encoding::BASE64;
use quorate_dev::admission::Admission;
use quorate_dev::apiserver::{self, ApiServer, User};
use quorate_dev::csi_plugin::options::{NodeOptions, Options as PluginOptions};
use quorate_dev::csi_plugin::process::PluginProcess;
use quorate_dev::etcd::Etcd;
use quorate_dev::workspace::Programs;
use serde_json::json;

use super::{agent_names, audit_log, replica_names, token_of};
use crate::Error;
use crate::operator::DRIVER;

/// Each replica is a user of its own, so that the audit says which one wrote.
pub(super) async fn start_apiserver(directory: &Path, etcd: &Etcd) -> Result<(ApiServer, Admission), Error> {
    let policy = directory.join("audit-policy.yaml");
    let text = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n\
                rules:\n- {level: Metadata, verbs: [create, update, patch, delete, deletecollection]}\n- {level: None}\n";
    fs::write(&policy, text).map_err(Error::write(&policy))?;
    let users = replica_names().map(|name| User {
        name: name.to_owned(),
        groups: vec!["system:masters".to_owned()],
        token: token_of(name),
    });
    let options = apiserver::Options {
        etcd_endpoints: etcd.endpoints(),
        users: users.to_vec(),
        flags: vec![
            // As JSON, so that a history can be read.
            "--storage-media-type=application/json".to_owned(),
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", audit_log(directory).display()),
        ],
    };
    let server = ApiServer::start(&directory.join("kubernetes"), &options).await?;
    let admission = Admission::start(&directory.join("admission")).await?;
    let configuration = configuration(&admission);
    let body = Some(("application/json", configuration.as_str()));
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let made = server.request("POST", path, body).await;
    match made {
        Ok(answer) if answer.status == 201 => Ok((server, admission)),
        Ok(answer) => Err(Error::Harness(format!("no webhook: {}", answer.body))),
        Err(error) => Err(Error::Harness(format!("no webhook: {error}"))),
    }
}

/// The apiserver asks the webhook before every write of what replicas write.
fn configuration(admission: &Admission) -> String {
    let rule = json!({
        "apiGroups": ["", "events.k8s.io"], "apiVersions": ["*"], "resources": ["configmaps", "events"],
        "operations": ["CREATE", "UPDATE", "DELETE"],
    });
    let webhook = json!({
        "name": "admission.chaos.quorate.dev",
        "clientConfig": {"url": admission.url, "caBundle": BASE64.encode(admission.authority.as_bytes())},
        "rules": [rule],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "timeoutSeconds": 5,
    });
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "chaos"},
        "webhooks": [webhook],
    });
    configuration.to_string()
}

pub(super) async fn start_plugins(
    directory: &Path,
    programs: &Programs,
) -> Result<(PluginProcess, Vec<PluginProcess>), Error> {
    let home = directory.join("csi");
    let mut options = PluginOptions::in_directory(&home, DRIVER);
    options.offers.list = true;
    options.offers.list_nodes = true;
    let plugin = PluginProcess::start(&programs.quorate_dev, options).await?;
    let mut node_plugins = Vec::new();
    for name in agent_names() {
        let own = home.join(name);
        fs::create_dir_all(&own).map_err(Error::write(&own))?;
        let mut options = PluginOptions::in_directory(&own, DRIVER);
        options.backend = home.join("volumes");
        options.offers.controller = false;
        options.node = Some(NodeOptions::new(&format!("csi-{name}")));
        node_plugins.push(PluginProcess::start(&programs.quorate_dev, options).await?);
    }
    Ok((plugin, node_plugins))
}
