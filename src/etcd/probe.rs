//! Finds out which endpoints can serve. Each is asked over a connection of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use etcd_client::{Client, ConnectOptions, GetOptions};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};

use super::alert;
use super::config::{Config, Credentials};
use super::error::Error;
use super::kv::Revision;
use super::store_identity::{ClusterId, Header, count};
use crate::retry::sleep_until;

/// The key of reads whose result does not matter; it need not exist. `etcdctl endpoint health` reads the same key. A user
/// who may not read it is refused only after the read went through raft, so that the refusal proves as much.
pub(super) const ANY_KEY: &str = "health";

/// Whether the read went through raft and etcd only withholds its result from this user.
pub(super) fn denies_the_key(error: &etcd_client::Error) -> bool {
    matches!(error, etcd_client::Error::GRpcStatus(status) if status.code() == tonic::Code::PermissionDenied)
}

/// The answer of one endpoint.
#[derive(Clone, Debug)]
pub(super) struct Probed {
    pub endpoint: String,
    /// The highest revision that was seen before this endpoint was asked. Its answer is not below that (INV-11), and may be
    /// below what others have shown since.
    pub floor: Revision,
    /// Whether the member behind it can serve, with what it says about its store, if it says that.
    pub answer: Result<Option<Header>, Error>,
}

/// What a read through one endpoint brings: its client, and what it says about its store.
type Served = Result<(Client, Option<Header>), Error>;

/// The configured endpoints, as URLs with a scheme.
pub(super) fn configured(config: &Config) -> BTreeSet<String> {
    config
        .endpoints
        .iter()
        .filter_map(|endpoint| config.normalize(endpoint))
        .collect()
}

/// The cluster of each endpoint that names it.
pub(super) fn clusters(answers: &[Probed]) -> Vec<(String, ClusterId)> {
    let named = |probed: &Probed| Some((probed.endpoint.clone(), probed.header()?.cluster?));
    answers.iter().filter_map(named).collect()
}

/// How many of the candidates are counted where the store is judged: those that are configured or in use, `known`, whether they
/// answer or not, and those of the others that answered. A URL that only a list of members names may be that of a member that is
/// gone for good: its silence would keep a replaced store from being recognized.
pub(super) fn judged(candidates: &BTreeSet<String>, known: &BTreeSet<String>, answers: &[Probed]) -> usize {
    let answered = |endpoint: &String| {
        let mut answers = answers.iter();
        answers.any(|probed| probed.endpoint == *endpoint && probed.answer.is_ok())
    };
    let is_counted = |endpoint: &&String| known.contains(*endpoint) || answered(endpoint);
    candidates.iter().filter(is_counted).count()
}

/// The endpoints that can serve this cluster. Those that do not name their cluster are among them.
pub(super) fn answering(answers: &[Probed], cluster: Option<ClusterId>) -> Vec<String> {
    let serves = |header: &Option<Header>| match header.and_then(|header| header.cluster) {
        Some(served) => Some(served) == cluster,
        None => true,
    };
    let serving = answers
        .iter()
        .filter(|probed| probed.answer.as_ref().is_ok_and(serves));
    serving.map(|probed| probed.endpoint.clone()).collect()
}

impl Probed {
    /// What the endpoint says about its store.
    pub fn header(&self) -> Option<Header> {
        *self.answer.as_ref().ok()?
    }
}

/// What endpoints are still asked. It may outlast the probe that began it.
#[derive(Default)]
pub(super) struct Pending {
    endpoints: BTreeSet<String>,
    answers: FuturesUnordered<BoxFuture<'static, (Probed, Option<Client>)>>,
    /// The answers that came after the probe.
    late: Vec<Probed>,
}

impl Pending {
    /// The next answer; `None` if no endpoint is asked. Safe to cancel.
    async fn next(&mut self) -> Option<(Probed, Option<Client>)> {
        let next = self.answers.next().await?;
        self.endpoints.remove(&next.0.endpoint);
        Some(next)
    }

    /// Keeps the next answer for the next probe, and returns its endpoint with the client if that answered well. `None` if no
    /// endpoint is asked. Safe to cancel.
    pub async fn keep_next(&mut self) -> Option<(String, Option<Client>)> {
        let (probed, client) = self.next().await?;
        let endpoint = probed.endpoint.clone();
        self.late.push(probed);
        Some((endpoint, client))
    }

    /// The endpoints that have yet to answer.
    pub fn endpoints(&self) -> &BTreeSet<String> {
        &self.endpoints
    }
}

/// A probe of endpoints: each is asked for a linearizable read, all at once, each within the connect limit and half the
/// request limit. A learner refuses such a read, and a member that is cut off from its cluster does not answer it. The status
/// would show the same, but etcd can panic when it answers a status request while it is being removed, and any endpoint may
/// be probed at any time.
pub(super) struct Probe {
    /// The answers so far, in the order of the endpoints.
    pub answers: Vec<Probed>,
    candidates: BTreeSet<String>,
    clients: BTreeMap<String, Client>,
    pending: Pending,
}

impl Probe {
    /// Asks every candidate that an earlier probe does not ask still. `known` holds the client of each endpoint that
    /// answered the probe before. `floor` is the highest revision seen so far.
    pub fn begin(
        config: &Config,
        credentials: &Credentials,
        known: &BTreeMap<String, Client>,
        candidates: &BTreeSet<String>,
        floor: Revision,
        earlier: Pending,
    ) -> Self {
        let options = config.connect_options(credentials);
        let limit = config.connect_timeout + config.request_timeout / 2;
        let mut pending = earlier;
        for endpoint in candidates {
            if pending.endpoints.insert(endpoint.clone()) {
                let (known, endpoint) = (known.get(endpoint).cloned(), endpoint.clone());
                let read = ReadOptions {
                    options: options.clone(),
                    serializable: config.serializable,
                };
                let credentials = credentials.clone();
                let asked = async move {
                    let (client, answer) = match ask(&endpoint, read, credentials, known, limit).await {
                        Ok((client, header)) => (Some(client), Ok(header)),
                        Err(error) => (None, Err(error)),
                    };
                    let probed = Probed {
                        endpoint,
                        floor,
                        answer,
                    };
                    (probed, client)
                };
                pending.answers.push(asked.boxed());
            }
        }
        Self {
            answers: Vec::new(),
            candidates: candidates.clone(),
            clients: BTreeMap::new(),
            pending,
        }
    }

    /// Waits until all have answered, or until this time has passed since the answers were `enough`. `enough` gets the
    /// answers so far, and how many are pending.
    pub async fn collect(&mut self, patience: Duration, enough: impl Fn(&[Probed], usize) -> bool) {
        let mut until = None;
        loop {
            if until.is_none() && enough(&self.answers, self.pending.endpoints.len()) {
                until = Instant::now().checked_add(patience);
            }
            tokio::select! {
                biased;
                next = self.pending.next() => match next {
                    Some((probed, client)) => self.take_in(probed, client),
                    None => return,
                },
                () = sleep_until(until) => return,
            }
        }
    }

    /// The answers; the clients of the endpoints that answered, for the next probe; and what is still asked. An endpoint
    /// that did not answer is asked over a fresh connection the next time, since the old one may be black-holed. The answer
    /// that it gave after the probe before stands for it.
    pub fn end(mut self) -> (Vec<Probed>, BTreeMap<String, Client>, Pending) {
        for probed in std::mem::take(&mut self.pending.late) {
            if self.place_of(&probed.endpoint).is_err() {
                self.take_in(probed, None);
            }
        }
        (self.answers, self.clients, self.pending)
    }

    /// An endpoint that an earlier probe asked may be no candidate any more.
    fn take_in(&mut self, probed: Probed, client: Option<Client>) {
        if !self.candidates.contains(&probed.endpoint) {
            return;
        }
        if let Some(client) = client {
            self.clients.insert(probed.endpoint.clone(), client);
        }
        let (Ok(at) | Err(at)) = self.place_of(&probed.endpoint);
        self.answers.insert(at, probed);
    }

    fn place_of(&self, endpoint: &str) -> Result<usize, usize> {
        self.answers
            .binary_search_by(|probed| probed.endpoint.as_str().cmp(endpoint))
    }
}

/// How an endpoint is read through.
struct ReadOptions {
    options: ConnectOptions,
    /// Whether the member answers by itself. See [`Config::serializable`].
    serializable: bool,
}

async fn ask(
    endpoint: &str,
    options: ReadOptions,
    credentials: Credentials,
    known: Option<Client>,
    limit: Duration,
) -> Served {
    let read = async {
        let reused = known.is_some();
        match read_through(endpoint, &options, known).await {
            // The member may have restarted since the last probe.
            Err(error) if reused && error.is_hangup() => read_through(endpoint, &options, None).await,
            answer => answer,
        }
    };
    match tokio::time::timeout(limit, read).await {
        Ok(Err(error)) if error.is_hangup() => {
            Err(alert::read(endpoint, &credentials, limit).await.unwrap_or(error))
        }
        Ok(answer) => answer,
        Err(_) => Err(Error::timed_out("range", limit)),
    }
}

/// Whether the answers that are pending cannot change which cluster most endpoints belong to: even together they would not
/// raise another one as high. Then a connection need not wait for an endpoint that hangs.
pub(super) fn is_decided(answers: &[Probed], pending: usize) -> bool {
    let serving = answers.iter().filter_map(|probed| probed.answer.as_ref().ok());
    let votes = count(serving.map(|header| header.and_then(|header| header.cluster)));
    let mut votes: Vec<usize> = votes.into_values().collect();
    votes.sort_unstable();
    let most = votes.pop().unwrap_or(0);
    most > votes.pop().unwrap_or(0) + pending
}

/// Reads through one endpoint, over this client or a new one.
async fn read_through(endpoint: &str, read: &ReadOptions, known: Option<Client>) -> Served {
    let mut options = GetOptions::new().with_count_only();
    if read.serializable {
        options = options.with_serializable();
    }
    let asked = async {
        let mut client = match known {
            Some(client) => client,
            None => Client::connect([endpoint], Some(read.options.clone())).await?,
        };
        match client.get(ANY_KEY, Some(options)).await {
            Ok(read) => Ok((client, read.header().map(Header::from))),
            // The refusal says nothing about the store. The list of members does, though not at which revision it is.
            Err(error) if denies_the_key(&error) => {
                let listed = client.member_list().await?;
                Ok((client, listed.header().map(Header::from)))
            }
            Err(error) => Err(error),
        }
    };
    asked.await.map_err(|error| Error::from_client("range", error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::error::Class;
    use crate::etcd::kv::MemberId;
    use crate::etcd::store_identity::{StoreIdentity, StoreLost};

    fn answer(cluster: Option<u64>) -> Probed {
        let header = Header {
            cluster: cluster.map(ClusterId),
            member: MemberId(1),
            revision: Revision(1),
            raft_term: 1,
        };
        probed(Ok(Some(header)))
    }

    fn probed(answer: Result<Option<Header>, Error>) -> Probed {
        Probed {
            endpoint: "endpoint".to_owned(),
            floor: Revision::ABSENT,
            answer,
        }
    }

    #[test]
    fn the_cluster_of_a_connection_is_decided_once_no_pending_answer_can_change_it() {
        let (ours, other, unnamed) = (|| answer(Some(1)), || answer(Some(2)), || answer(None));
        let failed = || {
            let error = Error::new("range", "Unavailable", Class::Unavailable, String::new());
            probed(Err(error))
        };
        for (answers, pending, decided) in [
            (vec![], 3, false),
            (vec![ours()], 2, false),
            (vec![ours(), ours()], 1, true),
            (vec![ours(), other()], 1, false),
            (vec![ours(), failed()], 1, false),
            (vec![ours(), failed()], 0, true),
            (vec![ours()], 1, false),
            (vec![ours()], 0, true),
            (vec![unnamed(), unnamed()], 1, true),
            (vec![ours(), other(), ours()], 1, false),
            (vec![ours(), other(), ours(), ours()], 1, true),
            (vec![failed(), failed()], 0, false),
        ] {
            assert_eq!(
                is_decided(&answers, pending),
                decided,
                "{answers:?}, {pending} pending"
            );
        }
    }

    /// Members that are configured by name advertise their addresses, and stop one after the other; then the names lead to a new
    /// cluster.
    #[test]
    fn urls_of_members_that_are_gone_do_not_hide_that_the_configured_ones_lead_to_another_cluster() {
        let urls = |names: &[&str]| names.iter().copied().map(str::to_owned).collect::<BTreeSet<_>>();
        let at = |endpoint: &str, answer: Probed| Probed {
            endpoint: endpoint.to_owned(),
            ..answer
        };
        let silent = || {
            let error = Error::new("range", "Unavailable", Class::Unavailable, String::new());
            probed(Err(error))
        };
        let store = StoreIdentity::of(Some(ClusterId(1)));
        let judge = |known: &BTreeSet<String>, answers: &[Probed]| {
            let candidates = answers.iter().map(|probed| probed.endpoint.clone()).collect();
            let clusters = clusters(answers).into_iter().map(|(_, cluster)| cluster);
            store.judge(judged(&candidates, known, answers), clusters)
        };
        let replaced = Err(StoreLost::Replaced {
            before: ClusterId(1),
            now: ClusterId(2),
        });
        let members = |first: Probed| {
            let moved = ["d1", "d2", "d3"].map(|name| at(name, answer(Some(2))));
            let gone = ["ip2", "ip3"].map(|url| at(url, silent()));
            moved
                .into_iter()
                .chain([at("ip1", first)])
                .chain(gone)
                .collect::<Vec<_>>()
        };
        // The last one of the old members stays in use after its end.
        let known = urls(&["d1", "d2", "d3", "ip3"]);
        assert_eq!(judge(&known, &members(silent())), replaced);
        let own = members(answer(Some(1)));
        assert_eq!(
            judge(&known, &own),
            Ok(()),
            "a member of the former cluster answers"
        );

        // Only one of those that are configured or in use is of another cluster.
        let known = urls(&["d1", "ip3"]);
        let misled = [
            at("d1", answer(Some(2))),
            at("ip1", silent()),
            at("ip3", silent()),
        ];
        assert_eq!(judge(&known, &misled), Ok(()), "one endpoint is misconfigured");
    }
}
