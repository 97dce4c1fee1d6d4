//! The labels of the metrics, each with its words.

use prometheus_client::encoding::EncodeLabelSet;

/// Labels of `etcd_request_seconds`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Request {
    /// `range`, `txn`, `lease_grant`, …
    pub operation: &'static str,
    /// The name of a gRPC code ([`crate::grpc_code::name`]), `OK` among them.
    pub code: &'static str,
}

/// Labels of `csi_operations_seconds`, named as the sidecars of CSI name theirs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CsiOperation {
    /// The name of the driver: of those with a Plugin object, since no other is called.
    pub driver_name: String,
    /// `/csi.v1.Controller/CreateVolume`, …
    pub method_name: &'static str,
    /// The name of a gRPC code ([`crate::grpc_code::name`]), `OK` among them.
    pub grpc_status_code: &'static str,
}

/// Labels of `control_calls`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ControlCall {
    /// `Join`, `CertificateStatus`, `Renew`, …
    pub method: &'static str,
    /// The name of a gRPC code ([`crate::grpc_code::name`]), `OK` among them.
    pub code: &'static str,
}

/// A single label `driver_name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Driver {
    /// The name of a Plugin.
    pub driver_name: String,
}

impl Driver {
    pub(super) fn of(driver: &str) -> Self {
        Self {
            driver_name: driver.to_owned(),
        }
    }
}

/// A single label `reason`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Reason {
    /// Of a watch `canceled`, `closed`, `compacted`, `error`, `other_history`, `silent`, `too_large`; of a session `aged`,
    /// `authority`, `certificate`, `closed`, `gone`, `lapsed`, `pending`, `refused`, `removed`, `role`, `stale`, `stopped`,
    /// `superseded`, `unreadable`; of drift `NotPublished`, `NotRecorded`
    pub reason: &'static str,
}

/// A single label `result`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Outcome {
    /// From a fixed set of words.
    pub result: &'static str,
}

/// Labels of `volumes_blocked`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Blocked {
    /// `volume`, `publication`
    pub kind: &'static str,
    /// The reason of the condition: the name of a gRPC code, or another word.
    pub reason: String,
}

/// A single label `kind`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Kind {
    /// `service`, `network`; of what is blocked `volume`, `publication`
    pub kind: &'static str,
}

/// Labels of `role_transitions`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RoleChange {
    /// `worker`, `manager`, `none`, `learner`, `voter`
    pub from: &'static str,
    /// The same words.
    pub to: &'static str,
    /// `done`, `refused`, `failed`, `blocked`
    pub result: &'static str,
}

/// Labels of `members`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct MemberKind {
    /// `voter`, `learner`
    pub kind: &'static str,
    /// `healthy`, `unhealthy`
    pub health: &'static str,
}

/// A single label `kind`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct AlarmKind {
    /// `NOSPACE`, `CORRUPT`
    pub kind: &'static str,
}

/// A single label `state`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct State {
    /// Of a volume `creating`, `created`, `deleting`, `malformed`; of a certificate `pending`, `issued`, `failed`, `rotate`,
    /// `malformed`; of a volume on a node `publishing`, `published`, `unpublishing`, `blocked`, `foreign`, `stray`; of a
    /// Secret `encrypted`, `plain`, `kubernetes`, `unreadable`
    pub state: &'static str,
}

/// A single label `days`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Days {
    /// `0`, `1`, `7`, `30`
    pub days: &'static str,
}
