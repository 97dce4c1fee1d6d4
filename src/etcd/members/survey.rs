//! Asks members for their health and status, each over its own client.

use std::time::{Duration, Instant};

use etcd_client::{AlarmAction, AlarmMember, AlarmType, Client, GetOptions, StatusResponse};
use futures::future::{join, join_all};

use super::evidence::{Alarm, Evidence, Inquiry, NotAsked, Status};
use super::list::ListedMember;
use crate::etcd::connect::Etcd;
use crate::etcd::error::Error;
use crate::etcd::kv::MemberId;
use crate::etcd::probe::{ANY_KEY, denies_the_key};
use crate::etcd::store_identity::Header;

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
    /// The alarms of the cluster. Unlike a status, which names them as well, this may be asked of a member that is being
    /// removed: see [`Etcd::remove_member`].
    ///
    /// # Errors
    /// [`Error`] if etcd did not answer.
    pub async fn alarms(&self) -> Result<Vec<Alarm>, Error> {
        let listed = self.call("alarm", |connection| async move {
            let mut client = connection.client.maintenance_client();
            client.alarm(AlarmAction::Get, AlarmType::None, None).await
        });
        let raised = listed.await?;
        let alarm = |raised: &AlarmMember| Alarm {
            member: MemberId(raised.member_id()),
            kind: raised.alarm().as_str_name().to_owned(),
        };
        Ok(raised.alarms().iter().map(alarm).collect())
    }

    /// Asks all these members at once, each as [`Etcd::survey_one`] does. A member that does not answer delays no other.
    pub async fn survey(&self, members: &[ListedMember], limit: Duration) -> Vec<Evidence> {
        join_all(members.iter().map(|member| self.survey_one(member, limit))).await
    }

    /// Asks this member for its health and status, within this limit. Do not call it for a member whose removal may be under
    /// way: see [`Etcd::remove_member`].
    pub async fn survey_one(&self, member: &ListedMember, limit: Duration) -> Evidence {
        let ListedMember { id, learner, .. } = *member;
        if self.0.contacts.is_excluded(id) {
            return Evidence::not_asked(id, learner, NotAsked::RemovalBegun);
        }
        let at = Instant::now();
        let _pending = self.0.contacts.begin_status(id);
        // Before the two requests, which are made at once, so that they share one connection.
        let (read, status) = match self.contact("status", member, limit).await {
            Ok(client) => {
                let read = self.ask("range", id, limit, at, read(client.clone(), learner));
                join(read, self.ask("status", id, limit, at, status(client))).await
            }
            Err(error) => (Err(error.clone()), Err(error)),
        };
        Evidence {
            member: id,
            learner,
            read: Inquiry::Asked { at, answer: read },
            status: Inquiry::Asked { at, answer: status },
        }
    }
}

impl Etcd {
    /// Asks a member whose removal is decided whether it serves, within this limit: the read alone, which cannot end it. A member
    /// that [`Etcd::remove_member`] has excluded is not asked at all.
    pub async fn survey_leaving(&self, member: &ListedMember, limit: Duration) -> Evidence {
        let ListedMember { id, learner, .. } = *member;
        if self.0.contacts.is_excluded(id) {
            return Evidence::not_asked(id, learner, NotAsked::RemovalBegun);
        }
        let at = Instant::now();
        let answer = self
            .ask_member("range", member, limit, |client| read(client, learner))
            .await;
        Evidence {
            read: Inquiry::Asked { at, answer },
            ..Evidence::not_asked(id, learner, NotAsked::Leaving)
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
}
