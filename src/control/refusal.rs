//! The answers to calls that are refused. Their codes are part of the API: `control.proto` lists them.

use std::fmt::Display;

use prost_types::Any;
use tonic::{Code, Status};
use tracing::debug;

use super::not_proven::NotProven;
use crate::etcd;
use crate::failpoint;
use crate::grpc_status::{detail, encode};
use crate::proto::{CertificateRefused, JoinRefused, Removed, Role, WrongRole};

/// The certificate of the connection proves no node. The detail says why.
pub fn not_proven(why: &NotProven) -> Status {
    let reason = why.reason().into();
    let refused = detail("quorate.v1.CertificateRefused", &CertificateRefused { reason });
    denied(&why.to_string(), refused)
}

/// The node joined, and no operator has accepted it, or one has withdrawn that.
pub fn not_accepted() -> Status {
    Status::permission_denied("an operator has yet to accept the node")
}

/// The node was removed. The detail lets its agent tell that from every other refusal.
pub fn removed(uid: &str) -> Status {
    let why = "the node was removed; one that comes back is a new node, with another uid";
    let removed = Removed {
        node_uid: uid.to_owned(),
    };
    denied(why, detail("quorate.v1.Removed", &removed))
}

/// The call is one for managers, and the node is observed in another role.
pub fn wrong_role(observed: Role) -> Status {
    let observed = observed.into();
    let why = "the node is not observed as a manager";
    denied(why, detail("quorate.v1.WrongRole", &WrongRole { observed }))
}

/// The rule with this word refuses the join of a member, or what takes one.
pub fn join_refused(rule: &str, why: impl Display) -> Status {
    let refused = JoinRefused {
        rule: rule.to_owned(),
    };
    let detail = detail("quorate.v1.JoinRefused", &refused);
    with_detail(Code::FailedPrecondition, &why.to_string(), detail)
}

fn denied(why: &str, detail: Any) -> Status {
    with_detail(Code::PermissionDenied, why, detail)
}

fn with_detail(code: Code, why: &str, detail: Any) -> Status {
    let details = encode(code, why, detail);
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

/// The CSI plugins of a report are refused for this reason, and nothing else of it.
pub fn of_plugins(why: &Status) -> Status {
    let said = format!(
        "{}; csi stays as it is, and the rest of the report is recorded",
        why.message()
    );
    Status::new(why.code(), said)
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

/// The end of a call whose reply is lost at this failpoint, after what it asks for was done.
///
/// # Errors
/// The reply is lost.
pub fn unless_lost(point: &str) -> Result<(), Status> {
    match failpoint::drop_reply_at(point) {
        true => Err(Status::unavailable("the reply was lost")),
        false => Ok(()),
    }
}

/// There are too many such calls at the moment.
pub fn exhausted(why: impl Into<String>) -> Status {
    Status::resource_exhausted(why)
}
