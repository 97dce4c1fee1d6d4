//! The member list, read linearizably, so that decisions may be based on it.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::{Duration, Instant};

use etcd_client::{Client, GetOptions, ResponseHeader};

use crate::etcd::connect::Etcd;
use crate::etcd::error::Error;
use crate::etcd::kv::MemberId;
use crate::etcd::probe::{ANY_KEY, denies_the_key};
use crate::etcd::store_identity::Header;

/// A member as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedMember {
    /// Its id. etcd never uses the id of a removed member again.
    pub id: MemberId,
    /// Its name, empty until its first start. Two members may have the same name.
    pub name: String,
    /// The URLs at which the other members reach it.
    pub peer_urls: Vec<String>,
    /// The URLs at which clients reach it; none until its first start.
    pub client_urls: Vec<String>,
    /// Whether it is a learner, and no voter yet.
    pub learner: bool,
}

impl ListedMember {
    pub(super) fn from_client(member: &etcd_client::Member) -> Self {
        Self {
            id: MemberId(member.id()),
            name: member.name().to_owned(),
            peer_urls: member.peer_urls().to_vec(),
            client_urls: member.client_urls().to_vec(),
            learner: member.is_learner(),
        }
    }

    /// Whether it has ever started. Goes by its name, which it has only then.
    pub fn is_started(&self) -> bool {
        !self.name.is_empty()
    }

    /// Whether these are its peer URLs. Order and trailing slashes do not matter.
    pub fn has_peer_urls(&self, urls: &[String]) -> bool {
        same_urls(&self.peer_urls, urls)
    }
}

/// Whether these are the same URLs. Order and trailing slashes do not matter.
pub fn same_urls(urls: &[String], others: &[String]) -> bool {
    fn set(urls: &[String]) -> BTreeSet<&str> {
        urls.iter().map(|url| url.trim_end_matches('/')).collect()
    }
    set(urls) == set(others)
}

/// All members at one moment, learners and those that have never started included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberList {
    /// The members, ordered by id.
    pub members: Vec<ListedMember>,
    /// The member that gave the list.
    pub answered_by: MemberId,
}

impl MemberList {
    /// The member with this id.
    pub fn member(&self, id: MemberId) -> Option<&ListedMember> {
        self.members.iter().find(|member| member.id == id)
    }

    /// The voters, started or not.
    pub fn voters(&self) -> impl Iterator<Item = &ListedMember> {
        self.members.iter().filter(|member| !member.learner)
    }
}

/// Makes a linearizable read, then lists, both through the same member. etcd lists its members without asking the others,
/// and before 3.5 it has no other way. Members apply changes of the list in the order of the log, so the list is at least
/// as new as the read.
async fn read_list(mut client: Client) -> Result<(Option<Header>, MemberList), etcd_client::Error> {
    let options = GetOptions::new().with_count_only();
    let read_by = match client.get(ANY_KEY, Some(options)).await {
        Ok(read) => read.header().map(ResponseHeader::member_id),
        Err(error) if denies_the_key(&error) => None,
        Err(error) => return Err(error),
    };
    let (header, list) = own_list(client).await?;
    if read_by.is_some_and(|reader| reader != list.answered_by.0) {
        let text = "two members answered over one connection, so the member list may be outdated";
        return Err(etcd_client::Error::Internal(text.to_owned()));
    }
    Ok((header, list))
}

/// The list that the answering member has.
async fn own_list(mut client: Client) -> Result<(Option<Header>, MemberList), etcd_client::Error> {
    let listed = client.member_list().await?;
    let mut members: Vec<_> = listed.members().iter().map(ListedMember::from_client).collect();
    members.sort_by_key(|member| member.id);
    let header = listed.header().map(Header::from);
    let answered_by = header.map_or(MemberId(0), |header| header.member);
    Ok((header, MemberList { members, answered_by }))
}

impl Etcd {
    /// Reads the member list linearizably, through the live endpoint that answers first.
    ///
    /// # Errors
    /// [`Error`] if no endpoint answered, for example without a quorum.
    pub async fn list_members(&self) -> Result<MemberList, Error> {
        let mut patience = self.patience();
        loop {
            match self.list_through_any().await {
                Err(error) if patience.allows("member_list", &error) => patience.wait().await,
                result => return result,
            }
        }
    }

    async fn list_through_any(&self) -> Result<MemberList, Error> {
        let limit = self.config().request_timeout;
        if self.config().serializable {
            return self.any_list(limit).await;
        }
        let (_, list) = self.through_any("member_list", limit, read_list).await?;
        let ids = list.members.iter().map(|member| member.id);
        self.0.contacts.keep_only(&ids.collect(), Instant::now());
        Ok(list)
    }

    /// Reads the member list that the endpoint has which answers first. It serves to find endpoints, not to decide on a
    /// change.
    pub(in crate::etcd) async fn any_list(&self, limit: Duration) -> Result<MemberList, Error> {
        let (_, list) = self.through_any("member_list", limit, own_list).await?;
        Ok(list)
    }

    /// Reads the member list linearizably, through this member.
    ///
    /// # Errors
    /// [`Error`] if it did not answer in time.
    pub async fn list_through(&self, member: &ListedMember, limit: Duration) -> Result<MemberList, Error> {
        self.list_of(member, limit, read_list).await
    }

    /// Reads the list that this member has. It does not ask the other members, so the list may be outdated.
    ///
    /// # Errors
    /// [`Error`] if it did not answer in time.
    pub async fn own_list_of(&self, member: &ListedMember, limit: Duration) -> Result<MemberList, Error> {
        self.list_of(member, limit, own_list).await
    }

    async fn list_of<Fut>(
        &self,
        member: &ListedMember,
        limit: Duration,
        read: impl FnOnce(Client) -> Fut,
    ) -> Result<MemberList, Error>
    where
        Fut: Future<Output = Result<(Option<Header>, MemberList), etcd_client::Error>>,
    {
        self.ask_member("member_list", member, limit, read).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_compared_as_sets_without_trailing_slashes() {
        let urls = |urls: &[&str]| urls.iter().map(ToString::to_string).collect::<Vec<_>>();
        let both = urls(&["http://a:2380", "http://b:2380"]);
        assert!(same_urls(&both, &urls(&["http://b:2380/", "http://a:2380"])));
        assert!(!same_urls(&both, &both[..1]));
        assert!(!same_urls(&both[..1], &both));
    }
}
