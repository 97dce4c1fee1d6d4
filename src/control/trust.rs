//! What this replica shows at its control port, and whose certificates it takes there: both follow the files of the node
//! authority, and the record of a rotation where one is under way.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tracing::{debug, info, warn};

use super::status::ControlStatus;
use super::{Settings, tls};
use crate::etcd::{ClusterId, KeyRange};
use crate::identity::authorities::Found;
use crate::identity::control::{self, LIFE};
use crate::identity::rotation::record::{OnRecord, Phase};
use crate::identity::validity::BACKDATED;
use crate::identity::{Authority, AuthorityDigest, AuthorityKind};
use crate::store::{Follower, Store};
use report::{hindrance, report};

mod report;

/// How often the files are read, eight of a kilobyte each.
const EVERY: Duration = Duration::from_secs(1);

/// The limit of a read of the record of a rotation: files are looked at all the same.
const READ_LIMIT: Duration = Duration::from_secs(2);

/// What the control port shows and takes, for as long as the authorities stay the same.
pub struct Trust {
    /// The server's side of TLS, with a certificate of its own.
    pub tls: Arc<ServerConfig>,
    /// The authorities that count, with what verifies certificates of nodes: the one that takes the place of the other first.
    pub trusted: Vec<(AuthorityDigest, Arc<dyn ClientCertVerifier>)>,
    /// The authority that has signed the server's certificate.
    pub authority: AuthorityDigest,
    /// The cluster that both sides' certificates name.
    pub cluster: ClusterId,
    /// When the server's certificate was made.
    made: Timestamp,
    /// Until when it is valid.
    until: Timestamp,
}

impl Trust {
    /// Whether certificates of this authority count.
    pub fn trusts(&self, authority: AuthorityDigest) -> bool {
        self.trusted.iter().any(|(trusted, _)| *trusted == authority)
    }

    /// Whether it is a trust in exactly these.
    fn is_in(&self, wanted: &Wanted) -> bool {
        let own = self.trusted.iter().map(|(digest, _)| *digest);
        self.authority == wanted.signer.digest() && own.eq(wanted.digests())
    }
}

/// The latest trust; `None` until the authority could be read once.
pub type KnownTrust = watch::Receiver<Option<Arc<Trust>>>;

/// The authorities that the control port shows and takes.
struct Wanted {
    signer: Arc<Authority>,
    /// The authority whose place that one takes, while both count.
    former: Option<Arc<Authority>>,
    /// Why that is not yet what the record of a rotation says.
    lacks: Option<String>,
}

impl Wanted {
    fn alone(signer: &Arc<Authority>) -> Self {
        Self {
            signer: Arc::clone(signer),
            former: None,
            lacks: None,
        }
    }

    fn digests(&self) -> impl Iterator<Item = AuthorityDigest> {
        let former = self.former.iter().map(|former| former.digest());
        [self.signer.digest()].into_iter().chain(former)
    }
}

/// Keeps the trust current. One that could not be replaced stays: files that are away for a moment end no session. Never ends.
pub async fn keep(
    store: &Store,
    settings: &Settings,
    known: &watch::Sender<Option<Arc<Trust>>>,
    status: &ControlStatus,
) {
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut reported = None;
    let mut last = None;
    let mut record = Follower::new(&store.etcd, KeyRange::key(store.keys.rotation()));
    let mut has_changed = true;
    loop {
        tokio::select! {
            _ = every.tick() => {}
            // A wake-up carries no data: the record is read again.
            _ = record.next() => has_changed = true,
        }
        if has_changed {
            // Without an answer the last one counts, and it is read again. No call is served meanwhile: each asks etcd.
            match timeout(READ_LIMIT, store.etcd.get(&store.keys.rotation())).await {
                Ok(Ok((stored, _))) => {
                    last = Some(stored.map_or(OnRecord::Absent, |kv| OnRecord::of(&kv)));
                    has_changed = false;
                }
                Ok(Err(error)) => debug!("what is recorded of a rotation is not known: {error}"),
                Err(_) => {
                    debug!("what is recorded of a rotation is not known: no answer within {READ_LIMIT:?}");
                }
            }
        }
        // Before the first one nothing says that the authority in current/ was not dropped (INV-12).
        let Some(on_record) = &last else {
            let trouble = "what is recorded of the rotation of the authorities is not known yet".to_owned();
            status.set(None, Some(trouble));
            continue;
        };
        let now = Timestamp::now();
        let before = known.borrow().clone();
        let found = Found::read(settings.ca_dir.clone()).await;
        let wanted = wanted(&found, on_record);
        let looked = wanted
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|wanted| look(wanted, store.etcd.cluster_id(), before.as_deref(), now));
        let trouble = match looked {
            Ok(None) => None,
            Ok(Some(trust)) => {
                if before.is_none_or(|before| before.authority != trust.authority) {
                    let name = control::server_name(trust.cluster);
                    info!(
                        "the control port is {name}, certified by the node authority {}",
                        trust.authority
                    );
                }
                known.send_replace(Some(Arc::new(trust)));
                None
            }
            Err(error) => Some(error),
        };
        if let Some(error) = &trouble
            && reported.as_ref() != Some(error)
        {
            warn!("the control port gets no new certificate: {error}");
        }
        let until = known.borrow().as_ref().map(|trust| trust.until);
        status.set(until, trouble.clone());
        reported = trouble;
        if let Some(rotation) = on_record
            .rotation()
            .filter(|rotation| rotation.phase != Phase::Done)
        {
            let trust = known.borrow().clone();
            let hindrance = hindrance(&found, rotation, &wanted, trust.as_deref(), store).await;
            report(store, settings, rotation, hindrance).await;
        }
    }
}

/// The authorities that count, by what the directory holds and the record says. An authority that the record names and the directory
/// does not hold is none.
fn wanted(found: &Found, on_record: &OnRecord) -> Result<Wanted, String> {
    let kind = AuthorityKind::Node;
    let rotation = match on_record {
        OnRecord::Absent => return found.current(kind).map(Wanted::alone),
        OnRecord::Unreadable(_) => {
            return Err("what is recorded of the rotation of the authorities cannot be read".to_owned());
        }
        OnRecord::Is(rotation, _) => rotation,
    };
    let former = found.find(kind, rotation.before.node);
    let lacks = || {
        let lacks = found.lacks(rotation.after);
        lacks.unwrap_or_else(|| "the new authority is not in --ca-dir".to_owned())
    };
    let unfit = found.unfit(kind, rotation.before.node, rotation.after.node);
    match (found.find(kind, rotation.after.node), former) {
        // What the new one signs would not lead to the former one, by which agents know servers.
        (Some(_), Some(former)) if rotation.trusts_both() && unfit.is_some() => Ok(Wanted {
            lacks: unfit,
            ..Wanted::alone(former)
        }),
        (Some(new), former) if rotation.trusts_both() => Ok(Wanted {
            former: former
                .filter(|_| rotation.before.node != rotation.after.node)
                .cloned(),
            lacks: unfit,
            ..Wanted::alone(new)
        }),
        (Some(new), _) => Ok(Wanted::alone(new)),
        (None, Some(former)) if rotation.trusts_both() => Ok(Wanted {
            lacks: Some(lacks()),
            ..Wanted::alone(former)
        }),
        (None, None) if rotation.phase == Phase::Done => found.current(kind).map(Wanted::alone),
        (None, _) => Err(lacks()),
    }
}

/// What replaces the present trust; `None` if it may stay.
fn look(
    wanted: &Wanted,
    cluster: Option<ClusterId>,
    before: Option<&Trust>,
    now: Timestamp,
) -> Result<Option<Trust>, String> {
    let cluster = cluster.ok_or("etcd has not said the id of its cluster")?;
    let stays =
        |before: &Trust| before.is_in(wanted) && before.cluster == cluster && !is_due(before.made, now);
    if before.is_some_and(stays) {
        return Ok(None);
    }
    make(&wanted.signer, wanted.former.as_deref(), cluster, now).map(Some)
}

/// A trust in this authority, and in the former one as long as that counts, with a certificate that the new one has just signed.
///
/// # Errors
/// Why there is none.
pub fn make(
    authority: &Authority,
    former: Option<&Authority>,
    cluster: ClusterId,
    now: Timestamp,
) -> Result<Trust, String> {
    let certificate = control::certificate_beside(authority, former, cluster, now);
    let certificate = certificate.map_err(|error| error.to_string())?;
    let until = certificate.not_after;
    let tls = tls::server_config(certificate).map_err(|error| error.to_string())?;
    let mut trusted = Vec::new();
    for trusts in [Some(authority), former].into_iter().flatten() {
        let verifier = tls::verifier_of(trusts.certificate_der()).map_err(|error| error.to_string())?;
        trusted.push((trusts.digest(), verifier));
    }
    Ok(Trust {
        tls: Arc::new(tls),
        trusted,
        authority: authority.digest(),
        cluster,
        made: now,
        until,
    })
}

/// Whether a certificate that was made then has to be replaced: half of its life is over, or the clock was set back so far that it
/// will soon seem to be one of the future.
fn is_due(made: Timestamp, now: Timestamp) -> bool {
    let age = now.duration_since(made);
    age > LIFE / 2 || age < -BACKDATED / 2
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use jiff::SignedDuration;

    use super::*;
    use crate::etcd::Revision;
    use crate::identity::rotation::record::{Roots, Rotation};

    /// Writes authorities with the next ones, and returns these.
    fn directory(home: &Path) -> Roots {
        let mut digests = Vec::new();
        for kind in AuthorityKind::ALL {
            let now = Timestamp::now();
            let (former, key) = Authority::create(kind, now).unwrap();
            let (new, next_key, cross) = Authority::create_after(kind, &former, now).unwrap();
            let write = |folder: &str, name: &str, text: &str| {
                std::fs::create_dir_all(home.join(folder)).unwrap();
                std::fs::write(home.join(folder).join(name), text).unwrap();
            };
            write("current", kind.certificate_file(), former.certificates_pem());
            write("current", kind.key_file(), &key);
            write("next", kind.certificate_file(), new.certificates_pem());
            write("next", kind.cross_file(), &cross);
            write("next", kind.key_file(), &next_key);
            digests.push(new.digest());
        }
        Roots {
            node: digests[0],
            etcd: digests[1],
        }
    }

    /// INV-13.
    #[tokio::test]
    async fn a_rotation_adds_the_new_authority_then_drops_the_former_one_and_brings_in_none_from_elsewhere() {
        let home = tempfile::tempdir().unwrap();
        let after = directory(home.path());
        let found = Found::read(home.path().to_owned()).await;
        let before = Roots {
            node: found.current(AuthorityKind::Node).unwrap().digest(),
            etcd: found.current(AuthorityKind::Etcd).unwrap().digest(),
        };
        let begun = Rotation::begun(before, after, 0, Timestamp::now());
        let in_phase = |phase| OnRecord::Is(Box::new(begun.moved_to(phase, Timestamp::now())), Revision(1));
        let digests = |found: &Found, on_record: &OnRecord| {
            wanted(found, on_record).map(|wanted| wanted.digests().collect::<Vec<_>>())
        };
        assert_eq!(digests(&found, &OnRecord::Absent), Ok(vec![before.node]));
        for phase in [Phase::Trust, Phase::Reissue] {
            assert_eq!(
                digests(&found, &in_phase(phase)),
                Ok(vec![after.node, before.node])
            );
        }
        for phase in [Phase::Drop, Phase::Done] {
            assert_eq!(digests(&found, &in_phase(phase)), Ok(vec![after.node]));
        }
        digests(&found, &OnRecord::Unreadable(Revision(1))).unwrap_err();
        // A replica whose former authority was taken away early.
        let (current, away) = (home.path().join("current"), home.path().join("away"));
        std::fs::rename(&current, &away).unwrap();
        let early = wanted(
            &Found::read(home.path().to_owned()).await,
            &in_phase(Phase::Trust),
        )
        .unwrap();
        assert_eq!(early.digests().collect::<Vec<_>>(), [after.node]);
        assert!(
            early
                .lacks
                .is_some_and(|lacks| lacks.contains("lacks the former"))
        );
        std::fs::rename(&away, &current).unwrap();
        // A replica that was given no next/.
        std::fs::remove_dir_all(home.path().join("next")).unwrap();
        let behind = Found::read(home.path().to_owned()).await;
        for phase in [Phase::Trust, Phase::Reissue] {
            let wanted = wanted(&behind, &in_phase(phase)).unwrap();
            assert_eq!(wanted.digests().collect::<Vec<_>>(), [before.node]);
            assert!(wanted.lacks.is_some());
        }
        for phase in [Phase::Drop, Phase::Done] {
            digests(&behind, &in_phase(phase)).unwrap_err();
        }
    }

    #[test]
    fn a_certificate_is_replaced_after_half_of_its_life_and_when_the_clock_was_set_back() {
        let made: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        let hours = SignedDuration::from_hours;
        assert!(!is_due(made, made));
        assert!(!is_due(made, made + hours(11)));
        assert!(is_due(made, made + hours(13)));
        assert!(!is_due(made, made - SignedDuration::from_mins(30)));
        assert!(is_due(made, made - hours(2)));
    }
}
