//! `quorate doctor` on sound set-ups, of which it says nothing, and on broken ones, of which it names the cause first. Each is made
//! for real: with real servers, and broken as in the field.
//!
//! | broken | named first | file |
//! | --- | --- | --- |
//! | a file of certificates is missing | `EtcdSettings` | connection |
//! | TLS where etcd speaks none; no certificate; another authority | `EtcdTls` | connection |
//! | a wrong password; none; one where none is asked for | `EtcdLogIn` | connection |
//! | a role without the keys of volumes | `EtcdRights` | connection |
//! | an endpoint is gone, or hangs | `EndpointUnreachable` | connection |
//! | a slow network | `EndpointSlow` | connection |
//! | endpoints of two clusters | `SeveralClusters` | connection |
//! | a client certificate ends soon, or has ended | `EtcdCertificateEnds` | time |
//! | a clock is ahead, or behind | `ClocksDiffer` | time |
//! | an authority ends soon | `AuthorityEnds` | time |
//! | a member is killed, or suspended | `MemberUnreachable` | cluster |
//! | two of three members are killed | `NoQuorum` | cluster |
//! | a member never started | `MemberNotStarted` | cluster |
//! | the endpoint of a learner | `EndpointOfLearner` | cluster |
//! | a member that Quorate does not manage | `MemberUnmanaged` | cluster |
//! | members of 3.4 and 3.5 | `EtcdReleasesDiffer` | cluster |
//! | a quota that is nearly, or quite, used up | `EtcdNearlyFull`, `EtcdNoSpace` | care |
//! | an alarm about corrupt data | `EtcdCorrupt` | care |
//! | no strict check of reconfigurations | `EtcdUnchecked` | care |
//! | a lease too short for etcd's elections | `ShortLease` | care |
//! | a release of etcd with a known fault | `EtcdRelease` | care |
//! | records that cannot be read | `MalformedRecord` | records |
//! | a registration, a node's sign of life, a candidate without a lease | `KeyWithoutLease` | records |
//! | a tombstone | `TombstoneLeft` | records |
//! | a node's certificate ends soon, has ended, has no answer | `CertificateEnds`, `CertificateWaits` | records |
//! | no authorities | `AuthorityUnusable` | records |
//! | a plugin is gone, hangs, is another one | `PluginNotReady` | records |
//! | a join while roles are paused | `RolesPaused` | records |
//! | no replica | `NoLeader` | records |
//! | missing permissions | `KubernetesRights` | kubernetes |
//! | a broken kubeconfig; an API server that hangs | `KubernetesUnreachable` | kubernetes |
//! | an API server that is older than the manifests need | `KubernetesRelease`, a note | kubernetes |
//! | an object that the bundle dropped | `InventoryLeft` | kubernetes |
//! | an upgrade that waits for an older replica | `Degraded` | kubernetes |

mod care;
mod cluster;
mod connection;
mod kubernetes;
mod records;
mod time;

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::clock;
use crate::support::etcd::{EtcdVersion, TestEtcd};
use crate::support::quorate::{Launch, TestReplica, quorate_with};
use crate::support::wait::{SOON, eventually};

/// The exit codes of doctor.
pub const WARNINGS: i32 = 6;
pub const FAULTS: i32 = 7;

/// How doctor is called.
#[derive(Clone)]
pub struct Call {
    flags: Vec<String>,
    /// Of its environment.
    variables: Vec<(&'static str, String)>,
}

/// What doctor says.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub document: Value,
    pub took: Duration,
}

impl Call {
    /// On these endpoints, without Kubernetes.
    pub fn at(endpoints: &str) -> Self {
        Self {
            flags: vec![
                format!("--etcd-endpoints={endpoints}"),
                "--no-kubernetes".to_owned(),
            ],
            variables: Vec::new(),
        }
    }

    /// On this etcd, without Kubernetes.
    pub fn on(etcd: &TestEtcd) -> Self {
        Self::at(&etcd.endpoints_flag())
    }

    /// With one more flag.
    pub fn with(&self, flag: impl Into<String>) -> Self {
        let mut call = self.clone();
        call.flags.push(flag.into());
        call
    }

    /// Without this flag.
    pub fn without(&self, flag: &str) -> Self {
        let mut call = self.clone();
        call.flags.retain(|given| given != flag);
        call
    }

    /// On a machine whose clock is off by this.
    pub fn off_by(mut self, offset: &str) -> Self {
        let variables = clock::variables(offset).into_iter();
        self.variables = variables
            .map(|(name, value)| (name, value.into_string().unwrap()))
            .collect();
        self
    }

    /// Runs it once.
    pub async fn run(&self) -> Said {
        let begun = Instant::now();
        let flags = self.flags.iter().map(String::as_str);
        let args = ["doctor", "--output=json"].into_iter().chain(flags);
        let variables: Vec<(&str, &str)> = self
            .variables
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let finished = quorate_with(args, None, &variables).await;
        Said {
            code: finished.code,
            document: serde_json::from_str(&finished.stdout).unwrap_or_else(|_| panic!("{finished:?}")),
            took: begun.elapsed(),
        }
    }

    /// Runs it until it finds nothing.
    pub async fn finds_nothing(&self) -> Said {
        eventually(SOON, "doctor finds nothing", async || {
            let said = self.run().await;
            match (said.code, said.findings().is_empty()) {
                (0, true) => Ok(said),
                _ => Err(said.shown()),
            }
        })
        .await
    }

    /// Runs it until what it names first is this, of a subject that says this.
    pub async fn names_first(&self, reason: &str, subject: &str) -> Said {
        let what = format!("doctor names {reason} of {subject} first");
        eventually(SOON, &what, async || {
            let said = self.run().await;
            let first = &said.document["findings"][0];
            let subjects = first["subjects"].as_array().into_iter().flatten();
            let mut subjects = subjects.filter_map(Value::as_str);
            match first["reason"] == reason && subjects.any(|of| of.contains(subject)) {
                true => Ok(said),
                false => Err(said.shown()),
            }
        })
        .await
    }
}

impl Said {
    pub fn findings(&self) -> &[Value] {
        self.document["findings"].as_array().map_or(&[], Vec::as_slice)
    }

    /// What is wrong, by the first finding.
    pub fn what(&self) -> &str {
        self.document["findings"][0]["what"].as_str().unwrap_or_default()
    }

    /// What follows from the first finding.
    pub fn consequences(&self) -> String {
        self.document["findings"][0]["consequences"].to_string()
    }

    fn shown(&self) -> String {
        format!("exit code {}: {:#}", self.code, self.document)
    }
}

/// An etcd of a release without a known fault.
pub async fn sound_etcd(members: usize, flags: &[&str]) -> TestEtcd {
    TestEtcd::of(EtcdVersion::Next, members, flags).await
}

/// A leader on this etcd.
pub async fn led(etcd: &TestEtcd) -> TestReplica {
    let mut replica = Launch::on(etcd).start("r1");
    replica.wait_leading().await;
    replica
}
