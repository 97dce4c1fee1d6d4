use super::super::index::tests::{change, deletion, keys, kv, listed, name, node, removed, session};
use prost::Message;

use super::*;
use crate::etcd::{Event, KeyValue};
use crate::proto::Node;
use crate::proto::node_spec::Membership;
use crate::store::Update;

fn facts() -> Facts {
    Facts {
        name: name("n1"),
        uid: "u1".to_owned(),
        role: Role::Worker,
        seen_at: Revision(2),
        id: "s1".to_owned(),
        held_at: Revision(9),
    }
}

fn worker() -> KeyValue {
    node("n1", "u1", Role::Worker, 2)
}

fn index() -> Index {
    listed(vec![session("n1", "s1", 9)], vec![worker()])
}

#[test]
fn a_session_goes_on_until_etcd_says_otherwise() {
    let mut index = index();
    assert_eq!(judge(&index, &facts()), None);
    change(&mut index, Part::Alive, Event::Put(session("n2", "s2", 21)));
    change(&mut index, Part::Records, Event::Put(removed("u2", "n2", 22)));
    assert_eq!(judge(&index, &facts()), None);
}

#[test]
fn each_reason_ends_a_session() {
    let put = Event::Put;
    let garbage = kv(keys().node(&name("n1")), vec![0xff], 21);
    let mut pending = node("n1", "u1", Role::Worker, 21);
    let mut record = Node::decode(&*pending.value).unwrap();
    let spec = record.spec.as_mut().unwrap();
    spec.set_membership(Membership::Pending);
    pending.value = record.encode_to_vec();
    for (part, event, verdict) in [
        (Part::Records, put(removed("u1", "n1", 21)), Verdict::Removed),
        (
            Part::Records,
            deletion(keys().node(&name("n1")), 21),
            Verdict::Gone,
        ),
        (
            Part::Records,
            put(node("n1", "u2", Role::Worker, 21)),
            Verdict::Gone,
        ),
        (Part::Records, put(garbage), Verdict::Unreadable),
        (Part::Records, put(pending), Verdict::NotAccepted),
        (
            Part::Records,
            put(node("n1", "u1", Role::Manager, 21)),
            Verdict::RoleChanged,
        ),
        (Part::Alive, put(session("n1", "s2", 21)), Verdict::Superseded),
        (Part::Alive, put(session("n1", "", 21)), Verdict::Superseded),
        (
            Part::Alive,
            deletion(keys().alive(&name("n1")), 21),
            Verdict::Lapsed,
        ),
    ] {
        let mut index = index();
        change(&mut index, part, event);
        assert_eq!(judge(&index, &facts()), Some(verdict));
    }
}

/// The transaction of a removal deletes the node as well.
#[test]
fn a_removal_counts_before_everything_else() {
    let mut index = index();
    let events = vec![
        deletion(keys().node(&name("n1")), 21),
        Event::Put(removed("u1", "n1", 21)),
    ];
    index.take_in(Part::Records, Update::Events(events));
    change(&mut index, Part::Alive, Event::Put(session("n1", "s2", 21)));
    assert_eq!(judge(&index, &facts()), Some(Verdict::Removed));
}

#[test]
fn what_the_copy_has_not_come_to_ends_no_session() {
    let later = Facts {
        seen_at: Revision(21),
        held_at: Revision(22),
        ..facts()
    };
    // The states before.
    let mut index = listed(
        vec![session("n1", "s0", 5)],
        vec![node("n1", "u1", Role::Manager, 2)],
    );
    assert_eq!(judge(&index, &later), None);
    change(
        &mut index,
        Part::Records,
        Event::Put(node("n1", "u1", Role::Worker, 21)),
    );
    assert_eq!(judge(&index, &later), None);
    change(&mut index, Part::Alive, Event::Put(session("n1", "s1", 22)));
    assert_eq!(judge(&index, &later), None);
    change(&mut index, Part::Alive, Event::Put(session("n1", "s2", 23)));
    assert_eq!(judge(&index, &later), Some(Verdict::Superseded));
    // A list that is read again shows a part only.
    let begun = Update::Page {
        first: true,
        keys: Vec::new(),
    };
    index.take_in(Part::Alive, begun);
    assert_eq!(judge(&index, &later), None);
}

#[test]
fn a_copy_is_too_old_after_five_seconds_and_before_its_first_date() {
    let begun = Instant::now();
    let after = |millis| begun + Duration::from_millis(millis);
    assert!(is_stale(None, begun));
    assert!(!is_stale(Some(begun), after(5000)));
    assert!(is_stale(Some(begun), after(5001)));
    // Dated by another thread meanwhile.
    assert!(!is_stale(Some(after(10)), begun));
}
