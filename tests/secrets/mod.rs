//! Secrets at rest: what etcd holds of them, with the real program, a real plugin and a real kube-apiserver.

mod at_rest;
mod foreign;
mod kubernetes;
mod lost;
mod rotation;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::ByteString;
use quorate::secrets::{Keyring, Recipient};
use quorate_dev::csi_plugin::order::Order;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::base::Base;
use crate::support::directory::directory;
use crate::support::quorate::{Launch, TestReplica};
use crate::support::wait::{SOON, eventually};

/// Key files in a directory of their own.
struct KeyFiles(TempDir);

impl KeyFiles {
    fn new() -> Self {
        Self(directory())
    }

    /// A file of keys, the first of which encrypts. Each is 32 times the same byte.
    fn file(&self, keys: &[u8]) -> PathBuf {
        let lines: Vec<String> = keys.iter().map(|key| base64(&[*key; 32])).collect();
        let names: Vec<String> = keys.iter().map(ToString::to_string).collect();
        let path = self.0.path().join(format!("keys-{}", names.join("-")));
        std::fs::write(&path, lines.join("\n")).unwrap();
        path
    }
}

fn flag(file: &Path) -> String {
    format!("--encryption-key-file={}", file.display())
}

fn base64(bytes: &[u8]) -> String {
    let encoded = serde_json::to_value(ByteString(bytes.to_vec())).unwrap();
    encoded.as_str().unwrap().to_owned()
}

/// The id of the key in a file that encrypts.
fn id_of(file: &Path) -> String {
    let keyring = Keyring::read(&[file.to_owned()]).unwrap();
    keyring.first().unwrap().id().to_string()
}

/// A replica with these keys, which leads and has published the first of them.
async fn leading(base: &Base, file: &Path, name: &str) -> TestReplica {
    let mut replica = Launch::on(&base.etcd).flag(flag(file)).start(name);
    replica.wait_leading().await;
    expect_published(base, file).await;
    replica
}

async fn expect_published(base: &Base, file: &Path) {
    let (id, key) = (id_of(file), base.store.keys.encryption_key());
    eventually(SOON, "the key is published", async || {
        let stored = base.read(&key).await.ok_or("there is none")?;
        let published = Recipient::published(&stored.value).ok_or("it is malformed")?;
        match published.id().as_str() == id {
            true => Ok(()),
            false => Err("it is another one"),
        }
    })
    .await;
}

/// Lets the plugin succeed only with this value of `token`.
fn expects(value: &str) -> Order {
    Order::ExpectSecrets(BTreeMap::from([("token".to_owned(), value.to_owned())]))
}

/// The document of `quorate secrets status`, with these further arguments.
async fn status(base: &Base, more: &[&str]) -> Value {
    let args = [&["secrets", "status", "-o", "json"][..], more].concat();
    let shown = base.done(&args).await;
    serde_json::from_str(&shown).unwrap()
}

/// What `quorate secrets status` says of one Secret.
fn of_secret<'s>(status: &'s Value, name: &str) -> &'s Value {
    let mut secrets = status["secrets"].as_array().unwrap().iter();
    let found = secrets.find(|secret| secret["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is not in {status}"))
}
