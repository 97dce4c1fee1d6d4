//! How each member fares, asked of that very member.

use std::time::{Duration, Instant};

use etcd_client::{Client, GetOptions, ResponseHeader, StatusResponse};
use futures::future::{join, join_all};

use super::ANY_KEY;
use super::list::{ListedMember, denies_the_key};
use crate::etcd::connect::Etcd;
use crate::etcd::error::Error;
use crate::etcd::kv::MemberId;

/// What one member answered.
#[derive(Clone, Debug)]
pub struct MemberReport {
    /// Which one.
    pub id: MemberId,
    /// For a voter: whether a linearizable read through it came back in time. A status is no proof: a member gives that
    /// without a quorum, out of space, and however far behind. For a learner, which serves no such reads: whether its
    /// status and a serializable read did.
    pub health: Result<(), Error>,
    /// What it says of itself.
    pub status: Result<Status, Error>,
}

impl MemberReport {
    /// Whether it counts towards a quorum.
    pub fn is_healthy(&self) -> bool {
        self.health.is_ok()
    }
}

/// What a member says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Of its etcd: `3.5.28`.
    pub version: String,
    /// Of its database file, in bytes.
    pub db_size: u64,
    /// What of that is in use; the rest comes back with a defragmentation.
    pub db_in_use: u64,
    /// Whom it takes for the raft leader.
    pub raft_leader: Option<MemberId>,
    /// Grows with every election among the members.
    pub raft_term: u64,
    /// Of the last entry that it knows to be committed.
    pub committed: u64,
    /// Of the last entry that it has applied.
    pub applied: u64,
    /// Whether it says that it is a learner.
    pub learner: bool,
    /// Alarms of the whole cluster, as this member knows them.
    pub alarms: Vec<Alarm>,
}

/// Something that etcd raises itself, and that a person has to clear (`etcdctl alarm disarm`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// The member that raised it.
    pub member: MemberId,
    /// `NOSPACE`, `CORRUPT`.
    pub kind: String,
}

impl Status {
    fn from_client(status: &StatusResponse) -> Self {
        let bytes = |size| u64::try_from(size).unwrap_or(0);
        Self {
            version: status.version().to_owned(),
            db_size: bytes(status.db_size()),
            db_in_use: bytes(status.raft_used_db_size()),
            raft_leader: (status.leader() != 0).then(|| MemberId(status.leader())),
            raft_term: status.raft_term(),
            committed: status.raft_index(),
            applied: status.raft_applied_index(),
            learner: status.is_learner(),
            alarms: status.errors().iter().filter_map(|text| alarm(text)).collect(),
        }
    }
}

/// An alarm as a status has it: `memberID:10501334649042878790 alarm:NOSPACE `. Other errors have no such form.
fn alarm(text: &str) -> Option<Alarm> {
    let mut words = text.split_whitespace();
    let member = words.next()?.strip_prefix("memberID:")?.parse().ok()?;
    let kind = words.next()?.strip_prefix("alarm:")?.to_owned();
    Some(Alarm {
        member: MemberId(member),
        kind,
    })
}

/// The raft leader in the view of whoever has seen the latest election.
pub fn raft_leader(surveys: &[MemberReport]) -> Option<MemberId> {
    let statuses = surveys.iter().filter_map(|survey| survey.status.as_ref().ok());
    let latest = statuses.filter(|status| status.raft_leader.is_some());
    latest.max_by_key(|status| status.raft_term)?.raft_leader
}

/// The index of the last entry that any of them knows to be committed: what the others lag behind.
pub fn most_committed(surveys: &[MemberReport]) -> u64 {
    let statuses = surveys.iter().filter_map(|survey| survey.status.as_ref().ok());
    statuses.map(|status| status.committed).max().unwrap_or(0)
}

fn answered_by(header: Option<&ResponseHeader>) -> Option<MemberId> {
    header.map(|header| MemberId(header.member_id()))
}

async fn read(mut client: Client, learner: bool) -> Result<(Option<MemberId>, ()), etcd_client::Error> {
    let mut options = GetOptions::new().with_count_only();
    if learner {
        options = options.with_serializable();
    }
    match client.get(ANY_KEY, Some(options)).await {
        Ok(read) => Ok((answered_by(read.header()), ())),
        Err(error) if denies_the_key(&error) => Ok((None, ())),
        Err(error) => Err(error),
    }
}

async fn status(mut client: Client) -> Result<(Option<MemberId>, Status), etcd_client::Error> {
    let status = client.status().await?;
    Ok((answered_by(status.header()), Status::from_client(&status)))
}

impl Etcd {
    /// Asks all these members at once, each within this limit. One that does not answer delays no other. Not to be asked
    /// of a member whose removal may be under way: see REQ-M-7 at [`Etcd::remove_member`].
    pub async fn survey(&self, members: &[ListedMember], limit: Duration) -> Vec<MemberReport> {
        join_all(members.iter().map(|member| self.survey_one(member, limit))).await
    }

    async fn survey_one(&self, member: &ListedMember, limit: Duration) -> MemberReport {
        let learner = member.learner;
        let deadline = Instant::now() + limit;
        let _asking = self.0.contacts.asking(member.id);
        // First, so that both questions, asked at once, go over one connection.
        let client = match self.contact("status", member, limit).await {
            Ok(client) => client,
            Err(error) => {
                return MemberReport {
                    id: member.id,
                    health: Err(error.clone()),
                    status: Err(error),
                };
            }
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let (read, status) = join(
            self.ask("range", member.id, left, read(client.clone(), learner)),
            self.ask("status", member.id, left, status(client)),
        )
        .await;
        let health = match &status {
            Err(error) if learner => read.and(Err(error.clone())),
            _ => read,
        };
        MemberReport {
            id: member.id,
            health,
            status,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_are_read_out_of_a_status_and_other_errors_are_not() {
        let parsed = alarm("memberID:10501334649042878790  alarm:NOSPACE ").unwrap();
        assert_eq!(parsed.member.to_string(), "91bc3c398fb3c146");
        assert_eq!(parsed.kind, "NOSPACE");
        for other in [
            "etcdserver: no leader",
            "",
            "memberID:x alarm:NOSPACE",
            "memberID:1",
        ] {
            assert_eq!(alarm(other), None, "{other:?}");
        }
    }

    #[test]
    fn the_latest_election_says_who_leads() {
        let survey = |id, leader, term| MemberReport {
            id: MemberId(id),
            health: Ok(()),
            status: Ok(Status {
                version: "3.4.23".to_owned(),
                db_size: 0,
                db_in_use: 0,
                raft_leader: leader,
                raft_term: term,
                committed: term,
                applied: 0,
                learner: false,
                alarms: Vec::new(),
            }),
        };
        let cut_off = survey(1, Some(MemberId(1)), 2);
        let electing = survey(2, None, 4);
        let following = survey(3, Some(MemberId(3)), 3);
        let surveys = [cut_off, electing, following];
        assert_eq!(raft_leader(&surveys), Some(MemberId(3)));
        assert_eq!(most_committed(&surveys), 4);
        assert_eq!(raft_leader(&[]), None);
    }
}
