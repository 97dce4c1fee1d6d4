//! Requests to one given member, over its own client.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::{Duration, Instant};

use etcd_client::{Client, ConnectOptions, GetOptions};
use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::list::ListedMember;
use crate::etcd::connect::Etcd;
use crate::etcd::connection::Connection;
use crate::etcd::error::{Class, Error};
use crate::etcd::kv::MemberId;
use crate::etcd::probe::{ANY_KEY, denies_the_key};
use crate::etcd::store_identity::Header;

fn unavailable(operation: &'static str, why: String) -> Error {
    Error::new(operation, "Unavailable", Class::Unavailable, why)
}

impl Etcd {
    /// The member's client URLs that fit the TLS settings, normalized.
    pub(super) fn client_urls(&self, member: &ListedMember) -> BTreeSet<String> {
        let urls = member.client_urls.iter();
        urls.filter_map(|url| self.config().normalize(url)).collect()
    }

    /// Makes one request to one member, within `limit`. See [`Etcd::ask`].
    pub(super) async fn ask_member<T, Fut>(
        &self,
        operation: &'static str,
        member: &ListedMember,
        limit: Duration,
        request: impl FnOnce(Client) -> Fut,
    ) -> Result<T, Error>
    where
        Fut: Future<Output = Result<(Option<Header>, T), etcd_client::Error>>,
    {
        let begun = Instant::now();
        let client = self.contact(operation, member, limit).await?;
        // In a box, since what waits for it waits in a call, a step and a controller, each of which would hold a future of its size.
        let request = Box::pin(request(client));
        self.ask(operation, member.id, limit, begun, request).await
    }

    /// Makes a request over the member's own client until `limit` has passed since `begun`, when the client was looked for. The
    /// request returns what the response says about its store.
    /// Behind an address that several members share, another one may answer: its answer does not count.
    pub(super) async fn ask<T>(
        &self,
        operation: &'static str,
        member: MemberId,
        limit: Duration,
        begun: Instant,
        request: impl Future<Output = Result<(Option<Header>, T), etcd_client::Error>>,
    ) -> Result<T, Error> {
        match self.within(operation, limit, begun, request).await {
            Ok((Some(Header { member: other, .. }), _)) if other != member => {
                self.0.contacts.forget(member);
                let why = format!("member {other} answers at the client URLs of member {member}");
                Err(unavailable(operation, why))
            }
            Ok((_, answer)) => Ok(answer),
            Err(error) => {
                // The connection may be black-holed, or a learner may have been started again: it holds its tokens in memory.
                if matches!(error.class, Class::Unavailable | Class::StaleToken) {
                    self.0.contacts.forget(member);
                }
                Err(error)
            }
        }
    }

    /// The member's client, kept or new, within `limit`.
    pub(super) async fn contact(
        &self,
        operation: &'static str,
        member: &ListedMember,
        limit: Duration,
    ) -> Result<Client, Error> {
        if self.0.contacts.is_excluded(member.id) {
            let why = "the member's removal was begun, so it gets no requests".to_owned();
            return Err(unavailable(operation, why));
        }
        match tokio::time::timeout(limit, self.kept_or_new(member)).await {
            Ok(contact) => contact.map_err(|error| Error::from_client(operation, error)),
            Err(_) => Err(Error::timed_out(operation, limit)),
        }
    }

    async fn kept_or_new(&self, member: &ListedMember) -> Result<Client, etcd_client::Error> {
        let (connection, contacts) = (self.connection(), &self.0.contacts);
        if let Some(kept) = contacts.client(member.id, &member.client_urls, &connection) {
            return Ok(kept);
        }
        let urls = self.client_urls(member);
        let authenticates = match member.learner && connection.credentials.have_user() {
            true => self.live_endpoints(),
            false => Vec::new(),
        };
        let client = first_to_answer(member.id, &urls, &connection, &authenticates).await?;
        contacts.keep(member.id, &member.client_urls, connection, &client);
        Ok(client)
    }
}

/// A client of one URL. Its token is from the endpoints that authenticate, if there are any: a learner checks no password, but it takes
/// the tokens that its cluster has given since it follows it.
async fn connect(
    url: String,
    options: ConnectOptions,
    authenticates: &[String],
) -> Result<Client, etcd_client::Error> {
    let others: Vec<&String> = authenticates.iter().filter(|other| **other != url).collect();
    if others.is_empty() {
        return Client::connect([url], Some(options)).await;
    }
    // The learner would be asked for the next token.
    let options = options.with_auto_token_refresh(false);
    let client = Client::connect(&others, Some(options)).await?;
    client.add_endpoint(&url).await?;
    for other in others {
        client.remove_endpoint(other).await?;
    }
    Ok(client)
}

/// A client of the only URL, or of the first of several at which this member answers: members may advertise URLs that only
/// some clients reach.
async fn first_to_answer(
    id: MemberId,
    urls: &BTreeSet<String>,
    connection: &Connection,
    authenticates: &[String],
) -> Result<Client, etcd_client::Error> {
    let connect = |url: &String| connect(url.clone(), connection.options.clone(), authenticates);
    if urls.len() <= 1 {
        let Some(url) = urls.first() else {
            return Err(etcd_client::Error::Internal(
                "the member has no client URL that fits the TLS settings; before its first start it has none at all"
                    .to_owned(),
            ));
        };
        return connect(url).await;
    }
    let mut asked: FuturesUnordered<_> = urls
        .iter()
        .map(|url| async move {
            let mut client = connect(url).await?;
            // A serializable read, which a learner answers as well. Not the status: see `Contacts::excluded`.
            let options = GetOptions::new().with_serializable().with_count_only();
            match client.get(ANY_KEY, Some(options)).await {
                Ok(read) if read.header().is_some_and(|header| header.member_id() != id.0) => Err(
                    etcd_client::Error::Internal(format!("another member answers at {url}")),
                ),
                Err(error) if !denies_the_key(&error) => Err(error),
                _ => Ok(client),
            }
        })
        .collect();
    let mut failed = None;
    while let Some(answer) = asked.next().await {
        match answer {
            Ok(client) => return Ok(client),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| etcd_client::Error::Internal("no client URL".to_owned())))
}
