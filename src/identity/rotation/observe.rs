//! Looks at what members of etcd show and take: the leader asks each with a certificate of either authority. That proves what a member
//! does, also one that a person has set up, and no report has to be believed.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{join, join_all};
use jiff::{SignedDuration, Timestamp};

use super::facts::{Looked, Seen};
use super::record::Phase;
use super::view::{Looks, session};
use crate::etcd::Revision;
use crate::etcd::handshake::{self, Answer, NotAsked, Shown};
use crate::etcd::members::ListedMember;
use crate::identity::authority::Authority;
use crate::identity::{NotMade, etcd};
use crate::store::Store;

/// How long the certificates are valid that the leader asks with: they are made for each look, in memory alone.
const LIFE: SignedDuration = SignedDuration::from_hours(1);

/// Their common name, which members write to their logs.
const NAME: &str = "quorate-rotation";

/// The limit of an answer: longer than an election takes.
const LIMIT: Duration = Duration::from_secs(5);

/// The page that says whether a member is healthy.
const HEALTH: &str = "/health";

/// What a leader asks members with.
pub struct Probes {
    new: Shown,
    /// `None` where nothing is asked with it.
    old: Option<Shown>,
    /// The new authority, to tell what it has signed.
    authority: Arc<Authority>,
    phase: Phase,
}

impl Probes {
    /// Makes certificates to ask with in this phase. While certificates are replaced, one that leads to either authority: what members
    /// show is asked alone, and one that is refused would be a line in the log of a member with each look. After that, one of each, each
    /// by itself; without `old`, the former authority signs no more, and nothing takes what it has signed.
    ///
    /// # Errors
    /// If the machine's source of random bits fails.
    pub fn make(
        phase: Phase,
        new: Arc<Authority>,
        old: Option<&Authority>,
        now: Timestamp,
    ) -> Result<Self, NotMade> {
        let mut roots = new.certificates_pem().to_owned();
        if let Some(old) = old {
            roots.push_str(old.certificates_pem());
        }
        let is_alone = phase != Phase::Reissue;
        let shown = |authority: &Authority| {
            let issued = etcd::client(authority, NAME, LIFE, now)?;
            // Without those above it, a member takes it by its own trust in the authority, and by no other one.
            let chain = match is_alone {
                true => etcd::first_of(&issued.chain_pem)?,
                false => issued.chain_pem,
            };
            Ok::<_, NotMade>(Shown {
                roots: roots.clone().into_bytes(),
                identity: (chain.into_bytes(), issued.key_pem.into_bytes()),
            })
        };
        Ok(Self {
            new: shown(&new)?,
            old: old.filter(|_| is_alone).map(shown).transpose()?,
            authority: new,
            phase,
        })
    }
}

/// Looks at sessions and members. Without probes, no member is looked at, and nothing is known of them (INV-12). `since` is the revision
/// of what is on record by now.
pub async fn look(store: Store, probes: Option<Probes>, since: Revision) -> Looks {
    let sessions = async {
        let listed = store.etcd.list(&store.keys.all_alive()).await;
        // One that is not known is one of a node that is down, which holds the phase up.
        let (listed, _) = listed.unwrap_or_default();
        listed.iter().filter_map(session).collect()
    };
    let members = async {
        let probes = probes.as_ref()?;
        let (store, list) = (&store, store.etcd.list_members().await.ok()?);
        let looks = list.members.into_iter().map(|member| async move {
            let seen = look_at(store, &member, probes).await;
            (member, seen)
        });
        Some(join_all(looks).await)
    };
    let (sessions, members) = join(sessions, members).await;
    Looks {
        since,
        of: probes.map(|probes| (probes.phase, probes.authority.digest())),
        sessions,
        members,
    }
}

async fn look_at(store: &Store, member: &ListedMember, probes: &Probes) -> Looked {
    if member.client_urls.is_empty() {
        return Looked::Unreachable("it has not started yet".to_owned());
    }
    let encrypted = member.client_urls.iter();
    let encrypted = encrypted.filter(|url| url.starts_with("https://"));
    let mut seen = Looked::InClearText { serves: false };
    for url in encrypted {
        seen = match ask(url, probes).await {
            Ok(answered) => return Looked::Seen(answered),
            Err(NotAsked::Foreign(_)) => Looked::Foreign { serves: false },
            Err(error) => Looked::Unreachable(error.to_string()),
        };
    }
    // Nothing is rotated there, and its vote counts all the same (INV-5).
    if let Looked::InClearText { serves } | Looked::Foreign { serves } = &mut seen {
        let evidence = store.etcd.survey_leaving(member, LIMIT).await;
        *serves = evidence.read.answer().is_some();
    }
    seen
}

async fn ask(url: &str, probes: &Probes) -> Result<Seen, NotAsked> {
    let asks_old = async {
        match &probes.old {
            Some(old) => handshake::ask(url, HEALTH, old, LIMIT).await.map(Some),
            None => Ok(None),
        }
    };
    let (new, old) = join(handshake::ask(url, HEALTH, &probes.new, LIMIT), asks_old).await;
    let (new, old) = (new?, old?);
    let takes = |answer: &Answer| answer.status.is_some();
    let is_healthy = |answer: &Answer| answer.status == Some(200);
    let shown = [Some(&new), old.as_ref()].into_iter().flatten();
    let shown = shown.map(|answer| &answer.certificate);
    let authority = probes.authority.certificate();
    Ok(Seen {
        is_healthy: is_healthy(&new) || old.as_ref().is_some_and(is_healthy),
        shows_new: shown
            .filter(|certificate| !certificate.is_empty())
            .any(|certificate| authority.has_signed(certificate)),
        // Without the former authority at hand, what does not take the new one takes that, as far as is known.
        takes_old: old.as_ref().map_or(!takes(&new), takes),
        takes_new: takes(&new),
    })
}
