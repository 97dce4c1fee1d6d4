//! What is on record of a rotation. Pure.

use jiff::Timestamp;

use crate::etcd::{KeyValue, Revision};
use crate::identity::authority::{AuthorityDigest, AuthorityKind};
use crate::proto;
use crate::proto::rotation::Phase as StoredPhase;
use crate::store::object::{message, time};

/// The digests of both authorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roots {
    /// That of the node authority.
    pub node: AuthorityDigest,
    /// That of the etcd authority.
    pub etcd: AuthorityDigest,
}

impl Roots {
    /// One of them.
    pub fn of(&self, kind: AuthorityKind) -> AuthorityDigest {
        match kind {
            AuthorityKind::Node => self.node,
            AuthorityKind::Etcd => self.etcd,
        }
    }

    /// As they are stored.
    pub fn to_proto(self) -> proto::Roots {
        proto::Roots {
            node_sha256: self.node.0.to_vec(),
            etcd_sha256: self.etcd.0.to_vec(),
        }
    }

    /// Reads them; `None` if one is missing or no digest.
    pub fn from_proto(stored: Option<&proto::Roots>) -> Option<Self> {
        let stored = stored?;
        Some(Self {
            node: digest(&stored.node_sha256)?,
            etcd: digest(&stored.etcd_sha256)?,
        })
    }
}

/// The digest of an authority as it is stored; `None` for what is none.
pub fn digest(stored: &[u8]) -> Option<AuthorityDigest> {
    stored.try_into().ok().map(AuthorityDigest)
}

/// How far a rotation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Every replica comes to trust both.
    Trust,
    /// The new ones sign, and every certificate is replaced.
    Reissue,
    /// The former ones are dropped.
    Drop,
    /// It is over.
    Done,
}

impl Phase {
    /// As it is stored.
    pub fn to_proto(self) -> StoredPhase {
        match self {
            Self::Trust => StoredPhase::Trust,
            Self::Reissue => StoredPhase::Reissue,
            Self::Drop => StoredPhase::Drop,
            Self::Done => StoredPhase::Done,
        }
    }

    /// Reads it; `None` for one that this release does not know.
    pub fn from_proto(stored: StoredPhase) -> Option<Self> {
        match stored {
            StoredPhase::Trust => Some(Self::Trust),
            StoredPhase::Reissue => Some(Self::Reissue),
            StoredPhase::Drop => Some(Self::Drop),
            StoredPhase::Done => Some(Self::Done),
            StoredPhase::Unspecified => None,
        }
    }

    /// Its name: `trust`, `reissue`, `drop`, `done`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Trust => "trust",
            Self::Reissue => "reissue",
            Self::Drop => "drop",
            Self::Done => "done",
        }
    }

    /// The one after it; the last one has none.
    pub fn next(self) -> Option<Self> {
        match self {
            Self::Trust => Some(Self::Reissue),
            Self::Reissue => Some(Self::Drop),
            Self::Drop => Some(Self::Done),
            Self::Done => None,
        }
    }
}

/// A rotation that can be read.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotation {
    /// How far it is.
    pub phase: Phase,
    /// The authorities that it drops.
    pub before: Roots,
    /// Those that take their place.
    pub after: Roots,
    /// As it is stored.
    pub value: proto::Rotation,
}

impl Rotation {
    /// One that begins now.
    pub fn begun(before: Roots, after: Roots, last_restart: u64, now: Timestamp) -> Self {
        let value = proto::Rotation {
            phase: StoredPhase::Trust.into(),
            before: Some(before.to_proto()),
            after: Some(after.to_proto()),
            begun: Some(time::to_proto(now)),
            since: Some(time::to_proto(now)),
            last_restart,
            ..proto::Rotation::default()
        };
        Self {
            phase: Phase::Trust,
            before,
            after,
            value,
        }
    }

    /// The same rotation in this phase, since now.
    pub fn moved_to(&self, phase: Phase, now: Timestamp) -> Self {
        let value = proto::Rotation {
            phase: phase.to_proto().into(),
            since: Some(time::to_proto(now)),
            waits: Vec::new(),
            held_up: 0,
            restart: None,
            ..self.value.clone()
        };
        Self {
            phase,
            value,
            ..self.clone()
        }
    }

    /// Reads what is stored; `None` if it cannot be read, or only a later release can.
    pub fn read(stored: &[u8]) -> Option<Self> {
        let value: proto::Rotation = message("Rotation", stored).ok()?;
        let phase = StoredPhase::try_from(value.phase).ok()?;
        Some(Self {
            phase: Phase::from_proto(phase)?,
            before: Roots::from_proto(value.before.as_ref())?,
            after: Roots::from_proto(value.after.as_ref())?,
            value,
        })
    }

    /// The authority that signs certificates of nodes and of etcd.
    pub fn signs(&self, kind: AuthorityKind) -> AuthorityDigest {
        match self.phase {
            Phase::Trust => self.before.of(kind),
            Phase::Reissue | Phase::Drop | Phase::Done => self.after.of(kind),
        }
    }

    /// Whether the former authorities still count.
    pub fn trusts_both(&self) -> bool {
        match self.phase {
            Phase::Trust | Phase::Reissue => true,
            Phase::Drop | Phase::Done => false,
        }
    }

    /// What etcd trusts now (PEM), of what was recorded with a certificate of it: once the former authority counts no more, without that
    /// and those above it. An answer may be older than that, and what a rotation has dropped never comes back. Where nothing else is
    /// left, or it cannot be read, it stays as it was recorded: etcd would not start without any.
    pub fn trusted_of(&self, recorded: &str) -> String {
        if self.trusts_both() || self.before.etcd == self.after.etcd {
            return recorded.to_owned();
        }
        let blocks = pem::parse_many(recorded).unwrap_or_default();
        // Each authority is followed by those above it.
        let mut is_former = false;
        let kept = blocks.iter().filter(|block| {
            match AuthorityDigest::of(block.contents()) {
                digest if digest == self.before.etcd => is_former = true,
                digest if digest == self.after.etcd => is_former = false,
                _ => {}
            }
            !is_former
        });
        let kept: String = kept.map(pem::encode).collect();
        match kept.is_empty() {
            true => recorded.to_owned(),
            false => kept,
        }
    }
}

/// What is stored of a rotation.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum OnRecord {
    /// There never was one.
    #[default]
    Absent,
    /// It cannot be read.
    Unreadable(Revision),
    /// It can.
    Is(Box<Rotation>, Revision),
}

impl OnRecord {
    /// Reads a stored record.
    pub fn of(kv: &KeyValue) -> Self {
        match Rotation::read(&kv.value) {
            Some(rotation) => Self::Is(Box::new(rotation), kv.mod_revision),
            None => Self::Unreadable(kv.mod_revision),
        }
    }

    /// The rotation, if it can be read.
    pub fn rotation(&self) -> Option<&Rotation> {
        match self {
            Self::Is(rotation, _) => Some(rotation),
            Self::Absent | Self::Unreadable(_) => None,
        }
    }

    /// When it was last written.
    pub fn revision(&self) -> Revision {
        match self {
            Self::Absent => Revision::ABSENT,
            Self::Unreadable(revision) | Self::Is(_, revision) => *revision,
        }
    }
}

/// What an operator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The authorities that take the place of the present ones.
    pub roots: Roots,
    /// The former ones may be dropped.
    pub drop_old: bool,
}

impl Asked {
    /// Whether the rotation on record is not the one that is asked for. A request that was carried out stays on record.
    pub fn is_to_begin(&self, rotation: Option<&Rotation>) -> bool {
        rotation.is_none_or(|rotation| rotation.after != self.roots)
    }

    /// Reads a stored request; `None` if it cannot be read.
    pub fn read(stored: &[u8]) -> Option<Self> {
        let value: proto::RotationRequest = message("RotationRequest", stored).ok()?;
        Some(Self {
            roots: Roots::from_proto(value.roots.as_ref())?,
            drop_old: value.drop_old,
        })
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::identity::Authority;

    const BEFORE: Roots = Roots {
        node: AuthorityDigest([1; 32]),
        etcd: AuthorityDigest([2; 32]),
    };

    const AFTER: Roots = Roots {
        node: AuthorityDigest([3; 32]),
        etcd: AuthorityDigest([4; 32]),
    };

    fn now() -> Timestamp {
        "2026-03-01T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn a_rotation_reads_back_and_what_a_later_release_has_written_is_not_guessed() {
        let begun = Rotation::begun(BEFORE, AFTER, 7, now());
        assert_eq!(Rotation::read(&begun.value.encode_to_vec()), Some(begun.clone()));
        let moved = begun.moved_to(Phase::Reissue, now());
        let read = Rotation::read(&moved.value.encode_to_vec()).unwrap();
        assert_eq!((read.phase, read.value.last_restart), (Phase::Reissue, 7));
        let mut later = begun.value.clone();
        later.phase = 99;
        assert_eq!(Rotation::read(&later.encode_to_vec()), None);
        later = begun.value.clone();
        later.after = None;
        assert_eq!(Rotation::read(&later.encode_to_vec()), None);
        assert_eq!(Rotation::read(b"\xff"), None);
    }

    /// INV-13.
    #[test]
    fn an_answer_that_is_older_than_the_end_of_an_authority_does_not_bring_it_back() {
        let authority = || Authority::create(AuthorityKind::Etcd, now()).unwrap().0;
        let (former, new, above) = (authority(), authority(), authority());
        let roots = |etcd: &Authority| Roots {
            etcd: etcd.digest(),
            ..BEFORE
        };
        let begun = Rotation::begun(roots(&former), roots(&new), 0, now());
        let [former, new, above] = [&former, &new, &above].map(Authority::certificates_pem);
        for both in [format!("{new}{former}{above}"), format!("{former}{above}{new}")] {
            for phase in [Phase::Trust, Phase::Reissue] {
                assert_eq!(begun.moved_to(phase, now()).trusted_of(&both), both);
            }
            for phase in [Phase::Drop, Phase::Done] {
                assert_eq!(begun.moved_to(phase, now()).trusted_of(&both), new);
            }
        }
        let done = begun.moved_to(Phase::Done, now());
        for recorded in [former, above, ""] {
            assert_eq!(done.trusted_of(recorded), recorded, "nothing else is there");
        }
        let same = Rotation::begun(BEFORE, BEFORE, 0, now()).moved_to(Phase::Drop, now());
        assert_eq!(same.trusted_of(former), former, "it takes the place of none");
    }

    #[test]
    fn the_former_authorities_sign_in_the_first_phase_alone_and_count_until_they_are_dropped() {
        let mut rotation = Rotation::begun(BEFORE, AFTER, 0, now());
        let mut seen = Vec::new();
        loop {
            let signs = AuthorityKind::ALL.map(|kind| rotation.signs(kind) == AFTER.of(kind));
            seen.push((rotation.phase.word(), signs, rotation.trusts_both()));
            let Some(next) = rotation.phase.next() else { break };
            rotation = rotation.moved_to(next, now());
        }
        assert_eq!(
            seen,
            [
                ("trust", [false, false], true),
                ("reissue", [true, true], true),
                ("drop", [true, true], false),
                ("done", [true, true], false),
            ]
        );
    }
}
