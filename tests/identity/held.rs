//! A replica that leads and is held with its answer to a request, while a test changes what the answer was decided from.

use quorate::identity::AuthorityKind;

use super::site::Site;
use crate::support::doomed::LASTING_LEASES;
use crate::support::hold::Hold;
use crate::support::quorate::TestReplica;

/// The points before an answer is recorded.
pub const BEFORE: [&str; 2] = ["identity.before-sign", "identity.before-store"];

/// A replica that leads and is held with its answer to a request of the node `n1`.
pub struct Held {
    pub site: Site,
    pub uid: String,
    pub hold: Hold,
    pub replica: TestReplica,
    kind: AuthorityKind,
}

impl Held {
    /// With a request of the node, a worker.
    pub async fn at(point: &'static str, csr: &[u8]) -> Self {
        let site = Site::start().await;
        let uid = site.add_node("n1").await;
        Self::with(site, uid, AuthorityKind::Node, point, csr).await
    }

    /// With a request of the etcd of the node, a manager.
    pub async fn of_etcd_at(point: &'static str, csr: &[u8]) -> Self {
        let site = Site::start().await;
        // The members of the test are in no list of etcd.
        site.done(&["pause", "roles"]).await;
        let uid = site.add_manager("n1", 7, "10.0.0.1").await;
        Self::with(site, uid, AuthorityKind::Etcd, point, csr).await
    }

    async fn with(site: Site, uid: String, kind: AuthorityKind, point: &'static str, csr: &[u8]) -> Self {
        let hold = Hold::at(point);
        let launch = site.launch().flag(LASTING_LEASES);
        let mut replica = hold.on(launch.variable("RUST_LOG", "quorate=debug")).start("r1");
        replica.wait_leading().await;
        site.request_to(kind, "n1", &uid, csr).await;
        hold.reached().await;
        Self {
            site,
            uid,
            hold,
            replica,
            kind,
        }
    }

    /// Lets the replica continue, and waits until etcd has refused its answer.
    pub async fn refused(self) -> (Site, String, TestReplica) {
        let Self {
            site,
            uid,
            hold,
            mut replica,
            kind,
        } = self;
        hold.release();
        let whose = match kind {
            AuthorityKind::Node => uid.clone(),
            AuthorityKind::Etcd => format!("the etcd of {uid}"),
        };
        let line = format!("something changed before the answer to {whose} was recorded");
        replica.wait_for_log(&line).await;
        (site, uid, replica)
    }
}
