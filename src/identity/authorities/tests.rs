use jiff::SignedDuration;

use super::super::authority::AUTHORITY_LIFE;
use super::*;
use crate::etcd::Revision;

fn now() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
}

fn authorities() -> [Arc<Authority>; 2] {
    AuthorityKind::ALL.map(|kind| Arc::new(Authority::create(kind, now()).unwrap().0))
}

fn roots([node, etcd]: &[Arc<Authority>; 2]) -> Roots {
    Roots {
        node: node.digest(),
        etcd: etcd.digest(),
    }
}

fn found(current: &[Arc<Authority>; 2], next: Option<&[Arc<Authority>; 2]>) -> Found {
    let missing = || Err("next/ is missing".to_owned());
    Found {
        current: current.clone().map(Ok),
        ending: [None, None],
        next: next.map_or_else(|| [missing(), missing()], |next| next.clone().map(Ok)),
        ended: [false; 2],
    }
}

#[test]
fn the_record_says_which_authority_signs_and_one_that_is_not_in_the_directory_signs_nothing() {
    let (old, new, other) = (authorities(), authorities(), authorities());
    let both = found(&old, Some(&new));
    let signer = |found: &Found, on_record: &OnRecord| {
        let chosen = found.choose(on_record);
        let of = |kind| chosen.of(kind).as_ref().ok().map(|authority| authority.digest());
        AuthorityKind::ALL.map(of)
    };
    let digests = |of: &[Arc<Authority>; 2]| of.clone().map(|authority| Some(authority.digest()));
    assert_eq!(signer(&both, &OnRecord::Absent), digests(&old));
    assert_eq!(signer(&both, &OnRecord::Unreadable(Revision(1))), [None, None]);
    let begun = Rotation::begun(roots(&old), roots(&new), 0, now());
    let in_phase = |phase| OnRecord::Is(Box::new(begun.moved_to(phase, now())), Revision(1));
    assert_eq!(signer(&both, &in_phase(Phase::Trust)), digests(&old));
    for phase in [Phase::Reissue, Phase::Drop, Phase::Done] {
        assert_eq!(signer(&both, &in_phase(phase)), digests(&new), "{phase:?}");
        let behind = found(&old, None);
        assert_eq!(signer(&behind, &in_phase(phase)), [None, None], "{phase:?}");
    }
    // Moved, and replaced by hand.
    for current in [&new, &other] {
        let moved = found(current, None);
        assert_eq!(signer(&moved, &in_phase(Phase::Done)), digests(current));
    }
    assert_eq!(signer(&found(&other, None), &in_phase(Phase::Drop)), [None, None]);
}

#[test]
fn etcd_trusts_both_until_the_former_authority_is_dropped() {
    let (old, new) = (authorities(), authorities());
    let both = found(&old, Some(&new));
    let begun = Rotation::begun(roots(&old), roots(&new), 0, now());
    let trusted = |found: &Found, phase| {
        let on_record = OnRecord::Is(Box::new(begun.moved_to(phase, now())), Revision(1));
        let chosen = found.choose(&on_record);
        chosen.with_trust(AuthorityKind::Etcd).unwrap().1.to_owned()
    };
    let without = found(&old, None);
    let [old, new] = [&old[1], &new[1]];
    let two = format!("{}{}", new.certificates_pem(), old.certificates_pem());
    assert_eq!(trusted(&both, Phase::Reissue), two);
    let reversed = format!("{}{}", old.certificates_pem(), new.certificates_pem());
    assert_eq!(trusted(&both, Phase::Trust), reversed);
    assert_eq!(trusted(&both, Phase::Drop), new.certificates_pem());
    let absent = without.choose(&OnRecord::Absent);
    assert_eq!(
        absent.with_trust(AuthorityKind::Etcd).unwrap().1,
        old.certificates_pem()
    );
}

/// No phase has a peer that trusts neither.
#[test]
fn no_request_of_etcd_is_answered_without_the_former_authority_while_members_show_its_certificates() {
    let (old, new) = (authorities(), authorities());
    let begun = Rotation::begun(roots(&old), roots(&new), 0, now());
    let can_answer = |found: &Found, phase, kind| {
        let on_record = OnRecord::Is(Box::new(begun.moved_to(phase, now())), Revision(1));
        let at_hand = found.choose(&on_record).at_hand(kind, Some(ClusterId(1)));
        matches!(at_hand, AtHand::Usable { .. })
    };
    let [node, etcd] = AuthorityKind::ALL;
    let both = found(&old, Some(&new));
    let mut without = found(&new, None);
    assert!(can_answer(&both, Phase::Reissue, etcd));
    assert!(!can_answer(&without, Phase::Reissue, etcd));
    let reissue = OnRecord::Is(Box::new(begun.moved_to(Phase::Reissue, now())), Revision(1));
    let chosen = without.choose(&reissue);
    let why = chosen.with_trust(etcd).unwrap_err();
    let former = old[1].digest().to_string();
    assert!(why.contains("--ca-dir") && why.contains(&former), "{why}");
    assert!(chosen.of(etcd).is_ok(), "it signs lists of revoked certificates");
    assert!(can_answer(&without, Phase::Reissue, node), "servers show both");
    for after in [Phase::Drop, Phase::Done] {
        assert!(can_answer(&without, after, etcd), "{after:?}");
    }
    // What the new authority signs leads to the former one.
    assert!(can_answer(&found(&old, None), Phase::Trust, etcd));
    without.ended = [true; 2];
    assert!(
        can_answer(&without, Phase::Reissue, etcd),
        "everything refuses it"
    );
}

/// What it has signed is valid for up to a day still.
#[test]
fn a_former_authority_that_ends_soon_is_trusted_until_its_end_and_signs_nothing() {
    let (old, new) = (authorities(), authorities());
    let begun = Rotation::begun(roots(&old), roots(&new), 0, now());
    let in_phase = |phase| OnRecord::Is(Box::new(begun.moved_to(phase, now())), Revision(1));
    let ends = || Err("it ends soon".to_owned());
    let late = Found {
        current: [ends(), ends()],
        ending: old.clone().map(Some),
        ..found(&new, Some(&new))
    };
    let kind = AuthorityKind::Etcd;
    let chosen = late.choose(&in_phase(Phase::Reissue));
    let both = format!("{}{}", new[1].certificates_pem(), old[1].certificates_pem());
    assert_eq!(chosen.with_trust(kind).unwrap().1, both);
    assert!(late.find(kind, old[1].digest()).is_some() && !late.has_ended(kind));
    assert!(late.choose(&in_phase(Phase::Trust)).of(kind).is_err());
    assert!(late.choose(&OnRecord::Absent).of(kind).is_err());
}

#[tokio::test]
async fn an_authority_on_disk_ends_soon_for_a_day_and_has_ended_after_that() {
    let home = tempfile::tempdir().unwrap();
    let current = home.path().join(directory::CURRENT);
    std::fs::create_dir_all(&current).unwrap();
    for (kind, left) in AuthorityKind::ALL.into_iter().zip([12, -12]) {
        let made = Timestamp::now() + SignedDuration::from_hours(left) - AUTHORITY_LIFE;
        let (authority, key) = Authority::create(kind, made).unwrap();
        let write = |name: &str, text: &str| std::fs::write(current.join(name), text).unwrap();
        write(kind.certificate_file(), authority.certificates_pem());
        write(kind.key_file(), &key);
    }
    let found = Found::read(home.path().to_owned()).await;
    for (kind, is_trusted) in AuthorityKind::ALL.into_iter().zip([true, false]) {
        assert!(found.current(kind).is_err(), "{kind:?}");
        assert_eq!(found.ending[index(kind)].is_some(), is_trusted, "{kind:?}");
        assert_eq!(found.has_ended(kind), !is_trusted, "{kind:?}");
    }
}

#[test]
fn the_next_authorities_fit_those_alone_that_have_signed_them_and_are_still_there() {
    let old = authorities();
    let mut next = AuthorityKind::ALL.into_iter().zip(&old).map(|(kind, former)| {
        let (new, _, cross) = Authority::create_after(kind, former, now()).unwrap();
        Arc::new(new.crossed(&cross))
    });
    let new = [next.next().unwrap(), next.next().unwrap()];
    let hinders = |found: &Found| found.hinders(roots(&old), roots(&new));
    assert_eq!(hinders(&found(&old, Some(&new))), None);
    assert_eq!(
        found(&new, None).hinders(roots(&new), roots(&new)),
        None,
        "there is nothing to replace"
    );
    let mut without = found(&new, None);
    let lacks = hinders(&without).unwrap();
    assert!(lacks.contains(&old[0].digest().to_string()), "{lacks}");
    without.ended = [true; 2];
    assert_eq!(hinders(&without), None);
    let (other, foreign) = (authorities(), found(&old, Some(&authorities())));
    let [node, etcd] = &foreign.next;
    let unsigned = Roots {
        node: node.as_ref().unwrap().digest(),
        etcd: etcd.as_ref().unwrap().digest(),
    };
    let unfit = foreign.hinders(roots(&old), unsigned).unwrap();
    assert!(unfit.contains("has not signed"), "{unfit}");
    assert!(found(&other, None).hinders(roots(&old), roots(&new)).is_some());
}

#[test]
fn what_signs_now_is_what_a_rotation_replaces() {
    let (old, new, other) = (authorities(), authorities(), authorities());
    let done = Rotation::begun(roots(&old), roots(&new), 0, now()).moved_to(Phase::Done, now());
    let done = OnRecord::Is(Box::new(done), Revision(1));
    for (current, on_record, expected) in [
        (&old, OnRecord::Absent, Some(roots(&old))),
        (&new, done.clone(), Some(roots(&new))),
        // Replaced by hand since.
        (&other, done.clone(), Some(roots(&other))),
        (&old, done, None),
    ] {
        assert_eq!(found(current, None).signing(&on_record), expected);
    }
}

#[test]
fn what_the_directory_lacks_of_the_next_authorities_is_said() {
    let (old, new, other) = (authorities(), authorities(), authorities());
    assert_eq!(found(&old, Some(&new)).lacks(roots(&new)), None);
    assert_eq!(found(&new, None).lacks(roots(&new)), None);
    assert_eq!(
        found(&old, None).lacks(roots(&new)).as_deref(),
        Some("next/ is missing")
    );
    let lacks = found(&old, Some(&other)).lacks(roots(&new)).unwrap();
    assert!(lacks.contains(&new[0].digest().to_string()), "{lacks}");
}
