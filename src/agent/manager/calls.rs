//! The two calls of a manager, and what follows from each answer.

use std::time::Duration;

use tokio::time::timeout;
use tonic::Status;

use super::plan::OwnMember;
use crate::agent::calls::{CallError, Calls, within};
use crate::etcd::{ClusterId, MemberId};
use crate::identity::NodeKey;
use crate::proto::join::Progress;
use crate::proto::node_certificate::State;
use crate::proto::{EtcdCertificateRequest, EtcdCertificateResponse, JoinMemberRequest, JoinMemberResponse};

/// The limit of a call, for which a replica waits: a member that joins is tested and added meanwhile, a certificate is signed.
const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// The limit until there is a connection to a replica. Without one, other steps are planned again.
const LINK_LIMIT: Duration = Duration::from_secs(10);

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// There is no connection.
    #[error("there is no session")]
    NoSession,
    /// It is under way, and the deadline came first. The next call goes on with it.
    #[error("{0}")]
    Waits(String),
    /// It may succeed later.
    #[error("{0}")]
    Failed(String),
    /// It will be refused again until something changes.
    #[error("{0}")]
    Refused(String),
}

/// A member that can be started, as a replica says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Startable {
    /// The member.
    pub own: OwnMember,
    /// By etcd's list it has started before.
    pub has_started: bool,
    /// The name that it has in the list, or gets.
    pub name: String,
    /// The members that it starts with for the first time.
    pub initial_cluster: Option<String>,
}

/// A certificate that was issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    /// The certificate and those above it (PEM).
    pub chain: String,
    /// The certificates that etcd trusts (PEM).
    pub authorities: String,
    /// The list of revoked certificates; empty if there is none yet.
    pub list: Vec<u8>,
}

/// Asks that the node becomes a member of this cluster, at these URLs.
///
/// # Errors
/// As [`Fault`].
pub async fn join_member(
    calls: Calls,
    uid: String,
    cluster: ClusterId,
    message: JoinMemberRequest,
) -> Result<Startable, Fault> {
    let mut client = linked(calls).await?;
    let called = client.join_member(within(WAIT_LIMIT, message)).await;
    let answer = called.map_err(|status| refused(&status, &uid))?.into_inner();
    startable(answer, cluster)
}

/// Requests a certificate with this key, and gives the key back.
///
/// # Errors
/// As [`Fault`].
pub async fn etcd_certificate(calls: Calls, uid: String, key: &NodeKey) -> Result<Issued, Fault> {
    let csr = key.request().map_err(|error| Fault::Failed(error.to_string()))?;
    let mut client = linked(calls).await?;
    let message = EtcdCertificateRequest { csr };
    let called = client.etcd_certificate(within(WAIT_LIMIT, message)).await;
    let answer = called.map_err(|status| refused(&status, &uid))?.into_inner();
    issued(answer)
}

type Client = crate::proto::control_client::ControlClient<tonic::transport::Channel>;

async fn linked(mut calls: Calls) -> Result<Client, Fault> {
    let link = timeout(LINK_LIMIT, calls.link()).await;
    link.map(|link| link.client()).map_err(|_| Fault::NoSession)
}

/// What follows from a status. That the node was removed ends the agent by its session.
fn refused(status: &Status, uid: &str) -> Fault {
    match CallError::of(status, uid) {
        // With another certificate, in another session or as another request, the call may succeed.
        CallError::Failed(why) | CallError::Aborted(why) | CallError::CertificateEnded(why) => {
            Fault::Failed(why)
        }
        other @ (CallError::Removed | CallError::Refused(_)) => Fault::Refused(other.to_string()),
    }
}

fn startable(answer: JoinMemberResponse, cluster: ClusterId) -> Result<Startable, Fault> {
    if !matches!(answer.progress(), Progress::Learner | Progress::Voter) {
        return Err(Fault::Waits(reasoned(&answer.reason, &answer.message)));
    }
    let own = OwnMember {
        cluster: ClusterId(answer.cluster_id),
        id: MemberId(answer.member_id),
    };
    if own.cluster != cluster {
        return Err(Fault::Refused(format!(
            "the server speaks of cluster {}, and the node belongs to {cluster}",
            own.cluster
        )));
    }
    let setting = |name: &str| {
        let mut settings = answer.settings.iter();
        let found = settings.find(|setting| setting.name == name);
        found.map(|setting| setting.value.clone())
    };
    let lacks = |what: &str| Fault::Failed(format!("the answer to the request to join has no {what}"));
    let initial_cluster = setting("ETCD_INITIAL_CLUSTER");
    if initial_cluster.is_none() && !answer.started {
        return Err(lacks("ETCD_INITIAL_CLUSTER"));
    }
    Ok(Startable {
        own,
        has_started: answer.started,
        name: setting("ETCD_NAME").ok_or_else(|| lacks("ETCD_NAME"))?,
        initial_cluster,
    })
}

fn issued(answer: EtcdCertificateResponse) -> Result<Issued, Fault> {
    let why = reasoned(&answer.reason, &answer.message);
    match answer.state() {
        State::Issued => Ok(Issued {
            chain: answer.chain,
            authorities: answer.authorities,
            list: answer.revocation.map(|list| list.crl).unwrap_or_default(),
        }),
        State::Failed => Err(Fault::Refused(format!("the request was refused: {why}"))),
        State::Pending => Err(Fault::Waits(why)),
        State::Rotate | State::Unspecified => {
            Err(Fault::Failed("the request is not on record any more".to_owned()))
        }
    }
}

fn reasoned(reason: &str, message: &str) -> String {
    match (reason, message) {
        ("", "") => "it is under way".to_owned(),
        ("", message) => message.to_owned(),
        (reason, message) => format!("{message} ({reason})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{EtcdSetting, RevocationView};

    const CLUSTER: ClusterId = ClusterId(0xc0_ffee);

    fn answer(started: bool, settings: &[(&str, &str)]) -> JoinMemberResponse {
        let setting = |(name, value): &(&str, &str)| EtcdSetting {
            name: (*name).to_owned(),
            value: (*value).to_owned(),
        };
        JoinMemberResponse {
            progress: Progress::Learner.into(),
            cluster_id: CLUSTER.0,
            member_id: 7,
            started,
            settings: settings.iter().map(setting).collect(),
            ..JoinMemberResponse::default()
        }
    }

    #[test]
    fn a_member_that_can_be_started_has_a_name_and_at_first_the_members_of_its_cluster() {
        let members = ("ETCD_INITIAL_CLUSTER", "a=http://a:1");
        let name = ("ETCD_NAME", "n2");
        let new = startable(answer(false, &[name, members, ("ETCD_WAL_DIR", "/x")]), CLUSTER).unwrap();
        assert_eq!(new.initial_cluster.as_deref(), Some("a=http://a:1"));
        assert_eq!(
            (new.name.as_str(), new.has_started, new.own.id),
            ("n2", false, MemberId(7))
        );
        startable(answer(true, &[name]), CLUSTER).unwrap();
        for lacking in [answer(false, &[name]), answer(false, &[members])] {
            let refused = startable(lacking, CLUSTER).unwrap_err();
            assert!(refused.to_string().contains("has no ETCD_"), "{refused}");
        }
    }

    #[test]
    fn another_cluster_is_refused_and_a_join_that_waits_says_what_for() {
        let other = startable(answer(true, &[("ETCD_NAME", "n2")]), ClusterId(1)).unwrap_err();
        assert!(matches!(other, Fault::Refused(_)), "{other}");
        let waiting = JoinMemberResponse {
            progress: Progress::Waiting.into(),
            reason: "LearnerPending".to_owned(),
            message: "another one is a learner".to_owned(),
            ..JoinMemberResponse::default()
        };
        let waits = startable(waiting, CLUSTER).unwrap_err();
        assert!(matches!(waits, Fault::Waits(_)));
        assert_eq!(waits.to_string(), "another one is a learner (LearnerPending)");
    }

    #[test]
    fn a_certificate_counts_once_it_was_issued() {
        let answer = |state: State| EtcdCertificateResponse {
            state: state.into(),
            chain: "chain".to_owned(),
            authorities: "authorities".to_owned(),
            revocation: Some(RevocationView {
                number: 1,
                crl: vec![1],
            }),
            ..EtcdCertificateResponse::default()
        };
        assert_eq!(issued(answer(State::Issued)).unwrap().list, [1]);
        assert!(matches!(issued(answer(State::Pending)), Err(Fault::Waits(_))));
        assert!(matches!(issued(answer(State::Failed)), Err(Fault::Refused(_))));
        for other in [State::Rotate, State::Unspecified] {
            assert!(
                matches!(issued(answer(other)), Err(Fault::Failed(_))),
                "{other:?}"
            );
        }
    }
}
