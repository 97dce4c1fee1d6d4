//! The health and status of each member, as that member itself reports them.

use std::time::{Duration, Instant};

use etcd_client::{Client, GetOptions, StatusResponse};
use futures::future::{join, join_all};

use super::list::ListedMember;
use crate::etcd::connect::Etcd;
use crate::etcd::error::Error;
use crate::etcd::kv::MemberId;
use crate::etcd::probe::{ANY_KEY, denies_the_key};
use crate::etcd::store_identity::Header;

/// The answers of one member.
#[derive(Clone, Debug)]
pub struct MemberReport {
    /// The member.
    pub id: MemberId,
    /// For a voter, the result of a linearizable read through it. A status proves no health: a member also answers it
    /// without a quorum, out of space, and however far behind. For a learner, which serves no linearizable reads, the
    /// result of a status and a serializable read.
    pub health: Result<(), Error>,
    /// Its status, as it reports it.
    pub status: Result<Status, Error>,
}

impl MemberReport {
    /// Whether the member counts towards a quorum.
    pub fn is_healthy(&self) -> bool {
        self.health.is_ok()
    }
}

/// The status that a member reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The version of etcd, such as `3.5.28`.
    pub version: String,
    /// The size of its database file, in bytes.
    pub db_size: u64,
    /// The bytes of the file that are in use. A defragmentation frees the rest.
    pub db_in_use: u64,
    /// The member that it follows as the raft leader.
    pub raft_leader: Option<MemberId>,
    /// The raft term, which grows with every election among the members.
    pub raft_term: u64,
    /// The index of the last log entry that it knows to be committed.
    pub committed: u64,
    /// The index of the last log entry that it has applied.
    pub applied: u64,
    /// Whether it reports itself as a learner.
    pub learner: bool,
    /// The alarms of the whole cluster that this member knows.
    pub alarms: Vec<Alarm>,
}

/// An alarm, which etcd raises by itself and a person has to clear (`etcdctl alarm disarm`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// The member that raised it.
    pub member: MemberId,
    /// `NOSPACE` or `CORRUPT`.
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

/// Parses an alarm from an error of a status: `memberID:10501334649042878790 alarm:NOSPACE `. Other errors have another
/// form.
fn alarm(text: &str) -> Option<Alarm> {
    let mut words = text.split_whitespace();
    let member = words.next()?.strip_prefix("memberID:")?.parse().ok()?;
    let kind = words.next()?.strip_prefix("alarm:")?.to_owned();
    Some(Alarm {
        member: MemberId(member),
        kind,
    })
}

/// The raft leader, by the member that has seen the latest election.
pub fn raft_leader(surveys: &[MemberReport]) -> Option<MemberId> {
    let statuses = surveys.iter().filter_map(|survey| survey.status.as_ref().ok());
    let latest = statuses.filter(|status| status.raft_leader.is_some());
    latest.max_by_key(|status| status.raft_term)?.raft_leader
}

/// The highest log index that a member knows to be committed: the lag of the others is measured against it.
pub fn most_committed(surveys: &[MemberReport]) -> u64 {
    let statuses = surveys.iter().filter_map(|survey| survey.status.as_ref().ok());
    statuses.map(|status| status.committed).max().unwrap_or(0)
}

async fn read(mut client: Client, learner: bool) -> Result<(Option<Header>, ()), etcd_client::Error> {
    let mut options = GetOptions::new().with_count_only();
    if learner {
        options = options.with_serializable();
    }
    match client.get(ANY_KEY, Some(options)).await {
        Ok(read) => Ok((read.header().map(Header::from), ())),
        Err(error) if denies_the_key(&error) => Ok((None, ())),
        Err(error) => Err(error),
    }
}

async fn status(mut client: Client) -> Result<(Option<Header>, Status), etcd_client::Error> {
    let status = client.status().await?;
    Ok((status.header().map(Header::from), Status::from_client(&status)))
}

impl Etcd {
    /// Asks all these members at once, each within this limit. A member that does not answer delays no other. Do not call it
    /// for a member whose removal may be under way: see [`Etcd::remove_member`].
    pub async fn survey(&self, members: &[ListedMember], limit: Duration) -> Vec<MemberReport> {
        join_all(members.iter().map(|member| self.survey_one(member, limit))).await
    }

    async fn survey_one(&self, member: &ListedMember, limit: Duration) -> MemberReport {
        let learner = member.learner;
        let deadline = Instant::now() + limit;
        let _pending = self.0.contacts.begin_status(member.id);
        // Before the two requests, which are made at once, so that they share one connection.
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
    fn alarms_are_parsed_from_a_status_and_other_errors_are_not() {
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
    fn the_member_with_the_latest_term_names_the_raft_leader() {
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
