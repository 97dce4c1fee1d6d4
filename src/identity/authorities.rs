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
mod tests;
