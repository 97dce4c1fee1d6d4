//! How far a member is in the history of its store, and in the log of raft.

use std::collections::BTreeSet;

use super::list::ListedMember;
use crate::etcd::connect::Etcd;
use crate::etcd::error::Error;
use crate::etcd::kv::{MemberId, Revision};
use crate::etcd::store_identity::Header;

/// How far a member was when it answered. It may lag behind the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The revision of its store; [`Revision::ABSENT`] where a proxy leaves it out.
    pub revision: Revision,
    /// The index of the last entry of raft's log that it said to have applied; it may be the one before that of the revision.
    pub applied_index: u64,
}

impl Etcd {
    /// How far some voter is. `leaving` are the members whose removal is decided: they are not asked, since a request for its status
    /// can end a member that is being removed (see [`Etcd::remove_member`]). `None` where no other one can be asked.
    ///
    /// # Errors
    /// [`Error`] if none of them answered.
    pub async fn position(&self, leaving: &BTreeSet<MemberId>) -> Result<Option<Position>, Error> {
        let list = self.list_members().await?;
        let stay = list.voters().filter(|voter| !leaving.contains(&voter.id));
        let stay: Vec<&ListedMember> = stay.collect();
        let mut failed = None;
        for voter in stay {
            match self.position_of(voter).await {
                Ok(position) => return Ok(Some(position)),
                Err(error) => failed = Some(error),
            }
        }
        // Pinned endpoints, such as a proxy, may be all of the members that is reached. Any of them may answer there.
        let is_pinned = !self.config().sync_endpoints;
        let is_any_leaving = list.members.iter().any(|member| leaving.contains(&member.id));
        match failed {
            Some(_) if is_pinned && is_any_leaving => Ok(None),
            Some(_) if is_pinned => self.position_of_any().await.map(Some),
            Some(error) => Err(error),
            None => Ok(None),
        }
    }

    async fn position_of(&self, member: &ListedMember) -> Result<Position, Error> {
        let limit = self.config().request_timeout;
        let _pending = self.0.contacts.begin_status(member.id);
        self.ask_member("status", member, limit, |client| async move {
            let mut client = client.maintenance_client();
            let status = client.status().await?;
            let header = status.header().map(Header::from);
            Ok::<_, etcd_client::Error>((header, position(header, status.raft_applied_index())))
        })
        .await
    }

    async fn position_of_any(&self) -> Result<Position, Error> {
        let (header, applied_index) = self
            .call("status", |connection| async move {
                let mut client = connection.client.maintenance_client();
                let status = client.status().await?;
                let header = status.header().map(Header::from);
                Ok::<_, etcd_client::Error>((header, status.raft_applied_index()))
            })
            .await?;
        Ok(position(header, applied_index))
    }
}

fn position(header: Option<Header>, applied_index: u64) -> Position {
    Position {
        revision: header.map_or(Revision::ABSENT, |header| header.revision),
        applied_index,
    }
}
