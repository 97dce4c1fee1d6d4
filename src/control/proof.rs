//! The certificate of a connection, judged by the trust of the moment: at each call, and for as long as a session lasts (INV-13).

use std::future::pending;
use std::time::Duration;

use jiff::Timestamp;

use super::acceptor::Client;
use super::not_proven::NotProven;
use super::trust::KnownTrust;
use crate::identity::AuthorityDigest;
use crate::identity::certificate::NodeCertificateFacts;

/// What a connection has shown, and the trust that judges it.
pub struct Proof {
    /// `None` for a connection that is none of the acceptor's.
    client: Option<Client>,
    trust: KnownTrust,
}

impl Proof {
    /// That of a connection, by the latest trust of each moment.
    pub fn new(client: Option<Client>, trust: KnownTrust) -> Self {
        Self { client, trust }
    }

    /// What the certificate says, if it is genuine and valid now.
    ///
    /// # Errors
    /// Why it is not.
    pub fn judge(&mut self) -> Result<NodeCertificateFacts, NotProven> {
        let trust = self.trust.borrow_and_update().clone();
        // No handshake was made without a trust.
        let (Some(trust), Some(client)) = (trust, &self.client) else {
            return Err(NotProven::NoCertificate);
        };
        client.peer.prove(&trust, Timestamp::now())
    }

    /// The authority that the connection has last proven itself by.
    pub fn authority(&self) -> Option<AuthorityDigest> {
        self.client.as_ref()?.peer.authority()
    }

    /// The record says so too: the connection is one of the node of this uid.
    pub fn belongs_to(&self, uid: &str) {
        if let Some(client) = &self.client {
            client.slot.belongs_to(uid);
        }
    }

    /// Resolves once [`judge`](Self::judge) may answer otherwise than the last time: the certificate, which is valid until then, has
    /// ended, or the trust is another one. Safe to cancel.
    pub async fn may_have_changed(&mut self, valid_until: Timestamp) {
        let ends = tokio::time::sleep(until_after(valid_until, Timestamp::now()));
        let changes = async {
            if self.trust.changed().await.is_err() {
                // The replica stops.
                pending().await
            }
        };
        tokio::select! {
            () = ends => {}
            () = changes => {}
        }
    }
}

/// How long it takes from `now` until that moment is over. Where the clock was set back meanwhile, it takes longer: judge again.
fn until_after(moment: Timestamp, now: Timestamp) -> Duration {
    let left = Duration::try_from(moment.duration_since(now)).unwrap_or_default();
    // At the moment itself the certificate is valid.
    left + Duration::from_millis(1)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn a_certificate_is_judged_again_right_after_its_end_and_at_once_where_that_is_past() {
        let end: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        for (left, wait) in [
            (SignedDuration::from_secs(90), Duration::from_millis(90_001)),
            (SignedDuration::ZERO, Duration::from_millis(1)),
            (SignedDuration::from_secs(-5), Duration::from_millis(1)),
        ] {
            assert_eq!(until_after(end, end - left), wait, "{left}");
        }
    }
}
