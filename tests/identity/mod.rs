//! Authorities, certificates and join tokens, with the real program.

mod authorities;
mod certificate_races;
mod certificates;
mod etcd_certificate_races;
mod etcd_certificates;
pub mod etcd_site;
mod events;
mod held;
mod revoked_at_etcd;
mod rotation;
pub mod site;
mod tokens;

use tempfile::TempDir;

use crate::support::directory::directory as home;
use crate::support::quorate::{Finished, quorate};

/// Runs `quorate ca …`.
async fn ca(args: &[&str]) -> Finished {
    quorate(["ca"].iter().chain(args)).await
}

/// A directory with new authorities.
pub async fn authorities(home: &TempDir) -> String {
    let directory = home.path().join("ca").display().to_string();
    ca(&["init", "-o", &directory]).await.expect_done();
    directory
}
