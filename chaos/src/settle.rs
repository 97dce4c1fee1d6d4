//! Whether everything is as desired, once nothing is broken any more.

use std::collections::BTreeSet;

use etcd_client::{Client, GetOptions, KeyValue};
use prost::Message;
use quorate::gate::status::{State, Status};
use quorate::proto::{
    Join, Network, Node, NodeCertificate, Publication, Role, Service, Volume, join, node_certificate,
};
use quorate_dev::csi_plugin::backend::Backend;
use quorate_dev::http;

use crate::history::ReplicaRelease;
use crate::watch::client;

/// What has to be so in the end.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The release of all replicas, by which the status is done; none without an apiserver.
    pub release: Option<ReplicaRelease>,
    /// Pages that answer 200: a name, a port and a path.
    pub ready: Vec<(String, u16, &'static str)>,
    /// Where replicas say whether they lead.
    pub replicas: Vec<(String, u16)>,
    /// Whether etcd was restored: then the backend has volumes that no record names, and lacks some that records name.
    pub restored: bool,
    /// The members of the cluster at its begin: they stay.
    pub members: BTreeSet<String>,
}

/// What is not as desired, one sentence each.
pub async fn unsettled(endpoints: &[String], backend: &Backend, wanted: &Wanted) -> Vec<String> {
    let mut faults = unready(wanted).await;
    let mut asked = None;
    for endpoint in endpoints {
        match look(endpoint, backend, wanted).await {
            Ok(found) => {
                asked = Some(found);
                break;
            }
            Err(error) => faults.push(format!("{endpoint} does not answer: {error}")),
        }
    }
    if let Some(found) = asked {
        faults.extend(found);
    }
    faults
}

async fn unready(wanted: &Wanted) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, port, page) in &wanted.ready {
        let answer = http::is_ok(page, http::get(*port, page).await);
        faults.extend(answer.err().map(|why| format!("{name} is not ready: {why}")));
    }
    let mut leading = Vec::new();
    for (name, port) in &wanted.replicas {
        let answer = http::get(*port, "/leaderz").await;
        if answer.is_ok_and(|page| page.status == 200) {
            leading.push(name.as_str());
        }
    }
    if leading.len() != 1 {
        faults.push(format!("{} replicas lead: {}", leading.len(), leading.join(", ")));
    }
    faults
}

async fn look(endpoint: &str, backend: &Backend, wanted: &Wanted) -> Result<Vec<String>, etcd_client::Error> {
    let mut client = client(endpoint).await?;
    let mut faults = Vec::new();
    if let Some(release) = &wanted.release {
        let status = read(&mut client, "/quorate/kubernetes/reconciler/status").await?;
        faults.extend(not_done(status.first().map(KeyValue::value), release));
    }
    faults.extend(volumes(&mut client, backend, wanted).await?);
    for kv in list(&mut client, "services").await? {
        let service = Service::decode(kv.value());
        if service.is_ok_and(|it| it.status.is_some_and(|status| status.delete_requested.is_some())) {
            faults.push(format!("{} is marked and not deleted", key(&kv)));
        }
    }
    for kv in list(&mut client, "networks").await? {
        let network = Network::decode(kv.value());
        if network.is_ok_and(|it| it.status.is_some_and(|status| status.delete_requested.is_some())) {
            faults.push(format!("{} is marked and not deleted", key(&kv)));
        }
    }
    faults.extend(roles(&mut client, wanted).await?);
    for space in ["identity/certificates", "identity/etcd"] {
        for kv in list(&mut client, space).await? {
            let record = NodeCertificate::decode(kv.value()).unwrap_or_default();
            faults.extend(unanswered(&record).map(|why| format!("{} {why}", key(&kv))));
        }
    }
    Ok(faults)
}

/// Why the record of a certificate is not as desired: a request waits for its answer, or an operator's wish for a new request.
fn unanswered(record: &NodeCertificate) -> Option<&'static str> {
    match record.state() {
        node_certificate::State::Pending => Some("has no answer"),
        node_certificate::State::Rotate => Some("is asked to be replaced, and no request came"),
        _ => None,
    }
}

/// Whether the status is done by this release.
fn not_done(status: Option<&[u8]>, release: &ReplicaRelease) -> Option<String> {
    let Some(Ok(status)) = status.map(Status::decode) else {
        return Some("there is no status".to_owned());
    };
    let done = status.state == State::Done
        && status.version.release.to_string() == release.release
        && status.minimum_compatible.to_string() == release.min_apiserver;
    (!done).then(|| {
        format!(
            "the status is {status}, and all replicas are of {}",
            release.release
        )
    })
}

async fn volumes(
    client: &mut Client,
    backend: &Backend,
    wanted: &Wanted,
) -> Result<Vec<String>, etcd_client::Error> {
    let mut faults = Vec::new();
    let mut known = BTreeSet::new();
    for kv in list(client, "volumes").await? {
        let status = Volume::decode(kv.value())
            .unwrap_or_default()
            .status
            .unwrap_or_default();
        // After a restore no record may say that it is published there: it waits for an operator (INV-12).
        let is_elsewhere = status.conditions.iter().any(|condition| {
            condition.reason == "FailedPrecondition" && condition.message.contains(" is published to ")
        });
        if status.delete_requested.is_some() {
            if !(wanted.restored && is_elsewhere) {
                faults.push(format!("{} is marked and not deleted", key(&kv)));
            }
        } else if status.volume_id.is_empty() {
            faults.push(format!("{} is not created", key(&kv)));
        }
        known.insert(status.volume_id);
    }
    for kv in list(client, "publications").await? {
        let status = Publication::decode(kv.value())
            .unwrap_or_default()
            .status
            .unwrap_or_default();
        let reasons = status
            .conditions
            .iter()
            .map(|condition| condition.reason.as_str());
        let reasons: Vec<_> = reasons.filter(|reason| !reason.is_empty()).collect();
        let (state, reasons) = (status.state().as_str_name(), reasons.join(", "));
        faults.push(format!("{} was unpublished and is {state} {reasons}", key(&kv)));
    }
    if !wanted.restored {
        let there: BTreeSet<String> = backend.ids().unwrap_or_default().into_iter().collect();
        let forgotten = there.difference(&known);
        faults.extend(forgotten.map(|id| format!("the backend has {id}, and no record names it")));
        let lost = known.difference(&there).filter(|id| !id.is_empty());
        faults.extend(lost.map(|id| format!("a record names {id}, and the backend has no such volume")));
    }
    Ok(faults)
}

async fn roles(client: &mut Client, wanted: &Wanted) -> Result<Vec<String>, etcd_client::Error> {
    let mut faults = Vec::new();
    let mut managers = wanted.members.clone();
    for kv in list(client, "nodes").await? {
        // Registrations are below the names of nodes.
        if key(&kv).ends_with("/release") {
            continue;
        }
        let node = Node::decode(kv.value()).unwrap_or_default();
        let desired = node.spec.unwrap_or_default().desired_role();
        let observed = node.status.unwrap_or_default().role();
        if desired != observed {
            let (desired, observed) = (desired.as_str_name(), observed.as_str_name());
            faults.push(format!("{} is {observed} instead of {desired}", key(&kv)));
        }
        if desired == Role::Manager {
            managers.extend(node.metadata.map(|metadata| metadata.name));
        }
    }
    for kv in list(client, "joins").await? {
        let progress = Join::decode(kv.value()).unwrap_or_default().progress();
        if [join::Progress::Adding, join::Progress::Learner].contains(&progress) {
            faults.push(format!("{} is {}", key(&kv), progress.as_str_name()));
        }
    }
    let list = client.member_list().await?;
    let voters = list.members().iter().filter(|member| !member.is_learner());
    let voters: BTreeSet<String> = voters.map(|member| member.name().to_owned()).collect();
    if voters != managers {
        faults.push(format!(
            "the voters are {voters:?}, and the managers {managers:?}"
        ));
    }
    Ok(faults)
}

async fn list(client: &mut Client, space: &str) -> Result<Vec<KeyValue>, etcd_client::Error> {
    let options = GetOptions::new().with_prefix();
    let answer = client.get(format!("/quorate/{space}/"), Some(options)).await?;
    Ok(answer.kvs().to_vec())
}

async fn read(client: &mut Client, key: &str) -> Result<Vec<KeyValue>, etcd_client::Error> {
    Ok(client.get(key, None).await?.kvs().to_vec())
}

fn key(kv: &KeyValue) -> String {
    String::from_utf8_lossy(kv.key()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::releases;

    #[test]
    fn a_certificate_that_is_pending_or_is_asked_to_be_replaced_is_not_settled() {
        let unsettled = |state: node_certificate::State| {
            let record = NodeCertificate {
                state: state.into(),
                ..NodeCertificate::default()
            };
            unanswered(&record).is_some()
        };
        for state in [node_certificate::State::Pending, node_certificate::State::Rotate] {
            assert!(unsettled(state), "{state:?}");
        }
        for state in [node_certificate::State::Issued, node_certificate::State::Failed] {
            assert!(!unsettled(state), "{state:?}");
        }
    }

    #[test]
    fn a_status_is_done_only_by_the_release_of_all_replicas_with_its_minimum() {
        let status = |state, release: &str, minimum: &str| {
            let version =
                quorate::release::Version::from(release.parse::<quorate::release::Release>().unwrap());
            Status::new(state, version, minimum.parse().unwrap()).encode()
        };
        let last = &releases()[2];
        let done = status(State::Done, "2.0.0", "1.1.0");
        assert_eq!(not_done(Some(&done), last), None);
        for other in [
            status(State::Working, "2.0.0", "1.1.0"),
            status(State::Done, "1.1.0", "1.1.0"),
            status(State::Done, "2.0.0", "1.0.0"),
        ] {
            assert!(not_done(Some(&other), last).is_some());
        }
        assert_eq!(not_done(None, last).as_deref(), Some("there is no status"));
    }
}
