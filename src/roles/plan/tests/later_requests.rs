//! Requests to join that come while an add for an earlier one is decided.

use super::*;

const DENIED: &str = "permission denied";

/// An add for an earlier request of the node, which has asked once more since: at the same peer URL, and unreachable there.
fn asked_again() -> PendingJoin {
    let mut pending = adding("n9");
    pending.join.request.as_mut().unwrap().id = "r2".to_owned();
    pending.reachability = Reachability::Unreachable("no answer".to_owned());
    pending
}

fn of(pending: PendingJoin) -> Membership {
    let mut membership = surveyed(vec![voter(1)]);
    membership.joins.push(pending);
    membership
}

#[test]
fn the_address_of_a_later_request_is_tested_although_an_add_at_an_earlier_one_was_decided() {
    let mut pending = asked_again();
    let refused = Some((Progress::Refused, Some(Reason::PeerUnreachable)));
    for urls in ["http://10.0.0.9:2380", "http://10.0.0.10:2380"] {
        pending.join.request.as_mut().unwrap().peer_urls = vec![urls.to_owned()];
        let membership = of(pending.clone());
        // The earlier add may still be made: its intent stays until that is ruled out.
        assert_eq!(reasons(&membership), [Reason::Pending], "{urls}");
        assert_eq!(noted(step_at(31, &membership)), refused, "{urls}");
    }
}

#[test]
fn no_member_is_added_by_the_intent_of_an_earlier_node_of_that_name() {
    let mut pending = adding("n9");
    pending.join.request.as_mut().unwrap().node_uid = "of-another".to_owned();
    let membership = of(pending);
    assert_eq!(reasons(&membership), [Reason::Pending]);
    assert_eq!(step_at(31, &membership), Some(Step::DecideAdd("n9".to_owned())));
}

#[test]
fn the_intent_is_renewed_for_a_later_request_at_the_same_address() {
    let mut pending = asked_again();
    pending.reachability = Reachability::Reached(Listener::Absent);
    assert_eq!(step(&of(pending)), Some(Step::DecideAdd("n9".to_owned())));
}

/// INV-9: each write wakes the controller, which would call etcd again at once.
#[test]
fn a_denial_is_noted_once_beside_an_intent_that_answers_an_earlier_request() {
    let mut pending = asked_again();
    pending.reachability = Reachability::Reached(Listener::Absent);
    let mut membership = of(pending);
    let why = (Reason::EtcdDenied, DENIED.to_owned());
    membership.resting.insert(Subject::Join("n9".to_owned()), why);
    let denied = Some((Progress::Adding, Some(Reason::EtcdDenied)));
    assert_eq!(noted(step(&membership)), denied);
    // All that is written beside an intent.
    let join = &mut membership.joins[0].join;
    (join.reason, join.message) = ("EtcdDenied".to_owned(), DENIED.to_owned());
    assert_eq!(reasons(&membership), [Reason::EtcdDenied], "it says so already");
}
