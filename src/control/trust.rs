//! What this replica shows at its control port, and whose certificates it takes there: both follow the files of the node
//! authority.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tracing::{info, warn};

use super::tls;
use crate::etcd::{ClusterId, Etcd};
use crate::identity::control::{self, LIFE};
use crate::identity::validity::BACKDATED;
use crate::identity::{Authority, AuthorityDigest, AuthorityKind, directory};

/// How often the files are read, two of a kilobyte each.
const EVERY: Duration = Duration::from_secs(1);

/// What the control port shows and takes, for as long as the authority stays the same.
pub struct Trust {
    /// The server's side of TLS, with a certificate of its own.
    pub tls: Arc<ServerConfig>,
    /// Verifies certificates of nodes.
    pub verifier: Arc<dyn ClientCertVerifier>,
    /// The authority.
    pub authority: AuthorityDigest,
    /// The cluster that both sides' certificates name.
    pub cluster: ClusterId,
    /// When the server's certificate was made.
    made: Timestamp,
}

/// The latest trust; `None` until the authority could be read once.
pub type KnownTrust = watch::Receiver<Option<Arc<Trust>>>;

/// Keeps the trust current. One that could not be replaced stays: files that are away for a moment end no session. Never ends.
pub async fn keep(ca_dir: PathBuf, etcd: &Etcd, known: &watch::Sender<Option<Arc<Trust>>>) {
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut reported = None;
    loop {
        every.tick().await;
        let now = Timestamp::now();
        let before = known.borrow().clone();
        let authority = read_authority(ca_dir.clone()).await;
        let looked =
            authority.and_then(|authority| look(&authority, etcd.cluster_id(), before.as_deref(), now));
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
        reported = trouble;
    }
}

/// Reads the authority on a thread that may wait: the file system may hang, and with it no call.
async fn read_authority(directory: PathBuf) -> Result<Authority, String> {
    let reading = spawn_blocking(move || directory::read(&directory, AuthorityKind::Node, Timestamp::now()));
    let read = reading.await.map_err(|failed| failed.to_string())?;
    read.map_err(|error| error.to_string())
}

/// What replaces the present trust; `None` if it may stay.
fn look(
    authority: &Authority,
    cluster: Option<ClusterId>,
    before: Option<&Trust>,
    now: Timestamp,
) -> Result<Option<Trust>, String> {
    let cluster = cluster.ok_or("etcd has not said the id of its cluster")?;
    let stays = |before: &Trust| {
        before.authority == authority.digest() && before.cluster == cluster && !is_due(before.made, now)
    };
    if before.is_some_and(stays) {
        return Ok(None);
    }
    make(authority, cluster, now).map(Some)
}

/// A trust in this authority, with a certificate that it has just signed.
///
/// # Errors
/// Why there is none.
pub fn make(authority: &Authority, cluster: ClusterId, now: Timestamp) -> Result<Trust, String> {
    let certificate = control::certificate(authority, cluster, now).map_err(|error| error.to_string())?;
    let tls = tls::server_config(certificate).map_err(|error| error.to_string())?;
    let verifier = tls::verifier_of(authority.certificate_der()).map_err(|error| error.to_string())?;
    Ok(Trust {
        tls: Arc::new(tls),
        verifier,
        authority: authority.digest(),
        cluster,
        made: now,
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
    use jiff::SignedDuration;

    use super::*;

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
