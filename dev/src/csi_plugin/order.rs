//! Orders to a running plugin: faults, readiness, and changes at the backend.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::faults::Fault;

/// An order to a running plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum Order {
    /// Adds a fault.
    Fault(Fault),
    /// Removes every fault, and releases the calls that wait.
    Clear,
    /// Releases the calls that wait; the other faults stay.
    Release,
    /// Sets what Probe answers.
    Ready(bool),
    /// Lets calls about volumes succeed only with these secrets.
    ExpectSecrets(BTreeMap<String, String>),
    /// Publishes a volume without the controller, as a person at the storage console would.
    Attach {
        /// The backend's id of the volume.
        volume: String,
        /// The node's id.
        node: String,
    },
    /// Unpublishes a volume without the controller.
    Detach {
        /// The backend's id of the volume.
        volume: String,
        /// The node's id.
        node: String,
    },
}
