use super::*;
use crate::proto::{Capacity, Metadata, PublicationSpec, PublicationStatus, VolumeSpec};

fn volume(required: i64) -> Volume {
    Volume {
        metadata: Some(Metadata {
            name: "data".to_owned(),
            uid: "u".to_owned(),
            generation: 3,
            ..Metadata::default()
        }),
        spec: Some(VolumeSpec {
            capacity: Some(Capacity { required, limit: 0 }),
            ..VolumeSpec::default()
        }),
        status: None,
    }
}

fn publication(state: State) -> Publication {
    Publication {
        metadata: None,
        spec: Some(PublicationSpec::default()),
        status: Some(PublicationStatus {
            state: state.into(),
            ..PublicationStatus::default()
        }),
    }
}

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

#[test]
fn a_create_is_repeated_with_the_capacity_of_its_first_call_until_that_is_refused() {
    let intended = intend_create(&volume(5), &Backend::default(), 9, NOW).unwrap();
    let mut grown = intended.clone();
    grown.spec = volume(7).spec;
    assert_eq!(
        intend_create(&grown, &Backend::default(), 10, NOW),
        None,
        "it stands"
    );
    let capacity = |volume: &Volume| {
        volume
            .status
            .clone()
            .unwrap()
            .create
            .unwrap()
            .capacity
            .unwrap()
            .required
    };
    assert_eq!(capacity(&grown), 5);
    let refused = create_refused(&grown).status.unwrap();
    assert_eq!(refused.backend, None, "nothing is there");
    let again = intend_create(&create_refused(&grown), &Backend::default(), 10, NOW).unwrap();
    assert_eq!(capacity(&again), 7);
    assert!(!again.status.unwrap().create.unwrap().refused);
}

#[test]
fn what_creation_fulfilled_is_what_it_was_asked_for_not_what_is_wanted_since() {
    let mut intended = intend_create(&volume(5), &Backend::default(), 9, NOW).unwrap();
    intended.spec = volume(7).spec;
    let created = created(&intended, Created::default(), NOW).status.unwrap();
    assert_eq!(created.fulfilled_bytes, 5, "so that the rest is an expansion");
}

#[test]
fn an_end_that_was_asked_for_during_the_call_survives_its_result() {
    let context = std::collections::BTreeMap::from([("device".to_owned(), "sda".to_owned())]);
    for asked in [State::PendingNodeUnpublish, State::PendingUnpublish] {
        let after = published(&publication(asked), context.clone());
        assert_eq!(state(&after), asked);
    }
    let after = published(&publication(State::PendingPublish), context);
    assert_eq!(state(&after), State::Published);
    assert_eq!(after.status.unwrap().publish_context["device"], "sda");
}

/// INV-3: what the call did that began before is unknown.
#[test]
fn a_publication_without_a_call_keeps_an_earlier_call_to_be_repeated() {
    let mut wanted = publication(State::PendingPublish);
    assert!(!published_without_call(&wanted).status.unwrap().unrecorded);
    wanted.status.as_mut().unwrap().csi_node_id = "csi-n1".to_owned();
    let after = published_without_call(&wanted);
    assert_eq!(state(&after), State::Published);
    assert!(after.status.unwrap().unrecorded);
}

#[test]
fn a_publication_starts_over_only_if_asked_for_and_where_it_may() {
    let mut record = publication(State::PendingUnpublish);
    record.status.as_mut().unwrap().csi_node_id = "csi-n1".to_owned();
    assert_eq!(ended(&record, Some("uid"), "u2"), None);
    record.spec.as_mut().unwrap().again = true;
    assert_eq!(ended(&record, None, "u2"), None, "it may not");
    let restarted = ended(&record, Some("uid"), "u2").unwrap();
    assert_eq!(restarted.uid(), "u2", "it is another publication");
    assert_eq!(state(&restarted), State::PendingPublish);
    assert_eq!(
        restarted.status.unwrap().csi_node_id,
        "",
        "nothing is published yet"
    );
    let spec = restarted.spec.unwrap();
    assert!(!spec.again && spec.node_uid == "uid");
}

#[test]
fn a_publication_starts_over_for_reading_or_writing_as_it_was_requested() {
    for (had, next, expected) in [
        (false, None, false),
        (true, None, true),
        (false, Some(true), true),
        (true, Some(false), false),
    ] {
        let mut record = publication(State::PendingUnpublish);
        let spec = record.spec.as_mut().unwrap();
        (spec.read_only, spec.again, spec.again_read_only) = (had, true, next);
        let spec = ended(&record, Some("uid"), "u2").unwrap().spec.unwrap();
        assert_eq!((spec.read_only, spec.again_read_only), (expected, None));
    }
}

#[test]
fn a_condition_changes_only_with_its_words_and_keeps_the_time_at_which_it_came() {
    let why = |message: &str| Blocked {
        reason: "PluginMissing".to_owned(),
        message: message.to_owned(),
    };
    let later = NOW + jiff::SignedDuration::from_secs(60);
    let first = volume_blocked(&volume(1), Some(&why("a")), NOW).unwrap();
    assert_eq!(volume_blocked(&first, Some(&why("a")), later), None);
    let second = volume_blocked(&first, Some(&why("b")), later).unwrap();
    let status = second.status.clone().unwrap();
    let condition = blocked(&status.conditions).unwrap();
    assert_eq!(condition.message, "b");
    assert_eq!(condition.last_transition_time, Some(time::to_proto(NOW)));
    assert_eq!(condition.observed_generation, 3);
    let cleared = volume_blocked(&second, None, later).unwrap();
    assert_eq!(blocked(&cleared.status.clone().unwrap().conditions), None);
    assert_eq!(volume_blocked(&cleared, None, later), None);
}

#[test]
fn a_volume_that_its_plugin_does_not_create_has_its_name_as_id_and_says_so() {
    let taken = name_taken(&volume(5), &Backend::default(), NOW).status.unwrap();
    assert_eq!(taken.volume_id, "data");
    assert!(taken.r#static && taken.create.is_none());
    assert_eq!(taken.conditions[0].reason, "NotCreatedByPlugin");
}

#[test]
fn a_capacity_that_is_allowed_by_now_is_no_mismatch() {
    let limited = |limit| {
        let mut volume = volume(5);
        volume.spec.as_mut().unwrap().capacity = Some(Capacity { required: 5, limit });
        volume
    };
    let made = Created {
        volume_id: "v".to_owned(),
        capacity_bytes: 9,
        ..Created::default()
    };
    let intended = intend_create(&limited(7), &Backend::default(), 1, NOW).unwrap();
    let mut created = created(&intended, made, NOW);
    assert_eq!(capacity_accepted(&created, NOW), None, "it is too large");
    created.spec = limited(9).spec;
    let accepted = capacity_accepted(&created, NOW).unwrap();
    assert!(accepted.status.as_ref().unwrap().conditions.is_empty());
    assert_eq!(capacity_accepted(&accepted, NOW), None, "once");
}

#[test]
fn nodes_confirm_no_later_expansion_than_the_one_they_made() {
    let mut volume = volume(5);
    volume.status.get_or_insert_default().node_expansion_bytes = 7;
    assert_eq!(node_expanded(&volume, 5), volume);
    let done = node_expanded(&volume, 7);
    assert_eq!(done.status.unwrap().node_expansion_bytes, 0);
}

#[test]
fn what_was_never_asked_for_changes_nothing_where_it_is_withdrawn() {
    let mut volume = volume(5);
    volume.status = None;
    assert_eq!(without_stray(&volume, "csi-n1"), volume);
    let asked = with_stray(&volume, "csi-n1");
    assert_ne!(asked, volume);
    assert_eq!(
        without_stray(&asked, "csi-n1").status.unwrap(),
        VolumeStatus::default()
    );
}

/// INV-6: a volume is deleted at the backend once it has left every node id.
#[test]
fn after_a_restore_requests_to_leave_node_ids_are_dropped_unless_the_volume_is_marked() {
    let mut asked = with_stray(&volume(1), "csi-n1");
    let dropped = without_strays(&asked).unwrap();
    assert_eq!(dropped.status.unwrap().detach_node_ids, [""; 0]);
    assert_eq!(without_strays(&volume(1)), None, "nothing was asked");
    status_of(&mut asked).delete_requested = Some(time::to_proto(NOW));
    assert_eq!(without_strays(&asked), None);
}

/// INV-6, INV-12: what is unknown of a node is taken for use.
#[test]
fn a_publication_of_a_snapshot_needs_the_word_of_a_node_that_may_have_the_volume() {
    let asked = |state: State, csi_node_id: &str| {
        let mut publication = publication(state);
        publication.status.as_mut().unwrap().csi_node_id = csi_node_id.to_owned();
        let status = asked_again(&publication)?.status?;
        Some((status.state(), status.unrecorded))
    };
    let confirms_again = Some((State::PendingNodeUnpublish, false));
    assert_eq!(asked(State::PendingUnpublish, "csi-n1"), confirms_again);
    assert_eq!(
        asked(State::PendingPublish, "csi-n1"),
        Some((State::Published, true)),
        "the call is repeated"
    );
    for state in [State::PendingUnpublish, State::PendingPublish] {
        assert_eq!(asked(state, ""), None, "no call was made");
    }
    for state in [State::Published, State::PendingNodeUnpublish] {
        assert_eq!(asked(state, "csi-n1"), None);
    }
}
