//! The member list, read so that it can be decided upon.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use etcd_client::{Client, GetOptions, ResponseHeader};
use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::ANY_KEY;
use crate::etcd::connect::Etcd;
use crate::etcd::error::{Class, Error};
use crate::etcd::kv::MemberId;

/// A member as the list has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedMember {
    /// Never used again once the member was removed.
    pub id: MemberId,
    /// Empty until it has started for the first time. A label: two members may have one name.
    pub name: String,
    /// Where the other members reach it.
    pub peer_urls: Vec<String>,
    /// Where clients reach it; none until it has started for the first time.
    pub client_urls: Vec<String>,
    /// Whether it is not a voter yet.
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

    /// Whether it has ever started: only then it has a name.
    pub fn is_started(&self) -> bool {
        !self.name.is_empty()
    }

    /// Whether these are its peer URLs, in any order and with or without a trailing slash.
    pub fn has_peer_urls(&self, urls: &[String]) -> bool {
        same_urls(&self.peer_urls, urls)
    }
}

/// Whether these are the same URLs, in any order and with or without a trailing slash.
pub fn same_urls(urls: &[String], others: &[String]) -> bool {
    fn set(urls: &[String]) -> BTreeSet<&str> {
        urls.iter().map(|url| url.trim_end_matches('/')).collect()
    }
    set(urls) == set(others)
}

/// All members at one moment, learners and those that never started too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberList {
    /// In the order of their ids.
    pub members: Vec<ListedMember>,
    /// Who answered.
    pub answered_by: MemberId,
}

impl MemberList {
    /// The member with this id.
    pub fn member(&self, id: MemberId) -> Option<&ListedMember> {
        self.members.iter().find(|member| member.id == id)
    }

    /// The members that vote, started or not.
    pub fn voters(&self) -> impl Iterator<Item = &ListedMember> {
        self.members.iter().filter(|member| !member.learner)
    }
}

/// A linearizable read, then the list, of one and the same member: etcd gives out its list without asking the others,
/// and before 3.5 cannot do it otherwise. Members apply changes of the list in the order of the log, so after the read
/// the list is at least as new.
async fn read_list(mut client: Client) -> Result<MemberList, etcd_client::Error> {
    let options = GetOptions::new().with_count_only();
    let read_by = match client.get(ANY_KEY, Some(options)).await {
        Ok(read) => read.header().map(ResponseHeader::member_id),
        Err(error) if denies_the_key(&error) => None,
        Err(error) => return Err(error),
    };
    let list = own_list(client).await?;
    if read_by.is_some_and(|reader| reader != list.answered_by.0) {
        let text = "one connection led to two members, so that their member list may be an old one";
        return Err(etcd_client::Error::Internal(text.to_owned()));
    }
    Ok(list)
}

/// The list as the member has it that answers.
async fn own_list(mut client: Client) -> Result<MemberList, etcd_client::Error> {
    let listed = client.member_list().await?;
    let mut members: Vec<_> = listed.members().iter().map(ListedMember::from_client).collect();
    members.sort_by_key(|member| member.id);
    Ok(MemberList {
        members,
        answered_by: MemberId(listed.header().map_or(0, ResponseHeader::member_id)),
    })
}

/// Whether the read went through raft and only its result is not this user's to see.
pub(in crate::etcd) fn denies_the_key(error: &etcd_client::Error) -> bool {
    matches!(error, etcd_client::Error::GRpcStatus(status) if status.code() == tonic::Code::PermissionDenied)
}

impl Etcd {
    /// The member list, as new as this call: read linearizably, of whichever live endpoint is the first to answer.
    ///
    /// # Errors
    /// [`Error`] if no endpoint could, for example without a quorum.
    pub async fn list_members(&self) -> Result<MemberList, Error> {
        let mut patience = self.patience();
        loop {
            match self.list_of_the_first().await {
                Err(error) if patience.allows("member_list", &error) => patience.wait().await,
                result => return result,
            }
        }
    }

    async fn list_of_the_first(&self) -> Result<MemberList, Error> {
        let mut asked: FuturesUnordered<_> = self
            .live_endpoints()
            .into_iter()
            .map(|endpoint| async move {
                let limit = self.config().request_timeout;
                let ask = async { read_list(self.endpoint_client(&endpoint).await?).await };
                self.within("member_list", limit, ask).await
            })
            .collect();
        let mut failed = None;
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(list) => {
                    let ids = list.members.iter().map(|member| member.id);
                    self.0.contacts.keep_only(&ids.collect());
                    return Ok(list);
                }
                Err(error) => failed = Some(error),
            }
        }
        self.0.recheck.notify_one();
        Err(failed.unwrap_or_else(|| {
            let text = "no endpoint is known".to_owned();
            Error::new("member_list", "Unavailable", Class::Unavailable, text)
        }))
    }

    /// The list as this very member has it, read linearizably.
    ///
    /// # Errors
    /// [`Error`] if it did not answer in time.
    pub async fn list_through(&self, member: &ListedMember, limit: Duration) -> Result<MemberList, Error> {
        self.list_of(member, limit, read_list).await
    }

    /// The list as this very member has it at the moment, without a word with the others: it may be an old one.
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
        Fut: Future<Output = Result<MemberList, etcd_client::Error>>,
    {
        self.ask_member("member_list", member, limit, |client| async move {
            let list = read(client).await?;
            Ok((Some(list.answered_by), list))
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_compared_as_a_set_and_without_their_last_slash() {
        let urls = |urls: &[&str]| urls.iter().map(ToString::to_string).collect::<Vec<_>>();
        let both = urls(&["http://a:2380", "http://b:2380"]);
        assert!(same_urls(&both, &urls(&["http://b:2380/", "http://a:2380"])));
        assert!(!same_urls(&both, &both[..1]));
        assert!(!same_urls(&both[..1], &both));
    }
}
