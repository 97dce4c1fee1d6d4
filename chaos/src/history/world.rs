//! Processes, faults, nodes and commands.

use serde::{Deserialize, Serialize};

use super::{At, Process};

/// A release that a replica may be of, with the minimums of its bundle. Each as in `1.2.3`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaRelease {
    /// The release.
    pub release: String,
    /// The least release of who reconciles that it takes.
    pub min_reconciler: String,
    /// The least release that may serve beside it.
    pub min_apiserver: String,
}

/// How the processes were started, as far as checks need it. In milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The TTL of the election's lease and of the registration's.
    pub lease_ttl: u64,
    /// How late a clock of the harness may be: the proxies of a busy machine see a call after it was sent.
    pub slack: u64,
    /// How late after the last change the watch of the harness may bring it.
    pub watch_slack: u64,
    /// After how long the leader gives a CSI call up.
    #[serde(default = "csi_timeout")]
    pub csi_timeout: u64,
}

/// The limit of a call of a plugin that sets none.
const fn csi_timeout() -> u64 {
    15_000
}

/// A process started, ended or got a signal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lived {
    /// Which.
    pub process: Process,
    /// What.
    pub life: Life,
}

/// What happened to a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Life {
    /// It was started.
    Started(Role),
    /// It got a signal.
    Signalled(Signal),
    /// It ended.
    Exited {
        /// Its exit code; none if a signal ended it.
        code: Option<i32>,
    },
}

/// What a process is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// A replica of the controller.
    Replica {
        /// Its `--node-id`.
        node_id: String,
        /// The release of its bundle.
        release: String,
    },
    /// The agent of a node.
    Agent {
        /// The node.
        node: String,
    },
    /// A member of etcd.
    Etcd {
        /// Its name.
        member: String,
    },
    /// The apiserver.
    Apiserver,
    /// A CSI plugin.
    Plugin {
        /// Its name.
        plugin: String,
    },
    /// A command of an operator, or the workload itself.
    Operator,
}

/// A signal that the harness sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Signal {
    /// SIGKILL.
    Kill,
    /// SIGTERM: it ends by itself.
    Terminate,
    /// SIGSTOP.
    Stop,
    /// SIGCONT.
    Continue,
}

/// A fault. The event is at its begin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// Its number in the run, from 1 on.
    pub number: u32,
    /// Its kind, as in `partition`.
    pub kind: String,
    /// The processes that it is about, by their names without the number of the start.
    pub of: Vec<String>,
    /// When it was over.
    pub ended: At,
}

/// What an agent did on its node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentFact {
    /// The node.
    pub node: String,
    /// What.
    pub word: AgentWord,
}

/// What an agent did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentWord {
    /// A volume is mounted: its name.
    Mounted(String),
    /// A volume is mounted no more: its name.
    Unmounted(String),
    /// It started the etcd of its node.
    EtcdStarted,
    /// It stopped the etcd of its node.
    EtcdStopped,
}

/// A command of an operator. The event is at its start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// Its process, as in the requests that it sent.
    pub by: Process,
    /// The arguments, without those that say where etcd is.
    pub args: Vec<String>,
    /// When it ended.
    pub ended: At,
    /// Its exit code; none if a signal ended it.
    pub code: Option<i32>,
}
