//! Replies that are lost: what was done is found, and not done twice.

use quorate::proto::join::Progress;

use super::site::Managers;
use crate::support::etcd::EtcdVersion;
use crate::support::hold::Hold;
use crate::support::proxy::{Network, Proxy};
use crate::support::wait::{SOON, eventually, same};

/// A node becomes a voter and a worker again, once, although the first reply at this point is lost.
async fn survives(version: EtcdVersion, point: &str) {
    let crash = format!("--crash-at={point}");
    let mut managers = Managers::with_tls(version, &[&crash]).await;
    let n2 = managers.worker("n2").await;
    let uid = managers.uid("n2").await;
    let id = managers.voter(&n2).await;
    managers.counts(2).await;
    assert_eq!(
        managers.serials(&uid).await.len(),
        1,
        "{point}: one key, one certificate"
    );
    assert_eq!(managers.join("n2").await.removed_members, [0_u64; 0]);
    managers.demote("n2").await;
    n2.rests().await;
    managers.counts(1).await;
    assert_eq!(managers.join("n2").await.removed_members, [id.0]);
    managers.revoked(&uid).await;
    managers.writes(point).await;
    let line = format!("failpoint {point}: losing the reply");
    managers.replicas[0].wait_for_log(&line).await;
}

const TO_AN_AGENT: [&str; 2] = ["control.join-member-reply", "control.etcd-certificate-reply"];
const OF_ETCD: [&str; 3] = ["roles.lose-add", "roles.lose-promotion", "roles.lose-removal"];

#[tokio::test]
async fn a_lost_reply_to_an_agent_leads_to_no_second_member_and_no_second_certificate() {
    for point in TO_AN_AGENT {
        survives(EtcdVersion::Installed, point).await;
    }
}

#[tokio::test]
async fn a_lost_reply_of_etcd_leads_to_no_second_member_of_an_agent_either() {
    for point in OF_ETCD {
        survives(EtcdVersion::Installed, point).await;
    }
}

#[tokio::test]
async fn a_lost_reply_leads_to_no_second_member_and_no_second_certificate_of_the_next_etcd() {
    for point in TO_AN_AGENT.into_iter().chain(OF_ETCD) {
        survives(EtcdVersion::Next, point).await;
    }
}

/// The member is added while the connection of the agent loses what the replica answers, and is reset after that.
#[tokio::test]
async fn an_agent_that_never_got_the_answer_to_its_join_asks_again_and_is_the_member_that_was_added() {
    let hold = Hold::at("roles.adding");
    let managers = Managers::launched(&[], |launch| hold.on(launch)).await;
    let proxy = Proxy::in_front_of(&managers.servers[0]);
    let server = format!("https://{}", proxy.address);
    let flags = ["--etcd-ends-with-agent"];
    let mut n2 = managers.worker_at(&[server], "n2", &flags).await;
    managers.promote("n2").await;
    hold.reached().await;
    proxy.set(Network::LosesReplies);
    hold.release();
    let added = eventually(SOON, "it is a learner", async || {
        let join = managers.join("n2").await;
        match join.progress() {
            Progress::Learner => Ok(join.member_id),
            _ => Err(format!("{join:?}")),
        }
    })
    .await;
    assert_eq!(n2.etcd(), None, "it does not know");
    proxy.set(Network::Resets);
    eventually(SOON, "the agent has lost its session", async || {
        same(n2.metric("quorate_agent_session").await, 0.0)
    })
    .await;
    proxy.set(Network::Passes);
    assert_eq!(managers.votes("n2").await.0, added);
    n2.ready().await;
    managers.counts(2).await;
}
