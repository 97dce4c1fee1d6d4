//! The authorities of `--ca-dir`, read again and again, and those of them that a leader signs with.

use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::task::spawn_blocking;
use tracing::{info, warn};

use super::authority::{Authority, AuthorityDigest, AuthorityKind};
use super::directory::{self, DirectoryError};
use super::issuers::Unusable;
use super::plan::AtHand;
use super::rotation::record::{OnRecord, Phase, Roots, Rotation};
use crate::etcd::ClusterId;

/// An authority, or why there is none.
pub(super) type Read = Result<Arc<Authority>, String>;

/// What the directory holds, as it was last read.
pub struct Found {
    /// The authorities of `current/`, in the order of [`AuthorityKind::ALL`].
    current: [Read; 2],
    /// Those of `current/` that sign no more, since they end soon. What they have signed is valid for up to a day still.
    ending: [Option<Arc<Authority>>; 2],
    /// Those of `next/`.
    next: [Read; 2],
    /// Whether the time of those of `current/` is over.
    ended: [bool; 2],
}

impl Found {
    /// Reads it on a thread that may wait: the file system may hang, and with it no other task of the term.
    pub async fn read(directory: PathBuf) -> Self {
        let reading = spawn_blocking(move || {
            let now = Timestamp::now();
            let text = |error: DirectoryError| error.to_string();
            let current = AuthorityKind::ALL.map(|kind| directory::read(&directory, kind, now));
            let ending = AuthorityKind::ALL.map(|kind| {
                ends_soon(&current[index(kind)]).then(|| directory::read_ending(&directory, kind, now))
            });
            Self {
                ended: ending.each_ref().map(|read| read.as_ref().is_some_and(ends_soon)),
                ending: ending.map(|read| read?.ok().map(Arc::new)),
                current: current.map(|read| read.map(Arc::new).map_err(text)),
                next: AuthorityKind::ALL.map(|kind| {
                    directory::read_next(&directory, kind, now)
                        .map(Arc::new)
                        .map_err(text)
                }),
            }
        });
        reading.await.unwrap_or_else(|failed| {
            let read = || [Err(failed.to_string()), Err(failed.to_string())];
            Self {
                current: read(),
                ending: [None, None],
                next: read(),
                ended: [false; 2],
            }
        })
    }

    /// The authority of this digest, wherever it lies, also one that signs no more and has not ended.
    pub fn find(&self, kind: AuthorityKind, digest: AuthorityDigest) -> Option<&Arc<Authority>> {
        let ending = self.ending[index(kind)].as_ref();
        let ending = ending.filter(|authority| authority.digest() == digest);
        self.find_signer(kind, digest).or(ending)
    }

    /// The authority of this digest, wherever it lies, if it can sign.
    fn find_signer(&self, kind: AuthorityKind, digest: AuthorityDigest) -> Option<&Arc<Authority>> {
        let [next, current] = [&self.next, &self.current].map(|read| read[index(kind)].as_ref().ok());
        next.into_iter()
            .chain(current)
            .find(|authority| authority.digest() == digest)
    }

    /// An authority of `current/`, or why there is none.
    ///
    /// # Errors
    /// Why it cannot sign.
    pub fn current(&self, kind: AuthorityKind) -> Result<&Arc<Authority>, String> {
        self.current[index(kind)].as_ref().map_err(Clone::clone)
    }

    /// Whether the time of an authority of `current/` is over.
    pub(super) fn has_ended(&self, kind: AuthorityKind) -> bool {
        self.ended[index(kind)]
    }

    /// The authorities that sign; `None` if one of them cannot.
    pub(super) fn signing(&self, rotation: &OnRecord) -> Option<Roots> {
        let chosen = self.choose(rotation);
        let of = |kind| Some(chosen.of(kind).as_ref().ok()?.digest());
        Some(Roots {
            node: of(AuthorityKind::Node)?,
            etcd: of(AuthorityKind::Etcd)?,
        })
    }

    /// Why these authorities cannot take the place of those; `None` if they can.
    pub fn hinders(&self, before: Roots, after: Roots) -> Option<String> {
        let hinders = |kind: AuthorityKind| self.unfit(kind, before.of(kind), after.of(kind));
        self.lacks(after)
            .or_else(|| AuthorityKind::ALL.into_iter().find_map(hinders))
    }

    /// Why an authority that is at hand cannot take the place of a former one: that is not there, so that its certificates would be
    /// refused here, and nothing could prove that members do; or what the new one signs would not lead to it. One that has ended is
    /// refused by everything.
    pub fn unfit(
        &self,
        kind: AuthorityKind,
        before: AuthorityDigest,
        after: AuthorityDigest,
    ) -> Option<String> {
        let new = self.find(kind, after).filter(|_| before != after)?;
        let word = kind.word();
        match self.find(kind, before) {
            Some(former) if new.leads_to(former.certificate()) => None,
            Some(_) => Some(format!(
                "the {word} authority {before} has not signed the next one: make next/ where that is the one in current/"
            )),
            None => self.lacks_former(kind, before),
        }
    }

    /// Why this former authority, which still counts, does not do so here; `None` if it is at hand, or has ended.
    fn lacks_former(&self, kind: AuthorityKind, before: AuthorityDigest) -> Option<String> {
        let is_needed = self.find(kind, before).is_none() && !self.has_ended(kind);
        is_needed.then(|| {
            format!(
                "--ca-dir lacks the former {} authority {before}, which stays in current/ until the rotation is over",
                kind.word()
            )
        })
    }

    /// Why the authorities of these digests are not all in `next/`, or in `current/`; `None` if they are.
    pub fn lacks(&self, roots: Roots) -> Option<String> {
        AuthorityKind::ALL.into_iter().find_map(|kind| {
            let digest = roots.of(kind);
            match (self.find(kind, digest), &self.next[index(kind)]) {
                (Some(_), _) => None,
                (None, Err(why)) => Some(why.clone()),
                (None, Ok(other)) => Some(format!(
                    "next/ of --ca-dir holds the {} authority {}, and not {digest}",
                    kind.word(),
                    other.digest()
                )),
            }
        })
    }

    /// The authorities that sign, as the record of a rotation says.
    pub(super) fn choose(&self, rotation: &OnRecord) -> Authorities {
        let [node, etcd] = AuthorityKind::ALL.map(|kind| self.signer(kind, rotation));
        let trusted = etcd.clone();
        let trusted = trusted.and_then(|signer| self.trusted_by_etcd(&signer, rotation));
        Authorities { node, etcd, trusted }
    }

    fn signer(&self, kind: AuthorityKind, rotation: &OnRecord) -> Read {
        let current = &self.current[index(kind)];
        let rotation = match rotation {
            OnRecord::Absent => return current.clone(),
            OnRecord::Unreadable(_) => {
                return Err("what is recorded of the rotation of the authorities cannot be read".to_owned());
            }
            OnRecord::Is(rotation, _) => rotation,
        };
        let wanted = rotation.signs(kind);
        match (self.find_signer(kind, wanted), current) {
            (Some(authority), _) => Ok(Arc::clone(authority)),
            // Replaced by hand since: what a rotation has dropped never comes back, and another one is what an operator wants.
            (None, Ok(other))
                if rotation.phase == Phase::Done && other.digest() != rotation.before.of(kind) =>
            {
                Ok(Arc::clone(other))
            }
            (None, _) => Err(format!(
                "neither next/ nor current/ of --ca-dir holds the {} authority {wanted}, which signs now",
                kind.word()
            )),
        }
    }

    /// The certificates that etcd trusts (PEM), where this authority signs. As long as the former authority counts, members show what it
    /// has signed: without it, an etcd that starts would refuse them, and no phase has a peer that trusts neither.
    ///
    /// # Errors
    /// Why they are not known.
    fn trusted_by_etcd(&self, signer: &Authority, rotation: &OnRecord) -> Result<String, String> {
        let kind = AuthorityKind::Etcd;
        let mut trusted = signer.certificates_pem().to_owned();
        let rotation = rotation.rotation().filter(|rotation| rotation.trusts_both());
        let Some(Rotation { before, after, .. }) = rotation else {
            return Ok(trusted);
        };
        if let Some(lacks) = self.lacks_former(kind, before.etcd) {
            return Err(lacks);
        }
        for digest in [after.etcd, before.etcd] {
            // One that is yet to sign may be missing: what it will sign leads to the former one.
            if let Some(other) = self.find(kind, digest)
                && digest != signer.digest()
            {
                trusted.push_str(other.certificates_pem());
            }
        }
        Ok(trusted)
    }
}

/// Whether an authority ends sooner than it was read for.
fn ends_soon(read: &Result<Authority, DirectoryError>) -> bool {
    let ended = |unusable: &Unusable| matches!(unusable, Unusable::EndsSoon(_));
    matches!(read, Err(DirectoryError::Unusable { unusable, .. }) if ended(unusable))
}

fn index(kind: AuthorityKind) -> usize {
    match kind {
        AuthorityKind::Node => 0,
        AuthorityKind::Etcd => 1,
    }
}

/// Both authorities that sign.
pub(super) struct Authorities {
    node: Read,
    etcd: Read,
    /// The certificates that etcd trusts (PEM), or why they are not known.
    trusted: Result<String, String>,
}

impl Authorities {
    /// One of them.
    pub(super) fn of(&self, kind: AuthorityKind) -> &Read {
        match kind {
            AuthorityKind::Node => &self.node,
            AuthorityKind::Etcd => &self.etcd,
        }
    }

    /// One of them, and the certificates that its holders trust beside it (PEM): those of a node come with its certificate.
    ///
    /// # Errors
    /// Why no request to it can be answered.
    pub(super) fn with_trust(&self, kind: AuthorityKind) -> Result<(&Arc<Authority>, &str), &str> {
        let trusted = match kind {
            AuthorityKind::Node => Ok(""),
            AuthorityKind::Etcd => self.trusted.as_deref().map_err(String::as_str),
        };
        let authority = self.of(kind).as_ref().map_err(String::as_str)?;
        Ok((authority, trusted?))
    }

    /// One of them, as the plan of an answer sees it.
    pub(super) fn at_hand(&self, kind: AuthorityKind, cluster: Option<ClusterId>) -> AtHand {
        match (self.with_trust(kind), cluster) {
            (Err(_), _) => AtHand::Unusable,
            (Ok(_), None) => AtHand::NoCluster,
            (Ok((authority, _)), Some(_)) => AtHand::Usable {
                not_before: authority.not_before(),
                not_after: authority.not_after(),
            },
        }
    }

    /// Says in the log which of them cannot sign, at the beginning of a term.
    pub(super) fn report(&self) {
        for kind in AuthorityKind::ALL {
            let word = kind.word();
            match (kind, self.of(kind)) {
                (_, Ok(_)) => {}
                (AuthorityKind::Node, Err(error)) => warn!("the {word} authority cannot sign: {error}"),
                // Where nodes run no etcd, none is missed.
                (AuthorityKind::Etcd, Err(error)) => info!("the {word} authority cannot sign: {error}"),
            }
        }
    }

    /// They were read again: they may be there by now, or be others.
    pub(super) fn take_in(&mut self, now: Self) {
        for kind in AuthorityKind::ALL {
            let word = kind.word();
            match (self.of(kind), now.of(kind)) {
                (Err(_), Ok(authority)) => info!("the {word} authority {} can sign", authority.digest()),
                (Ok(before), Ok(after)) if before.digest() != after.digest() => {
                    info!("the {word} authority is now {}", after.digest());
                }
                (Ok(_), Err(error)) => warn!("the {word} authority cannot sign any more: {error}"),
                (Err(before), Err(error)) if before != error => {
                    warn!("the {word} authority still cannot sign: {error}");
                }
                (Ok(_) | Err(_), Ok(_) | Err(_)) => {}
            }
        }
        *self = now;
    }
}

#[cfg(test)]
mod tests {
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
}
