//! Each configured endpoint as it answers by itself, for people who look for a fault: it works where no connection to the
//! cluster can be made, and without a quorum. Nothing is decided by it.

use std::time::{Duration, Instant};

use etcd_client::{Client, ConnectOptions, GetOptions};
use futures::future::{join, join_all};

use super::alert;
use super::config::{Config, ConfigError, Credentials};
use super::error::Error;
use super::kv::MemberId;
use super::member_http;
use super::probe::{ANY_KEY, configured, denies_the_key};
use super::store_identity::{ClusterId, Header};

pub use super::member_http::{ClockSeen, HttpSeen};

/// How many linearizable reads are timed. The fastest counts: a slow one may have waited for another process.
const READS: usize = 3;

/// What one endpoint says.
#[derive(Clone, Debug)]
pub struct EndpointSeen {
    /// Its URL.
    pub endpoint: String,
    /// The answer of the member behind it.
    pub answer: Result<Answered, Error>,
    /// What it says over HTTP.
    pub http: HttpSeen,
}

/// The answer of the member behind an endpoint.
#[derive(Clone, Debug)]
pub struct Answered {
    /// Its cluster. A proxy may leave it out.
    pub cluster: Option<ClusterId>,
    /// The member; `None` where a proxy leaves it out.
    pub member: Option<MemberId>,
    /// How long the fastest of a few linearizable reads took. Without a quorum there is none, and a learner serves none.
    pub linearizable: Result<Duration, Error>,
}

/// Asks every configured endpoint, all at once, each within `limit`.
///
/// # Errors
/// If the settings are invalid: then nothing is asked.
pub async fn look(config: &Config, limit: Duration) -> Result<Vec<EndpointSeen>, ConfigError> {
    let credentials = config.load()?;
    // A request that requires a leader is refused by a member that has none; this one is answered.
    let alone = Config {
        serializable: true,
        ..config.clone()
    };
    let options = alone.connect_options(&credentials);
    let asked = configured(config).into_iter().map(async |endpoint| {
        let answer = ask(&endpoint, &options, &credentials, limit);
        let (answer, http) = join(answer, member_http::look(&endpoint, &credentials, limit)).await;
        EndpointSeen {
            endpoint,
            answer,
            http,
        }
    });
    Ok(join_all(asked).await)
}

async fn ask(
    endpoint: &str,
    options: &ConnectOptions,
    credentials: &Credentials,
    limit: Duration,
) -> Result<Answered, Error> {
    let begun = Instant::now();
    let (client, header) = match tokio::time::timeout(limit, own_answer(endpoint, options)).await {
        Ok(Ok(answered)) => answered,
        Ok(Err(error)) => {
            let error = Error::from_client("range", error);
            return match error.is_hangup() {
                true => Err(alert::read(endpoint, credentials, limit).await.unwrap_or(error)),
                false => Err(error),
            };
        }
        Err(_) => return Err(Error::timed_out("range", limit)),
    };
    Ok(Answered {
        cluster: header.and_then(|header| header.cluster),
        member: header.map(|header| header.member).filter(|member| member.0 > 0),
        linearizable: fastest_read(client, limit.saturating_sub(begun.elapsed())).await,
    })
}

/// A read that the member answers by itself, learners included.
async fn own_answer(
    endpoint: &str,
    options: &ConnectOptions,
) -> Result<(Client, Option<Header>), etcd_client::Error> {
    let mut client = Client::connect([endpoint], Some(options.clone())).await?;
    let read = GetOptions::new().with_serializable().with_count_only();
    let header = match client.get(ANY_KEY, Some(read)).await {
        Ok(read) => read.header().map(Header::from),
        // The refusal says nothing about the member. The list of members does.
        Err(error) if denies_the_key(&error) => client.member_list().await?.header().map(Header::from),
        Err(error) => return Err(error),
    };
    Ok((client, header))
}

/// How long the fastest read took, of as many as this time allows.
async fn fastest_read(mut client: Client, limit: Duration) -> Result<Duration, Error> {
    let until = Instant::now() + limit;
    let mut fastest = None;
    for _ in 0..READS {
        let sent = Instant::now();
        let read = client.get(ANY_KEY, Some(GetOptions::new().with_count_only()));
        match (tokio::time::timeout_at(until.into(), read).await, fastest) {
            (Ok(Err(error)), _) if !denies_the_key(&error) => return Err(Error::from_client("range", error)),
            (Ok(_), before) => {
                let took = sent.elapsed();
                fastest = Some(before.map_or(took, |before: Duration| before.min(took)));
            }
            (Err(_), Some(fastest)) => return Ok(fastest),
            (Err(_), None) => break,
        }
    }
    fastest.ok_or_else(|| Error::timed_out("range", limit))
}
