use tokio::time::Instant;

use super::*;
use crate::etcd::KeyValue;
use crate::volumes::lanes::{Lane, Lanes};
use crate::volumes::operation::{QUICK, ReadRecord};

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn data() -> Name {
    name("data")
}

fn node(text: &str) -> Target {
    Target::Node(name(text))
}

fn failure(retry: Option<Policy>) -> Failure {
    Failure {
        why: Blocked {
            reason: "Internal".to_owned(),
            message: "no".to_owned(),
        },
        retry,
        is_quiet: false,
        code: None,
        waits_for: None,
    }
}

/// Ends the pass, and returns the rest after it in milliseconds without its jitter; `None` for no rest.
fn rest_after_pass(unsettled: &mut Unsettled) -> Option<u64> {
    let begun = Instant::now();
    unsettled.end_pass(&data());
    let until = unsettled.backoff.due_at()?;
    let rest = until.saturating_duration_since(begun);
    // Each rest is up to a quarter longer than one of these, and begins a moment later.
    let rest = u64::try_from(rest.as_millis()).unwrap();
    let mut bases = (0..12).map(|doublings| 200 << doublings);
    let base = bases.find(|base| (*base..2 * base).contains(&rest));
    Some(base.unwrap_or_else(|| panic!("{rest} ms is no rest of the policies")))
}

/// Ends the rest, as if the volume were due.
fn begin_pass(unsettled: &mut Unsettled) {
    unsettled.backoff.wake(&data());
    unsettled.state(&data()).begin_pass();
}

fn fail(unsettled: &mut Unsettled, target: Target, retry: Option<Policy>) -> bool {
    unsettled.fail(&data(), target, failure(retry))
}

/// The rest after a pass in which these fail.
fn rest_after(unsettled: &mut Unsettled, failed: &[Target]) -> Option<u64> {
    begin_pass(unsettled);
    for target in failed {
        fail(unsettled, target.clone(), Some(QUICK));
    }
    rest_after_pass(unsettled)
}

fn resting(unsettled: &Unsettled) -> BTreeSet<Target> {
    unsettled
        .get(&data())
        .map(RetryState::resting)
        .unwrap_or_default()
}

fn snapshot(own: bool, revision: i64) -> RecordSnapshot {
    RecordSnapshot {
        key: b"k".to_vec(),
        now: Ok(KeyValue::written_at(b"k".to_vec(), Vec::new(), revision)),
        own,
    }
}

#[test]
fn rests_grow_from_pass_to_pass_until_someone_changes_something() {
    let mut unsettled = Unsettled::default();
    let rests: Vec<_> = (0..3)
        .map(|_| rest_after(&mut unsettled, &[Target::Volume]))
        .collect();
    assert_eq!(rests, [Some(200), Some(400), Some(800)]);
    assert!(unsettled.wake(&data(), Some(Revision(7))));
    assert_eq!(unsettled.backoff.due_at(), None, "it does not rest");
    assert_eq!(rest_after(&mut unsettled, &[Target::Volume]), Some(200));
}

#[test]
fn the_first_failure_after_a_success_rests_shortest() {
    let mut unsettled = Unsettled::default();
    rest_after(&mut unsettled, &[Target::Volume]);
    rest_after(&mut unsettled, &[Target::Volume]);
    begin_pass(&mut unsettled);
    // The volume is created at last; then its first publication fails.
    unsettled.succeed(&data(), &Target::Volume);
    fail(&mut unsettled, node("n1"), Some(QUICK));
    assert_eq!(rest_after_pass(&mut unsettled), Some(200));
}

#[test]
fn the_success_of_one_node_does_not_make_the_failure_of_another_hot() {
    let mut unsettled = Unsettled::default();
    rest_after(&mut unsettled, &[node("n1"), node("n2")]);
    begin_pass(&mut unsettled);
    unsettled.succeed(&data(), &node("n2"));
    fail(&mut unsettled, node("n1"), Some(QUICK));
    assert_eq!(rest_after_pass(&mut unsettled), Some(400));
    // Nor where the one failed before the other succeeded.
    begin_pass(&mut unsettled);
    fail(&mut unsettled, node("n1"), Some(QUICK));
    unsettled.succeed(&data(), &node("n3"));
    assert_eq!(rest_after_pass(&mut unsettled), Some(800));
}

#[test]
fn a_final_failure_is_held_from_pass_to_pass_and_counts_for_no_rest() {
    let mut unsettled = Unsettled::default();
    fail(&mut unsettled, node("n1"), None);
    assert_eq!(rest_after_pass(&mut unsettled), None);
    let rest = rest_after(&mut unsettled, &[node("n2")]);
    assert_eq!(rest, Some(200), "the final failure does not count");
    begin_pass(&mut unsettled);
    assert_eq!(resting(&unsettled), [node("n1")].into());
    assert!(unsettled.state(&data()).blocked(&node("n1")).is_some());
    unsettled.succeed(&data(), &node("n2"));
    assert_eq!(rest_after_pass(&mut unsettled), None);
    assert!(unsettled.get(&data()).is_some(), "it is held, not settled");
    assert_eq!(rest_after(&mut unsettled, &[node("n2")]), Some(200));
    unsettled.wake(&data(), None);
    assert!(resting(&unsettled).is_empty());
    unsettled.end_pass(&data());
    assert!(unsettled.get(&data()).is_none(), "it is settled");
}

/// INV-9: a plugin that drops its connection with every call comes back each time.
#[test]
fn a_plugin_that_reconnects_ends_no_rest_and_what_it_refused_for_good_is_retried_slowly() {
    let mut unsettled = Unsettled::default();
    rest_after(&mut unsettled, &[Target::Volume]);
    unsettled.reconnected(&data());
    assert_eq!(resting(&unsettled), [Target::Volume].into());
    assert_eq!(rest_after_pass(&mut unsettled), Some(200), "the rest goes on");
    assert_eq!(rest_after(&mut unsettled, &[Target::Volume]), Some(400));

    let mut unsettled = Unsettled::default();
    fail(&mut unsettled, node("n1"), None);
    assert_eq!(rest_after_pass(&mut unsettled), None);
    unsettled.reconnected(&data());
    let blocked = unsettled.state(&data()).blocked(&node("n1"));
    assert!(blocked.is_some(), "its condition stays");
    assert_eq!(rest_after_pass(&mut unsettled), Some(25_600));
    begin_pass(&mut unsettled);
    assert!(resting(&unsettled).is_empty());
}

/// The rest goes on, and with it the pass: what waited for the session is tried in it, and may fail.
#[test]
fn what_fails_after_a_reconnection_is_written_although_what_failed_before_it_was() {
    let mut unsettled = Unsettled::default();
    fail(&mut unsettled, node("n1"), Some(QUICK));
    unsettled.state(&data()).conditions_written = true;
    rest_after_pass(&mut unsettled);
    unsettled.reconnected(&data());
    assert!(!unsettled.state(&data()).conditions_written);
}

#[test]
fn the_quickest_policy_of_a_pass_counts() {
    let mut unsettled = Unsettled::default();
    fail(&mut unsettled, node("n1"), Some(SLOW));
    fail(&mut unsettled, node("n2"), Some(QUICK));
    assert_eq!(rest_after_pass(&mut unsettled), Some(200));
}

/// The rests that DESIGN and operators count on: 100 ms · 2ⁿ after the n-th failure, and never beyond ten minutes.
#[test]
fn calls_follow_at_once_and_after_200_600_1400_3000_and_6200_milliseconds() {
    let mut at = 0;
    let mut unsettled = Unsettled::default();
    let mut times = vec![at];
    for _ in 1..=5 {
        at += rest_after(&mut unsettled, &[Target::Volume]).unwrap();
        times.push(at);
    }
    assert_eq!(times, [0, 200, 600, 1400, 3000, 6200]);
    let most = std::time::Duration::from_secs(600);
    for failures in [13, 64, u32::MAX] {
        assert_eq!((QUICK.delay(failures), SLOW.delay(failures)), (most, most));
    }
}

#[test]
fn only_a_write_by_someone_else_during_an_operation_is_news() {
    let mut unsettled = Unsettled::default();
    let mut is_news = |written: Option<Option<i64>>, records: &[RecordSnapshot]| {
        unsettled.state(&data()).begin();
        if let Some(written) = written {
            let wakes_now = unsettled.wake(&data(), written.map(Revision));
            assert!(!wakes_now, "the end of the operation sees to it");
        }
        unsettled.end_operation(&data(), records)
    };
    assert!(!is_news(Some(Some(7)), &[snapshot(true, 7)]));
    assert!(is_news(Some(Some(7)), &[snapshot(true, 8)]));
    assert!(is_news(Some(Some(7)), &[snapshot(false, 7)]), "it was only read");
    assert!(!is_news(None, &[]), "earlier news is forgotten");
    assert!(
        is_news(Some(None), &[snapshot(true, 7)]),
        "something else changed"
    );
}

#[test]
fn a_volume_that_is_woken_during_its_operation_keeps_its_failures_until_the_end() {
    let mut unsettled = Unsettled::default();
    fail(&mut unsettled, node("n1"), None);
    unsettled.state(&data()).begin();
    assert!(!unsettled.wake(&data(), None));
    assert_eq!(resting(&unsettled), [node("n1")].into());
    assert_eq!(unsettled.state(&data()).unqueue(), None);
    assert!(unsettled.state(&data()).is_running(), "INV-6");
}

#[test]
fn a_volume_that_is_woken_while_it_is_queued_is_planned_and_may_take_its_place_again() {
    let mut lanes = Lanes::default();
    lanes.limit(1, Some(0));
    let place = lanes.begin_or_queue(&data(), Lane::Attach, Some("csi-n1"), None);
    let queued = Queued {
        driver: name("p"),
        place: place.unwrap_err(),
    };
    let mut unsettled = Unsettled::default();
    fail(&mut unsettled, node("n1"), None);
    unsettled.state(&data()).queue(queued.clone());
    assert!(unsettled.wake(&data(), None));
    assert!(resting(&unsettled).is_empty() && unsettled.get(&data()).unwrap().is_active());
    let state = unsettled.state(&data());
    for driver in ["p", "q"] {
        state.queue(queued.clone());
        assert_eq!(state.unqueue(), Some(queued.clone()));
        assert!(!state.is_active());
        let place = (driver == "p").then(|| queued.place.clone());
        assert_eq!(
            state.take_left(&name(driver)),
            place,
            "another plugin has other places"
        );
    }
    state.queue(queued);
    state.unqueue();
    assert_eq!(state.unqueue(), None);
    assert_eq!(state.take_left(&name("p")), None, "it has been planned since");
}

#[test]
fn a_failure_is_reported_once_and_again_after_a_success() {
    let mut unsettled = Unsettled::default();
    assert!(fail(&mut unsettled, Target::Volume, Some(QUICK)));
    unsettled.end_pass(&data());
    begin_pass(&mut unsettled);
    assert!(!fail(&mut unsettled, Target::Volume, Some(QUICK)));
    begin_pass(&mut unsettled);
    unsettled.succeed(&data(), &Target::Volume);
    assert!(fail(&mut unsettled, Target::Volume, None));
    unsettled.end_pass(&data());
    begin_pass(&mut unsettled);
    assert!(!fail(&mut unsettled, Target::Volume, None), "final, and reported");
}

#[test]
fn a_volume_whose_snapshots_are_stale_again_and_again_rests() {
    let mut unsettled = Unsettled::default();
    for _ in 0..8 {
        unsettled.observed_stale(&data(), node("n1"));
        assert!(resting(&unsettled).is_empty());
    }
    unsettled.observed_stale(&data(), node("n1"));
    assert_eq!(resting(&unsettled), [node("n1")].into());
    assert_eq!(rest_after_pass(&mut unsettled), Some(200));
    begin_pass(&mut unsettled);
    unsettled.observed_stale(&data(), node("n1"));
    assert!(resting(&unsettled).is_empty(), "each pass counts for itself");
}

/// The first ones may be too large for what each deletion leaves.
#[test]
fn capacity_is_tried_by_other_volumes_each_time() {
    let mut unsettled = Unsettled::default();
    let names: Vec<Name> = (0..5)
        .map(|number| format!("v{number}").parse().unwrap())
        .collect();
    let (p, q) = (name("p"), name("q"));
    for (number, name) in names.iter().enumerate() {
        unsettled.fail(name, Target::Volume, Failure::no_capacity(1));
        unsettled.await_capacity(if number == 1 { &q } else { &p }, name);
    }
    let mut tried = |driver, most| unsettled.made_capacity(driver, most);
    assert_eq!(tried(&p, 2), [names[0].clone(), names[2].clone()]);
    assert_eq!(tried(&q, 2), [names[1].clone()], "of its own plugin alone");
    // That changes nothing for the first one.
    assert_eq!(tried(&p, 2), [names[3].clone(), names[4].clone()]);
    assert_eq!(tried(&p, 9).len(), 4);
    assert!(tried(&name("none"), 9).is_empty());
    unsettled.forget(&names[3]);
    assert_eq!(unsettled.made_capacity(&p, 9).len(), 3);
    assert!(unsettled.left(&names[0], None).is_empty(), "it waits for no node");
}

#[test]
fn nothing_is_remembered_of_what_a_volume_that_is_gone_has_waited_for() {
    let mut unsettled = Unsettled::default();
    let read = ReadRecord {
        record: Awaited::Tombstone(name("t")),
        revision: Revision(1),
    };
    for waits_for in [WaitsFor::Other, WaitsFor::Record(Box::new(read))] {
        let waits_for = Some(waits_for);
        let failure = Failure {
            waits_for,
            ..failure(Some(SLOW))
        };
        unsettled.fail(&data(), Target::Volume, failure);
    }
    unsettled.await_capacity(&name("p"), &data());
    unsettled.forget(&data());
    assert!(unsettled.for_other.is_empty() && unsettled.for_records.is_empty());
    assert!(unsettled.for_capacity.is_empty(), "{:?}", unsettled.for_capacity);
}

#[test]
fn a_record_that_changes_is_news_for_what_failed_for_it_and_still_does() {
    let mut unsettled = Unsettled::default();
    let (old, later) = (name("old"), name("later"));
    let (tombstone, volume) = (Awaited::Tombstone(name("t")), Awaited::Volume(name("t")));
    let for_record = |record: &Awaited| {
        let read = ReadRecord {
            record: record.clone(),
            revision: Revision(1),
        };
        Failure {
            waits_for: Some(WaitsFor::Record(Box::new(read))),
            ..failure(Some(SLOW))
        }
    };
    unsettled.fail(&data(), Target::Volume, for_record(&tombstone));
    unsettled.fail(&old, Target::Volume, for_record(&tombstone));
    unsettled.fail(&later, Target::Orphaned, for_record(&volume));
    // It is planned again, for another reason.
    assert!(unsettled.wake(&old, None));
    assert_eq!(unsettled.changed(&tombstone), [data()]);
    assert!(unsettled.changed(&tombstone).is_empty(), "they know of it");
    unsettled.fail(&data(), Target::Volume, for_record(&tombstone));
    assert_eq!(unsettled.changed(&tombstone), [data()], "until it fails again");
    assert_eq!(unsettled.changed(&volume), [later]);
}

#[test]
fn a_quiet_failure_leaves_the_condition_as_it_is() {
    let mut unsettled = Unsettled::default();
    unsettled.fail(&data(), Target::Volume, Failure::restless());
    let state = unsettled.state(&data());
    assert!(state.is_quiet(&Target::Volume) && state.blocked(&Target::Volume).is_none());
    assert!(!state.is_quiet(&node("n1")));
}

#[test]
fn a_volume_is_unsettled_while_the_plugins_list_differs_and_until_that_is_mended() {
    let mut unsettled = Unsettled::default();
    let lost = Drift {
        lost: [name("n1")].into(),
        ..Drift::default()
    };
    unsettled.state(&data()).drift = Some(lost);
    unsettled.end_pass(&data());
    assert_eq!(unsettled.get(&data()).unwrap().to_mend(), [name("n1")].into());
    unsettled.state(&data()).mended(&name("n1"));
    unsettled.end_pass(&data());
    assert!(unsettled.get(&data()).is_none());
}

#[tokio::test]
async fn a_volume_whose_rest_is_over_begins_a_pass() {
    let mut unsettled = Unsettled::default();
    fail(&mut unsettled, Target::Volume, Some(QUICK));
    unsettled.state(&data()).conditions_written = true;
    unsettled.end_pass(&data());
    assert_eq!(unsettled.next_due().await, Due::Retried(vec![data()]));
    assert!(resting(&unsettled).is_empty());
    assert!(!unsettled.state(&data()).conditions_written);
}

#[tokio::test]
async fn a_volume_whose_call_got_no_answer_rests_from_calls_and_its_pass_goes_on_after_that() {
    let mut unsettled = Unsettled::default();
    unsettled.called(&data(), false);
    fail(&mut unsettled, node("n1"), Some(QUICK));
    assert!(unsettled.is_unanswered(&data()) && !unsettled.is_unanswered(&name("other")));
    assert_eq!(unsettled.next_due().await, Due::Free(vec![data()]));
    assert!(!unsettled.is_unanswered(&data()));
    assert_eq!(
        resting(&unsettled),
        [node("n1")].into(),
        "the others have their turn first"
    );
    // A change by someone else does not end what the plugin may be at work on.
    unsettled.called(&data(), false);
    assert!(unsettled.wake(&data(), None));
    assert!(resting(&unsettled).is_empty() && unsettled.is_unanswered(&data()));
    assert_eq!(unsettled.unanswered.failures(&data()), 2, "in a row");
    unsettled.called(&data(), true);
    assert!(!unsettled.is_unanswered(&data()));
    assert_eq!(unsettled.unanswered.failures(&data()), 0);
}

#[tokio::test]
async fn nothing_is_remembered_of_a_settled_volume_whose_call_got_no_answer() {
    let mut unsettled = Unsettled::default();
    unsettled.called(&data(), false);
    unsettled.forget(&data());
    assert!(unsettled.is_unanswered(&data()), "the plugin may be at work");
    assert_eq!(unsettled.next_due().await, Due::Free(vec![data()]));
    assert_eq!(unsettled.unanswered.failures(&data()), 0);
}
