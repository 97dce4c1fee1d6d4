//! INV-13: a certificate says the observed role of a node that is accepted and not removed.

use prost::Message;
use quorate::proto;
use quorate::proto::Role;
use quorate::proto::node_certificate::State;
use quorate::proto::node_spec::Membership;
use quorate::store::Name;
use quorate::store::keys::CertificationKey;

use super::past::Past;
use super::records::before;
use super::{Rule, Violation};
use crate::history::{Change, Revision, StoreCall, Target};

/// Certificates that were recorded for another role than the observed one, for a node that is pending, removed or another one, or in
/// a transaction that does not compare node and record.
pub fn wrong_certificates(past: &Past<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, _, changed) in past.changes() {
        let (uid, of_etcd) = match past.keys.parse_certification(&changed.key.0) {
            CertificationKey::Certificate(uid) => (uid, false),
            CertificationKey::EtcdCertificate(uid) => (uid, true),
            _ => continue,
        };
        let Change::Put { value, .. } = &changed.change else {
            continue;
        };
        let Ok(record) = proto::NodeCertificate::decode(value.0.as_slice()) else {
            continue;
        };
        let earlier: Option<proto::NodeCertificate> =
            past.message_at(&changed.key.0, before(changed.revision));
        let is_new = earlier.is_none_or(|earlier| earlier.chain != record.chain);
        if record.state() != State::Issued || !is_new {
            continue;
        }
        let writer = past.writer(changed.revision);
        let fault = misissued(past, uid, &record, of_etcd, before(changed.revision))
            .or_else(|| writer.and_then(|(_, call)| unproven(past, call, &record, &changed.key.0)));
        if let Some(fault) = fault {
            let sentence = format!("a certificate was recorded for node {}, {fault}", record.node);
            let call = writer.map(|(call, _)| call);
            found.push(Violation::new(
                Rule::Inv(13),
                sentence,
                call.into_iter().chain([index]),
            ));
        }
    }
    found
}

fn misissued(
    past: &Past<'_>,
    uid: &str,
    record: &proto::NodeCertificate,
    of_etcd: bool,
    revision: Revision,
) -> Option<String> {
    if past.value_at(&past.keys.removed(uid), revision).is_some() {
        return Some("which was removed".to_owned());
    }
    let name: Name = record.node.parse().ok()?;
    let node: Option<proto::Node> = past.message_at(&past.keys.node(&name), revision);
    let Some(node) = node.filter(|node| node.metadata.as_ref().is_some_and(|metadata| metadata.uid == uid))
    else {
        return Some("which does not exist".to_owned());
    };
    if node
        .spec
        .is_some_and(|spec| spec.membership() == Membership::Pending)
    {
        return Some("which is not accepted".to_owned());
    }
    let observed = node.status.map_or(Role::Unspecified, |status| status.role());
    let says = if of_etcd { Role::Manager } else { record.role() };
    (says != observed).then(|| {
        format!(
            "for {}, and the node is {}",
            says.as_str_name(),
            observed.as_str_name()
        )
    })
}

fn unproven(
    past: &Past<'_>,
    call: &StoreCall,
    record: &proto::NodeCertificate,
    key: &[u8],
) -> Option<String> {
    let node = past.keys.node(&record.node.parse().ok()?);
    let compares = |key: &[u8]| {
        call.compares
            .iter()
            .any(|compare| compare.key.0 == key && matches!(compare.target, Target::Modified(_)))
    };
    (!compares(&node) || !compares(key)).then(|| "without comparing the node and the request".to_owned())
}
