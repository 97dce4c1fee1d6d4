//! The record of a certificate after an answer. Pure.

use super::issue::Signed;
use super::node::NodeRole;
use super::plan::Refusal;
use crate::proto::NodeCertificate;
use crate::proto::node_certificate::State;
use crate::store::object::time;

/// The record after its request was signed.
pub fn issued(before: &NodeCertificate, role: NodeRole, signed: &Signed) -> NodeCertificate {
    let end = time::to_proto(signed.not_after);
    let latest = before
        .latest_not_after
        .filter(|latest| latest.seconds > end.seconds);
    NodeCertificate {
        node: before.node.clone(),
        request: before.request.clone(),
        state: State::Issued.into(),
        reason: String::new(),
        message: String::new(),
        chain: signed.chain_pem.clone(),
        role: role.to_proto().into(),
        not_after: Some(end),
        latest_not_after: latest.or(Some(end)),
    }
}

/// The record after its request was refused.
pub fn refused(before: &NodeCertificate, refusal: &Refusal) -> NodeCertificate {
    NodeCertificate {
        state: State::Failed.into(),
        reason: refusal.word().to_owned(),
        message: refusal.to_string(),
        ..before.clone()
    }
}
