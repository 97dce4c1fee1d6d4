//! Finds out which endpoints can serve. Each is asked over a connection of its own.

use std::collections::{BTreeMap, BTreeSet};

use etcd_client::{Client, ConnectOptions, GetOptions};
use futures::future::join_all;

use super::alert;
use super::config::{Config, Credentials};
use super::error::Error;
use super::store_identity::{ClusterId, Header};

/// The key of reads whose result does not matter; it need not exist. `etcdctl endpoint health` reads the same key. A user
/// who may not read it is refused only after the read went through raft, so that the refusal proves as much.
pub(super) const ANY_KEY: &str = "health";

/// Whether the read went through raft and etcd only withholds its result from this user.
pub(super) fn denies_the_key(error: &etcd_client::Error) -> bool {
    matches!(error, etcd_client::Error::GRpcStatus(status) if status.code() == tonic::Code::PermissionDenied)
}

/// An endpoint, and whether the member behind it can serve, with what it says about its store, if it says that.
pub(super) type Answer = (String, Result<Option<Header>, Error>);

/// The configured endpoints, as URLs with a scheme.
pub(super) fn configured(config: &Config) -> BTreeSet<String> {
    config
        .endpoints
        .iter()
        .filter_map(|endpoint| config.normalize(endpoint))
        .collect()
}

/// The endpoints that say what store they serve.
pub(super) fn headers(answers: &[Answer]) -> Vec<(String, Header)> {
    let said = |(endpoint, answer): &Answer| Some((endpoint.clone(), (*answer.as_ref().ok()?)?));
    answers.iter().filter_map(said).collect()
}

/// The cluster of each endpoint that names it.
pub(super) fn clusters(answers: &[Answer]) -> Vec<(String, ClusterId)> {
    let named = |(endpoint, header): (String, Header)| Some((endpoint, header.cluster?));
    headers(answers).into_iter().filter_map(named).collect()
}

/// The endpoints that can serve this cluster. Those that do not name their cluster are among them.
pub(super) fn answering(answers: &[Answer], cluster: Option<ClusterId>) -> Vec<String> {
    let serves = |header: &Option<Header>| match header.and_then(|header| header.cluster) {
        Some(served) => Some(served) == cluster,
        None => true,
    };
    let serving = answers
        .iter()
        .filter(|(_, answer)| answer.as_ref().is_ok_and(serves));
    serving.map(|(endpoint, _)| endpoint.clone()).collect()
}

/// Asks every candidate for a linearizable read, all at once, each within the connect limit and half the request limit. A
/// learner refuses such a read, and a member that is cut off from its cluster does not answer it. The status would show
/// the same, but etcd can panic when it answers a status request while it is being removed, and any endpoint may be
/// probed at any time.
///
/// `clients` holds the client of each endpoint that answered the probe before. Afterwards it holds those that answered
/// this one: an endpoint that did not is asked over a fresh connection next time, since the old one may be black-holed.
pub(super) async fn probe(
    config: &Config,
    credentials: &Credentials,
    clients: &mut BTreeMap<String, Client>,
    candidates: BTreeSet<String>,
) -> Vec<Answer> {
    let options = &config.connect_options(credentials);
    let limit = config.connect_timeout + config.request_timeout / 2;
    let asked = candidates.into_iter().map(|endpoint| {
        let known = clients.get(&endpoint).cloned();
        async move {
            let ask = async {
                let reused = known.is_some();
                match read_through(&endpoint, options, known).await {
                    // The member may have restarted since the last probe.
                    Err(error) if reused && error.is_hangup() => read_through(&endpoint, options, None).await,
                    answer => answer,
                }
            };
            let answer = match tokio::time::timeout(limit, ask).await {
                Ok(Err(error)) if error.is_hangup() => {
                    Err(alert::read(&endpoint, credentials, limit).await.unwrap_or(error))
                }
                Ok(answer) => answer,
                Err(_) => Err(Error::timed_out("range", limit)),
            };
            (endpoint, answer)
        }
    });
    let answers = join_all(asked).await;
    clients.clear();
    answers
        .into_iter()
        .map(|(endpoint, answer)| {
            let served = answer.map(|(client, header)| {
                clients.insert(endpoint.clone(), client);
                header
            });
            (endpoint, served)
        })
        .collect()
}

/// Reads through one endpoint, over this client or a new one.
async fn read_through(
    endpoint: &str,
    options: &ConnectOptions,
    known: Option<Client>,
) -> Result<(Client, Option<Header>), Error> {
    let read = async {
        let mut client = match known {
            Some(client) => client,
            None => Client::connect([endpoint], Some(options.clone())).await?,
        };
        match client
            .get(ANY_KEY, Some(GetOptions::new().with_count_only()))
            .await
        {
            Ok(read) => Ok((client, read.header().map(Header::from))),
            // The refusal says nothing about the store. The list of members does, though not at which revision it is.
            Err(error) if denies_the_key(&error) => {
                let listed = client.member_list().await?;
                Ok((client, listed.header().map(Header::from)))
            }
            Err(error) => Err(error),
        }
    };
    read.await.map_err(|error| Error::from_client("range", error))
}
