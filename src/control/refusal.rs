//! The answers to calls that are refused. Their codes are part of the API: `control.proto` lists them.

use std::fmt::Display;

use tonic::{Code, Status};
use tracing::debug;

use crate::etcd;
use crate::grpc_status::{detail, encode};
use crate::proto::Removed;

/// The caller may not: it shows no certificate, a foreign one, one that is not valid now.
pub fn denied(why: impl Into<String>) -> Status {
    Status::permission_denied(why)
}

/// The node joined, and no operator has accepted it, or one has withdrawn that.
pub fn not_accepted() -> Status {
    denied("an operator has yet to accept the node")
}

/// The node was removed. The detail lets its agent tell that from every other refusal.
pub fn removed(uid: &str) -> Status {
    let why = "the node was removed; one that comes back is a new node, with another uid";
    let removed = Removed {
        node_uid: uid.to_owned(),
    };
    let code = Code::PermissionDenied;
    let details = encode(code, why, detail("quorate.v1.Removed", &removed));
    Status::with_details(code, why, details.into())
}

/// No node has this uid, and none that had it was removed.
pub fn gone(uid: &str) -> Status {
    Status::not_found(format!("there is no node with the uid {uid}"))
}

/// An argument is missing or malformed, or the token lets in no node.
pub fn invalid(why: impl Display) -> Status {
    Status::invalid_argument(why.to_string())
}

/// etcd cannot be asked, and nothing is decided from memory. The error is for the log alone: it may name hosts, and anybody may call.
pub fn unavailable(error: &etcd::Error) -> Status {
    debug!("a call of the control API is refused: {error}");
    Status::unavailable("etcd cannot be asked")
}

/// A record that the answer depends on cannot be read.
pub fn unreadable(what: impl Display) -> Status {
    Status::unavailable(format!("{what} cannot be read"))
}

/// There are too many such calls at the moment.
pub fn exhausted(why: impl Into<String>) -> Status {
    Status::resource_exhausted(why)
}
