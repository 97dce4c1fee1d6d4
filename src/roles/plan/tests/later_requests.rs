//! Requests to join that come while an add for an earlier one is decided.

use super::*;

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

/// What a note says, and why.
fn noted(step: Option<Step>) -> Option<(Progress, Option<Reason>)> {
    match step {
        Some(Step::Note { progress, why, .. }) => Some((progress, why.map(|(reason, _)| reason))),
        _ => None,
    }
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
