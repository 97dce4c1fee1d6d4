//! What is asked again and again during a run: whether replicas are ready, which members etcd has, and whether the harness itself runs.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::GetOptions;
use futures::future::{join_all, select_ok};
use quorate_dev::http;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::history::{Listed, Members, Poll, What};
use crate::recorder::Recorder;
use crate::watch::client;

/// Between two polls of a replica.
const READINESS: Duration = Duration::from_millis(150);

/// Between two lists of the members.
const MEMBERS: Duration = Duration::from_secs(2);

/// How late, in milliseconds, the harness may be with what is due at once.
const STALL: u64 = 1_000;

/// How long a replica or a member may take to answer.
const LIMIT: Duration = Duration::from_secs(2);

/// Polls these replicas, each by its name and port, and etcd, until the set is dropped.
pub fn start(replicas: Vec<(String, u16)>, endpoints: Vec<String>, recorder: &Arc<Recorder>) -> JoinSet<()> {
    let mut polls = JoinSet::new();
    for (name, port) in replicas {
        let recorder = recorder.clone();
        polls.spawn(async move {
            loop {
                poll(&name, port, &recorder).await;
                sleep(READINESS).await;
            }
        });
    }
    polls.spawn(watch_itself(recorder.clone()));
    let recorder = recorder.clone();
    polls.spawn(async move {
        loop {
            let (epoch, at) = (recorder.epoch(), recorder.now());
            if let Ok(Ok(members)) = timeout(3 * LIMIT, members(&endpoints, epoch)).await
                && recorder.epoch() == epoch
            {
                recorder.record(at, What::Members(members));
            }
            sleep(MEMBERS).await;
        }
    });
    polls
}

/// Records when nothing of the harness ran for a while.
async fn watch_itself(recorder: Arc<Recorder>) {
    loop {
        let begun = recorder.now();
        sleep(READINESS).await;
        let now = recorder.now();
        if begun.plus_millis(STALL) < now {
            recorder.record(begun, What::Stalled { until: now });
        }
    }
}

async fn poll(name: &str, port: u16, recorder: &Recorder) {
    let (at, of) = (recorder.now(), recorder.current(name));
    let answer = timeout(LIMIT, http::get(port, "/readyz")).await;
    // Another start of it may have answered.
    if let Ok(Ok(page)) = answer
        && recorder.current(name) == of
    {
        let poll = Poll {
            of,
            answered: recorder.now(),
            ready: page.status == 200,
        };
        recorder.record(at, What::Poll(poll));
    }
}

/// The list as the first member has it that answers, after a linearizable read from it.
pub(crate) async fn members(endpoints: &[String], epoch: u32) -> Result<Members, etcd_client::Error> {
    let listing = endpoints.iter().map(|endpoint| {
        let listing = async move {
            let mut client = client(endpoint).await?;
            client.get("/", None).await?;
            client.member_list().await
        };
        Box::pin(listing)
    });
    let (list, _) = select_ok(listing).await?;
    let cluster = list.header().map_or(0, |header| header.cluster_id());
    let answering = list.members().iter();
    let answering = answering.map(|member| answers(member.client_urls(), member.is_learner()));
    let answering = join_all(answering).await;
    let listed = list.members().iter().zip(answering);
    let listed = listed.map(|(member, healthy)| Listed {
        id: member.id(),
        name: member.name().to_owned(),
        learner: member.is_learner(),
        healthy,
    });
    Ok(Members {
        epoch,
        cluster,
        members: listed.collect(),
    })
}

/// Whether a member answers a read: of a learner one that it can answer alone.
async fn answers(urls: &[String], learner: bool) -> bool {
    let Some(url) = urls.first() else {
        return false;
    };
    let mut options = GetOptions::new().with_count_only();
    if learner {
        options = options.with_serializable();
    }
    let read = async { client(url).await?.get("/", Some(options)).await };
    matches!(timeout(LIMIT, read).await, Ok(Ok(_)))
}
