//! Replicas are killed at any step of a promotion and of a demotion: the next one ends both, and the agent starts and stops one etcd.

use std::fs;

use quorate::etcd::election::candidates;
use quorate::proto::Role;

use super::site::{Manager, Managers};
use crate::roles::crashes::{FLAGS, TO_LEARNER, TO_VOTER};
use crate::roles::removals::{OF_A_MEMBER, OF_LEADERSHIP};
use crate::support::doomed::Doomed;
use crate::support::etcd::EtcdVersion;
use crate::support::wait::{SOON, eventually, same};
use crate::support::writer::LONG_ELECTIONS;

/// An add that was begun may still be made for so long: half a minute by default.
const DOUBT: &str = "--add-doubt-ms=2000";

/// The settings of an etcd beside one with [`LONG_ELECTIONS`].
const SETTINGS: &str = "ETCD_ELECTION_TIMEOUT=4000\nETCD_HEARTBEAT_INTERVAL=200\n";

/// Waits until this replica stands for election: the next one comes after it.
async fn stands(managers: &Managers, name: &str) {
    let election = managers.store.keys.election();
    eventually(SOON, &format!("{name} stands for election"), async || {
        let all = candidates(&managers.store.etcd, &election).await;
        let all = all.map_err(|error| error.to_string())?;
        match all.iter().any(|one| one.name == name) {
            true => Ok(()),
            false => Err(format!("{all:?}")),
        }
    })
    .await;
}

/// The node is promoted under a leader that ends at the former point, and demoted under the next one, which ends at the latter. A third
/// replica, which serves the agent, is left.
async fn survives(managers: &mut Managers, n2: &mut Manager, [up, down]: [&'static str; 2]) {
    let (launch, store) = (managers.launch().flag(DOUBT), managers.store.clone());
    managers.replicas[0].stop().await.unwrap();
    let mut first = Doomed::start(&launch, "d1", up, &store);
    first.wait_leading().await;
    let mut second = Doomed::start(&launch, "d2", down, &store);
    stands(managers, "d2").await;
    managers.replicas[0].launch().unwrap();
    managers.replicas[0].wait_ready().await;
    n2.ready().await;
    let id = first.aborted_during(managers.voter(n2)).await;
    managers.counts(2).await;
    if OF_LEADERSHIP.contains(&down) {
        managers.lets_lead("n2").await;
    }
    let demotion = async {
        managers.desire("n2", Role::Worker).await;
        managers.becomes("n2", Role::Worker).await;
        n2.rests().await;
        managers.counts(1).await;
    };
    second.aborted_during(demotion).await;
    eventually(SOON, "its data is set aside, once", async || {
        same((n2.aside(id).len(), n2.data().exists()), (1, false))
    })
    .await;
    managers.revoked(&managers.uid("n2").await).await;
    // A request that comes late would have the next leader abort before anyone sees that it leads.
    managers.certified("n2", Role::Worker).await;
    managers.writes(up).await;
}

#[tokio::test]
async fn an_agent_gets_to_a_learner_and_back_under_leaders_that_are_killed_at_any_step() {
    let mut managers = Managers::start_with(&FLAGS, &[DOUBT]).await;
    let mut n2 = managers.worker("n2").await;
    for (up, down) in TO_LEARNER.into_iter().zip(OF_A_MEMBER.into_iter().cycle()) {
        survives(&mut managers, &mut n2, [up, down]).await;
    }
}

#[tokio::test]
async fn an_agent_gets_from_a_learner_to_a_voter_and_back_under_leaders_that_are_killed_at_any_step() {
    // An election, as on a busy machine, would take raft's lead from n2: nothing would be left to move away from it.
    let flags = [FLAGS.as_slice(), LONG_ELECTIONS.as_slice()].concat();
    let mut managers = Managers::start_with(&flags, &[DOUBT]).await;
    let settings = managers.home().join("etcd.settings");
    fs::write(&settings, SETTINGS).unwrap();
    let settings = format!("--etcd-settings={}", settings.display());
    let mut n2 = managers
        .worker_with("n2", &["--etcd-ends-with-agent", &settings])
        .await;
    for (up, down) in TO_VOTER.into_iter().zip(OF_LEADERSHIP.into_iter().cycle()) {
        survives(&mut managers, &mut n2, [up, down]).await;
    }
}

/// INV-13. The certificate of the node for its role, then that of its etcd, and the list of revoked ones.
#[tokio::test]
async fn certificates_come_and_are_revoked_under_leaders_that_are_killed_at_any_step() {
    let mut managers = Managers::with_tls(EtcdVersion::Installed, &[DOUBT]).await;
    let mut n2 = managers.worker("n2").await;
    for points in [
        ["identity.before-sign", "identity.before-revoke"],
        ["identity.before-store", "identity.after-revoke"],
        ["identity.after-store", "identity.before-revoke"],
    ] {
        survives(&mut managers, &mut n2, points).await;
    }
}
