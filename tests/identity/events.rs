//! What the leader reports of nodes as Events.

use jiff::Timestamp;
use quorate::kube::events::Severity;
use quorate::proto::node_certificate::State;
use quorate::store::object::condition;
use quorate::term::Notices;
use tokio::time::timeout;

use super::site::{Site, request};
use crate::support::wait::{SOON, eventually};

#[tokio::test]
async fn a_node_is_reported_with_its_first_certificate_and_while_several_agents_run_as_it() {
    let site = Site::start().await;
    let uid = site.add_node("n1").await;
    let (sending, mut notices) = Notices::channel(1000);
    let _leader = site.leader_that_notifies(sending).await;
    let mut next = async || {
        let notice = timeout(SOON, notices.recv()).await.expect("there is a notice");
        let notice = notice.unwrap();
        (notice.severity, notice.reason, notice.note)
    };
    site.request("n1", &uid, &request().0).await;
    let joined = (Severity::Normal, "NodeJoined", "node n1 has joined".to_owned());
    assert_eq!(next().await, joined);
    // A renewal is no join.
    let first = site.answered(&uid, State::Issued).await;
    site.request("n1", &uid, &request().0).await;
    eventually(SOON, "another certificate", async || {
        match site.record(&uid).await.chain {
            chain if chain == first.chain => Err("the same"),
            _ => Ok(()),
        }
    })
    .await;
    site.change("n1", |node| {
        let conditions = &mut node.status.get_or_insert_default().conditions;
        let why = ("SessionsCollide", "two");
        condition::set(conditions, "DuplicateAgent", why, 0, Timestamp::now());
    })
    .await;
    let (severity, reason, note) = next().await;
    assert_eq!((severity, reason), (Severity::Warning, "DuplicateAgent"));
    let said = note.contains("node n1") && note.contains("several agents");
    assert!(said, "{note}");
}
