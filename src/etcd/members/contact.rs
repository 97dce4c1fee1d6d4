//! One connection per member, kept from one question to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use etcd_client::{Client, GetOptions};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::Notify;

use super::ANY_KEY;
use super::list::{ListedMember, denies_the_key};
use crate::etcd::connect::{Connection, Etcd};
use crate::etcd::error::{Class, Error};
use crate::etcd::kv::MemberId;

/// The connections to members, and the members that are not to be asked any more.
#[derive(Default)]
pub(in crate::etcd) struct Contacts {
    kept: Mutex<BTreeMap<MemberId, Kept>>,
    /// Members whose removal was begun, with their client URLs while they are listed. A status asked of a member in the
    /// second after its removal ends that member's process in a panic (REQ-M-7), so nothing is asked of it from before the
    /// call on, unless the removal is refused: an id is never used again, and somebody may still go by an older list.
    parted: Mutex<BTreeMap<MemberId, BTreeSet<String>>>,
    /// How many were asked for their status and have not answered: what was asked just before a removal may be answered
    /// just after it, so the removal waits for that.
    asked: Mutex<BTreeMap<MemberId, usize>>,
    answered: Notify,
}

/// A question for a status that is under way.
pub(super) struct Asking<'c> {
    contacts: &'c Contacts,
    id: MemberId,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut asked = self.contacts.asked();
        match asked.get_mut(&self.id) {
            Some(count) if *count > 1 => *count -= 1,
            _ => _ = asked.remove(&self.id),
        }
        self.contacts.answered.notify_waiters();
    }
}

struct Kept {
    client: Client,
    urls: Vec<String>,
    /// The certificates and the user that it was made with.
    connection: Arc<Connection>,
}

impl Contacts {
    // Any state of the maps is a good one.
    fn kept(&self) -> MutexGuard<'_, BTreeMap<MemberId, Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parted(&self) -> MutexGuard<'_, BTreeMap<MemberId, BTreeSet<String>>> {
        self.parted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(&self) -> MutexGuard<'_, BTreeMap<MemberId, usize>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be held while a member is asked for its status, from before [`Etcd::contact`].
    pub(super) fn asking(&self, id: MemberId) -> Asking<'_> {
        *self.asked().entry(id).or_default() += 1;
        Asking { contacts: self, id }
    }

    /// Waits until nobody waits for its status, which each does for a limited time.
    pub(super) async fn all_answered(&self, id: MemberId) {
        loop {
            let mut answered = std::pin::pin!(self.answered.notified());
            answered.as_mut().enable();
            if !self.asked().contains_key(&id) {
                return;
            }
            answered.await;
        }
    }

    /// Forgets the connections and the URLs of members that are in the list no more. Their URLs may become those of
    /// others.
    pub(in crate::etcd) fn keep_only(&self, members: &BTreeSet<MemberId>) {
        self.kept().retain(|id, _| members.contains(id));
        for (id, urls) in self.parted().iter_mut() {
            if !members.contains(id) {
                urls.clear();
            }
        }
    }

    /// Nothing is asked of it from here on, and no connection to it stays.
    pub(super) fn part_from(&self, id: MemberId, client_urls: BTreeSet<String>) {
        self.parted().insert(id, client_urls);
        self.kept().remove(&id);
    }

    /// It stays a member after all.
    pub(super) fn take_back(&self, id: MemberId) {
        self.parted().remove(&id);
    }

    /// Client URLs of the members that nothing is to be asked of.
    pub(in crate::etcd) fn parted_urls(&self) -> BTreeSet<String> {
        self.parted().values().flatten().cloned().collect()
    }

    /// Whether its removal was begun.
    pub(super) fn is_parted(&self, id: MemberId) -> bool {
        self.parted().contains_key(&id)
    }
}

fn unavailable(operation: &'static str, why: String) -> Error {
    Error::new(operation, "Unavailable", Class::Unavailable, why)
}

impl Etcd {
    /// Its client URLs that fit the TLS settings, as this connection writes them.
    pub(super) fn client_urls(&self, member: &ListedMember) -> BTreeSet<String> {
        let urls = member.client_urls.iter();
        urls.filter_map(|url| self.config().normalize(url)).collect()
    }

    /// One question to one member, over its own connection. See [`Etcd::ask`].
    pub(super) async fn ask_member<T, Fut>(
        &self,
        operation: &'static str,
        member: &ListedMember,
        limit: Duration,
        question: impl FnOnce(Client) -> Fut,
    ) -> Result<T, Error>
    where
        Fut: Future<Output = Result<(Option<MemberId>, T), etcd_client::Error>>,
    {
        let deadline = Instant::now() + limit;
        let client = self.contact(operation, member, limit).await?;
        let left = deadline.saturating_duration_since(Instant::now());
        self.ask(operation, member.id, left, question(client)).await
    }

    /// A question over a member's own connection. It tells who answered, where that is known: behind an address that
    /// several members share it may be another one, whose answer counts for nothing.
    pub(super) async fn ask<T>(
        &self,
        operation: &'static str,
        member: MemberId,
        limit: Duration,
        question: impl Future<Output = Result<(Option<MemberId>, T), etcd_client::Error>>,
    ) -> Result<T, Error> {
        match self.within(operation, limit, question).await {
            Ok((Some(other), _)) if other != member => {
                self.0.contacts.kept().remove(&member);
                let why = format!("member {other} answers at the client URLs of member {member}");
                Err(unavailable(operation, why))
            }
            Ok((_, answer)) => Ok(answer),
            Err(error) => {
                // The next question goes over a fresh connection, not one that may be black-holed.
                if error.class == Class::Unavailable {
                    self.0.contacts.kept().remove(&member);
                }
                Err(error)
            }
        }
    }

    /// The connection to a member, within a limit.
    pub(super) async fn contact(
        &self,
        operation: &'static str,
        member: &ListedMember,
        limit: Duration,
    ) -> Result<Client, Error> {
        if self.0.contacts.is_parted(member.id) {
            let why = "its removal was begun, so nothing is asked of it".to_owned();
            return Err(unavailable(operation, why));
        }
        match tokio::time::timeout(limit, self.kept_or_new(member)).await {
            Ok(contact) => contact.map_err(|error| Error::from_client(operation, error)),
            Err(_) => Err(Error::timed_out(operation, limit)),
        }
    }

    /// The kept connection, unless its URLs or the credentials have changed since.
    async fn kept_or_new(&self, member: &ListedMember) -> Result<Client, etcd_client::Error> {
        let connection = self.connection();
        if let Some(kept) = self.0.contacts.kept().get(&member.id)
            && kept.urls == member.client_urls
            && Arc::ptr_eq(&kept.connection, &connection)
        {
            return Ok(kept.client.clone());
        }
        let urls = self.client_urls(member);
        let client = self.first_to_answer(member.id, &urls, &connection).await?;
        // Unless its removal began meanwhile.
        if !self.0.contacts.is_parted(member.id) {
            let kept = Kept {
                client: client.clone(),
                urls: member.client_urls.clone(),
                connection,
            };
            self.0.contacts.kept().insert(member.id, kept);
        }
        Ok(client)
    }

    /// A client of the one URL, or of the first of several behind which this member answers: members may advertise URLs
    /// that only some clients reach.
    async fn first_to_answer(
        &self,
        id: MemberId,
        urls: &BTreeSet<String>,
        connection: &Arc<Connection>,
    ) -> Result<Client, etcd_client::Error> {
        let connect = |url: &String| Client::connect([url.clone()], Some(connection.options.clone()));
        if urls.len() <= 1 {
            let Some(url) = urls.first() else {
                return Err(etcd_client::Error::Internal(
                    "it has no client URL that fits the TLS settings; before its first start it has none at all"
                        .to_owned(),
                ));
            };
            return connect(url).await;
        }
        let mut asked: FuturesUnordered<_> = urls
            .iter()
            .map(|url| async move {
                let mut client = connect(url).await?;
                // Serializable, so that a learner answers, too. Not the status: see `Contacts::parted`.
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
}
