//! New values of stored nodes and their conditions. Pure.
//!
//! A role is written by appending it: protobuf merges a message that follows another, so fields that only a newer release
//! knows stay as they are. A condition cannot be removed that way; then the value is decoded and encoded again.

use jiff::Timestamp;
use prost::Message;

use super::reason::{ROLE_CHANGE_BLOCKED, Reason};
use crate::proto::condition::Status;
use crate::proto::{Condition, Node, NodeStatus, Role};
use crate::store::object::time;

/// The node with this observed role and without the condition [`ROLE_CHANGE_BLOCKED`].
pub fn with_role(value: &[u8], role: Role) -> Vec<u8> {
    let mut value = match Node::decode(value) {
        Ok(mut node) if is_blocked(&node) => {
            set_condition(
                &mut node.status.get_or_insert_default().conditions,
                ROLE_CHANGE_BLOCKED,
                None,
            );
            node.encode_to_vec()
        }
        _ => value.to_vec(),
    };
    let change = Node {
        status: Some(NodeStatus {
            role: role.into(),
            ..NodeStatus::default()
        }),
        ..Node::default()
    };
    value.extend(change.encode_to_vec());
    value
}

fn is_blocked(node: &Node) -> bool {
    let conditions = node.status.as_ref().map_or(&[][..], |status| &status.conditions);
    conditions
        .iter()
        .any(|condition| condition.r#type == ROLE_CHANGE_BLOCKED)
}

/// The node with `condition` as its [`ROLE_CHANGE_BLOCKED`], or without one; `None` if the value cannot be read.
pub fn with_blocked(value: &[u8], condition: Option<Condition>) -> Option<Vec<u8>> {
    let mut node = Node::decode(value).ok()?;
    let conditions = &mut node.status.get_or_insert_default().conditions;
    set_condition(conditions, ROLE_CHANGE_BLOCKED, condition);
    Some(node.encode_to_vec())
}

/// Replaces the condition of this type, or removes it.
pub fn set_condition(conditions: &mut Vec<Condition>, kind: &str, condition: Option<Condition>) {
    conditions.retain(|other| other.r#type != kind);
    conditions.extend(condition);
}

/// A condition that says why something is blocked. It keeps the transition time of the condition `before`.
pub fn blocked(
    kind: &str,
    before: Option<&Condition>,
    (reason, message): (Reason, &str),
    generation: i64,
    now: Timestamp,
) -> Condition {
    let since = before.and_then(|before| before.last_transition_time);
    Condition {
        r#type: kind.to_owned(),
        status: Status::True.into(),
        reason: reason.as_str().to_owned(),
        message: message.to_owned(),
        last_transition_time: since.or_else(|| Some(time::to_proto(now))),
        observed_generation: generation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Metadata;

    #[test]
    fn a_new_role_keeps_unknown_fields_and_removes_the_condition() {
        let node = Node {
            metadata: Some(Metadata {
                name: "n1".to_owned(),
                ..Metadata::default()
            }),
            ..Node::default()
        };
        let mut value = node.encode_to_vec();
        // Field 15 of a later release, a varint.
        value.extend([0x78, 0x01]);
        let written = with_role(&value, Role::Manager);
        assert!(written.windows(2).any(|bytes| bytes == [0x78, 0x01]));
        assert_eq!(
            Node::decode(&*written).unwrap().status.unwrap().role(),
            Role::Manager
        );

        let condition = blocked(
            ROLE_CHANGE_BLOCKED,
            None,
            (Reason::QuorumRisk, "m"),
            3,
            Timestamp::UNIX_EPOCH,
        );
        let held = with_blocked(&written, Some(condition)).unwrap();
        let status = Node::decode(&*held).unwrap().status.unwrap();
        assert_eq!((status.conditions.len(), status.role()), (1, Role::Manager));
        let free = Node::decode(&*with_role(&held, Role::Worker))
            .unwrap()
            .status
            .unwrap();
        assert_eq!((free.conditions.len(), free.role()), (0, Role::Worker));
    }

    #[test]
    fn a_blocked_condition_keeps_its_transition_time_and_the_other_conditions() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let why = |message| (Reason::QuorumRisk, message);
        let first = blocked(ROLE_CHANGE_BLOCKED, None, why("two are down"), 3, at(10));
        let second = blocked(ROLE_CHANGE_BLOCKED, Some(&first), why("one is down"), 4, at(20));
        assert_eq!(second.last_transition_time, Some(time::to_proto(at(10))));
        assert_eq!(
            (second.observed_generation, second.message.as_str()),
            (4, "one is down")
        );

        let other = Condition {
            r#type: "Ready".to_owned(),
            ..Condition::default()
        };
        let mut conditions = vec![first, other.clone()];
        set_condition(&mut conditions, ROLE_CHANGE_BLOCKED, Some(second.clone()));
        assert_eq!(conditions, [other.clone(), second]);
        set_condition(&mut conditions, ROLE_CHANGE_BLOCKED, None);
        assert_eq!(conditions, [other]);
    }
}
