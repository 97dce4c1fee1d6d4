//! The member list, read so that it can be decided upon.

use std::fmt;
use std::time::Duration;

use etcd_client::{Client, GetOptions};
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;

use super::ANY_KEY;
use crate::etcd::connect::Etcd;
use crate::etcd::error::{Class, Error};
use crate::etcd::kv::{MemberId, Revision, revision_of};

/// Tells clusters apart; one that was restored from a snapshot is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClusterId(pub u64);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// A member as the list has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
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

impl Listed {
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
        url_set(&self.peer_urls) == url_set(urls)
    }

    /// Whether one of its peer URLs is among these.
    pub fn shares_peer_url(&self, urls: &[String]) -> bool {
        let own = url_set(&self.peer_urls);
        url_set(urls).iter().any(|url| own.contains(url))
    }
}

fn url_set(urls: &[String]) -> std::collections::BTreeSet<&str> {
    urls.iter().map(|url| url.trim_end_matches('/')).collect()
}

/// All members at one moment, learners and those that never started too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// In the order of their ids.
    pub members: Vec<Listed>,
    /// Of this cluster.
    pub cluster: ClusterId,
    /// The store was at least here when the list was made.
    pub revision: Revision,
    /// Who answered.
    pub answered_by: MemberId,
}

impl List {
    /// The member with this id.
    pub fn member(&self, id: MemberId) -> Option<&Listed> {
        self.members.iter().find(|member| member.id == id)
    }

    /// The members that vote, started or not.
    pub fn voters(&self) -> impl Iterator<Item = &Listed> {
        self.members.iter().filter(|member| !member.learner)
    }
}

/// A linearizable read, then the list, of one and the same member: etcd gives out its list without asking the others,
/// and before 3.5 cannot do it otherwise. Members apply changes of the list in the order of the log, so after the read
/// the list is at least as new.
async fn read_list(mut client: Client) -> Result<List, etcd_client::Error> {
    let options = GetOptions::new().with_count_only();
    let read = match client.get(ANY_KEY, Some(options)).await {
        Ok(read) => read.header().cloned(),
        Err(error) if denies_the_key(&error) => None,
        Err(error) => return Err(error),
    };
    let listed = client.member_list().await?;
    let answered_by = listed.header().map_or(0, etcd_client::ResponseHeader::member_id);
    if let Some(read) = &read
        && read.member_id() != answered_by
    {
        let text = "one connection led to two members, so that their member list may be an old one";
        return Err(etcd_client::Error::Internal(text.to_owned()));
    }
    let mut members: Vec<_> = listed.members().iter().map(Listed::from_client).collect();
    members.sort_by_key(|member| member.id);
    Ok(List {
        members,
        cluster: ClusterId(listed.header().map_or(0, etcd_client::ResponseHeader::cluster_id)),
        revision: revision_of(read.as_ref()),
        answered_by: MemberId(answered_by),
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
    pub async fn list_members(&self) -> Result<List, Error> {
        let mut patience = self.patience();
        loop {
            match self.list_of_the_first().await {
                Err(error) if patience.allows("member_list", &error) => patience.wait().await,
                result => return result,
            }
        }
    }

    async fn list_of_the_first(&self) -> Result<List, Error> {
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
        self.0.suspect.notify_one();
        Err(failed.unwrap_or_else(|| {
            let text = "no endpoint is known".to_owned();
            Error::new("member_list", "Unavailable", Class::Unavailable, text)
        }))
    }

    /// The list as each of these members has it, read linearizably through that very member, all at once.
    pub async fn lists_of(
        &self,
        members: &[Listed],
        limit: Duration,
    ) -> Vec<(MemberId, Result<List, Error>)> {
        join_all(members.iter().map(async |member| {
            let list = self
                .ask_member("member_list", member, limit, |client| async move {
                    let list = read_list(client).await?;
                    Ok((Some(list.answered_by), list))
                })
                .await;
            (member.id, list)
        }))
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_urls_are_compared_as_a_set_and_without_their_last_slash() {
        let urls = |urls: &[&str]| urls.iter().map(ToString::to_string).collect::<Vec<_>>();
        let member = Listed {
            id: MemberId(1),
            name: String::new(),
            peer_urls: urls(&["http://a:2380", "http://b:2380"]),
            client_urls: Vec::new(),
            learner: true,
        };
        assert!(member.has_peer_urls(&urls(&["http://b:2380/", "http://a:2380"])));
        assert!(!member.has_peer_urls(&urls(&["http://a:2380"])));
        assert!(member.shares_peer_url(&urls(&["http://c:2380", "http://a:2380/"])));
        assert!(!member.shares_peer_url(&urls(&["http://c:2380"])));
    }
}
