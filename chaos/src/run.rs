//! One run: a cluster, faults, a workload, calm, and the verdict.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quorate::store::keys::BadPrefix;
use quorate_dev::workspace::Programs;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::check::{self, Judged, Violation};
use crate::faults::Faults;
use crate::history::{self, History, Settings, What};
use crate::recorder::Recorder;
use crate::schedule::{Choice, Kind, Schedule, schedule};
use crate::settle::{Wanted, unsettled};
use crate::workload::{self, Deeds, unreadable, work};
use crate::world::{LEASE_TTL, Plan, SIZES, World, audit_log, releases};
use crate::{Error, logs, operator, polls};

/// Until everything is settled. Leases of killed processes end, backoffs of minutes are over, learners catch up.
const SETTLE_LIMIT: Duration = Duration::from_secs(300);

/// Between two looks at what is not settled.
const LOOK: Duration = Duration::from_secs(1);

/// After a start, until what was written because of it is over.
const STEADY: Duration = Duration::from_secs(15);

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// From which everything follows.
    pub seed: u64,
    /// How many faults.
    pub faults: u32,
    /// The names of the kinds of faults; empty: all.
    pub only: Vec<String>,
    /// How many times as long it takes from one fault to the next.
    pub pace: u64,
    /// The names of what the workload does; empty: everything.
    pub deeds: Vec<&'static str>,
    /// How long a cluster without faults is watched.
    pub minutes: u64,
    /// Where all files go.
    pub directory: PathBuf,
    /// What it runs.
    pub programs: Programs,
    /// Whether there is an apiserver.
    pub kubernetes: bool,
    /// The guard that is taken out of the replicas; empty: none.
    pub mutation: String,
}

/// How a run ended.
#[derive(Debug)]
pub struct Verdict {
    /// Everything that happened.
    pub history: History,
    /// What is wrong with it.
    pub violations: Vec<Violation>,
    /// How much there was to judge.
    pub judged: Judged,
    /// What was written to a cluster that was left alone.
    pub written: Vec<String>,
}

impl Verdict {
    /// Whether nothing is wrong.
    pub fn passes(&self) -> bool {
        self.violations.is_empty() && self.written.is_empty()
    }
}

/// The history of a run, in its directory.
pub fn history_file(directory: &Path) -> PathBuf {
    directory.join("history.jsonl")
}

/// The variable by which a replica that was built for it runs without a guard.
const MUTATION: &str = "QUORATE_MUTATION";

/// Carries out a run.
///
/// # Errors
/// It says nothing about the product: a server did not start, for instance.
pub async fn run(options: &Options) -> Result<Verdict, Error> {
    let choice = Choice {
        faults: options.faults,
        only: &options.only,
        pace: options.pace,
    };
    let schedule = schedule(options.seed, SIZES, choice);
    let file = options.directory.join("schedule.txt");
    let lines: Vec<_> = schedule.faults.iter().map(ToString::to_string).collect();
    std::fs::write(&file, lines.join("\n")).map_err(Error::write(&file))?;
    let file = history_file(&options.directory);
    let recorder = Recorder::begin(&file, &describe(options)).map_err(Error::write(&file))?;
    carry_out(options, &schedule, Arc::new(recorder)).await?;
    let reading = std::fs::File::open(&file).map_err(Error::read(&file))?;
    let history = History::read(std::io::BufReader::new(reading))?;
    let unreadable = |error: BadPrefix| Error::Harness(error.to_string());
    let violations = check::check(&history).map_err(unreadable)?;
    let judged = check::judged(&history).map_err(unreadable)?;
    let written = match options.faults {
        0 => written_in_calm(&history),
        _ => Vec::new(),
    };
    Ok(Verdict {
        violations,
        judged,
        history,
        written,
    })
}

fn describe(options: &Options) -> history::Run {
    history::Run {
        seed: options.seed,
        faults: options.faults,
        prefix: "/quorate".to_owned(),
        releases: releases(),
        settings: Settings {
            lease_ttl: millis(LEASE_TTL),
            slack: 500,
            watch_slack: 5_000,
            csi_timeout: 15_000,
        },
        mutation: options.mutation.clone(),
    }
}

/// Runs everything and stops it again.
async fn carry_out(options: &Options, schedule: &Schedule, recorder: Arc<Recorder>) -> Result<(), Error> {
    let mutation = (!options.mutation.is_empty()).then(|| (MUTATION.to_owned(), options.mutation.clone()));
    let plan = Plan {
        programs: options.programs.clone(),
        kubernetes: options.kubernetes,
        managers: !schedule.restores,
        release: schedule.first_release,
        variables: mutation.into_iter().collect(),
    };
    let variables = plan
        .variables
        .iter()
        .map(|(name, value)| (name.clone(), OsString::from(value)));
    let variables = variables.collect();
    eprintln!("chaos: starting the cluster in {}", options.directory.display());
    let world = World::start(&options.directory, &plan, recorder.clone()).await?;
    let ports = world.replicas.iter();
    let replicas: Vec<_> = ports
        .map(|site| (site.replica.node_id.clone(), site.replica.port))
        .collect();
    let mut polls = polls::start(replicas, world.etcd.endpoints(), &recorder);
    let mut faults = Faults::new(world, variables);
    let unsettled = match options.faults {
        0 => {
            let still = Duration::from_secs(60 * options.minutes);
            quiet(&mut faults, schedule, still).await?
        }
        _ => storm(&mut faults, schedule, &options.deeds).await?,
    };
    polls.shutdown().await;
    let backend_volumes = faults.world.plugin.backend().ids().unwrap_or_default();
    recorder.record_now(What::End {
        unsettled,
        backend_volumes: backend_volumes.into_iter().collect(),
    });
    let stopped = faults.world.stop().await?;
    for call in stopped.plugin.calls().map_err(Error::read(&options.directory))? {
        let event = logs::csi_event(&call, operator::DRIVER, &recorder);
        recorder.record(event.at, event.what);
    }
    logs::record_audit(&audit_log(&options.directory), &recorder)
}

/// The faults and the workload, then calm.
async fn storm(faults: &mut Faults, schedule: &Schedule, deeds: &[&str]) -> Result<Vec<String>, Error> {
    let (calm, operator) = (CancellationToken::new(), faults.world.operator.clone());
    let managers = !schedule.restores;
    workload::prepare(&operator, managers).await?;
    let deeds = Deeds::new(schedule.workload_seed, managers, deeds);
    let mut working = JoinSet::new();
    let until = calm.clone();
    working.spawn(async move { work(&operator, deeds, &until).await });
    faults.carry_out(schedule).await?;
    calm.cancel();
    if let Some(worked) = working.join_next().await {
        worked.map_err(|error| Error::Harness(error.to_string()))??;
    }
    faults.lift().await;
    faults.roll_to(schedule.last_release).await?;
    faults.world.recorder.record_now(What::Calm);
    eprintln!("chaos: calm; waiting until everything is settled");
    let operator = faults.world.operator.clone();
    let endpoints = faults.world.etcd.endpoints();
    let mut finishing = JoinSet::new();
    finishing.spawn(async move {
        unreadable::write(&endpoints).await;
        workload::finish(&operator, managers).await?;
        unreadable::outlast(&endpoints).await;
        workload::clear(&operator).await
    });
    let finished = loop {
        if let Some(finished) = finishing.try_join_next() {
            break finished;
        }
        faults.keep_up_until(Instant::now() + LOOK).await?;
    };
    if let Err(error) = finished.map_err(|error| Error::Harness(error.to_string()))? {
        return Ok(vec![format!("what was asked in the end is refused: {error}")]);
    }
    let wanted = wanted(&faults.world, schedule.last_release, restores(schedule));
    settle(faults, &wanted).await
}

/// Nothing is done, once everything is as it should be. What is written all the same is in the history after the calm.
async fn quiet(faults: &mut Faults, schedule: &Schedule, still: Duration) -> Result<Vec<String>, Error> {
    let wanted = wanted(&faults.world, schedule.first_release, false);
    let left = settle(faults, &wanted).await?;
    if !left.is_empty() {
        return Ok(left);
    }
    faults.keep_up_until(Instant::now() + STEADY).await?;
    faults.world.recorder.record_now(What::Calm);
    eprintln!("chaos: nothing is done for {} s", still.as_secs());
    faults.keep_up_until(Instant::now() + still).await?;
    Ok(Vec::new())
}

/// The keys of Quorate that were written after the calm, though nothing was done; a sentence each. What replicas write when they are
/// stopped in the end does not count.
fn written_in_calm(history: &History) -> Vec<String> {
    let events = history.events.iter();
    let calm = events.skip_while(|event| !matches!(event.what, What::Calm));
    let calm = calm.take_while(|event| !matches!(event.what, What::End { .. }));
    let written = calm.filter_map(|event| match &event.what {
        What::Changed(changed) => Some(format!("{} was written at {}", changed.key, event.at)),
        _ => None,
    });
    written.collect()
}

fn wanted(world: &World, release: usize, restored: bool) -> Wanted {
    let replicas = world.replicas.iter().map(|site| &site.replica);
    let replicas: Vec<_> = replicas
        .map(|replica| (replica.node_id.clone(), replica.port))
        .collect();
    let agents = world.agents.iter().map(|agent| (agent.name.clone(), agent.port));
    let pages = replicas.iter().cloned().chain(agents);
    let members = world.etcd.members.iter().map(|member| member.name.clone());
    Wanted {
        release: world.apiserver.is_some().then(|| world.releases[release].clone()),
        ready: pages.map(|(name, port)| (name, port, "/readyz")).collect(),
        replicas,
        restored,
        members: members.collect(),
    }
}

fn restores(schedule: &Schedule) -> bool {
    let mut kinds = schedule.faults.iter().map(|fault| &fault.kind);
    kinds.any(|kind| matches!(kind, Kind::Restore { .. }))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Waits until everything is as wanted; what is not after the limit.
async fn settle(faults: &mut Faults, wanted: &Wanted) -> Result<Vec<String>, Error> {
    let begun = Instant::now();
    let backend = faults.world.plugin.backend();
    loop {
        let left = unsettled(&faults.world.etcd.endpoints(), &backend, wanted).await;
        if left.is_empty() {
            eprintln!("chaos: settled after {} s", begun.elapsed().as_secs());
            return Ok(left);
        }
        if begun.elapsed() > SETTLE_LIMIT {
            return Ok(left);
        }
        faults.keep_up_until(Instant::now() + LOOK).await?;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::history::{At, Change, Changed, Event, Revision};

    #[test]
    fn a_key_that_is_written_after_the_calm_is_found() {
        let changed = |at, key: &str| Event {
            at: At::millis(at),
            what: What::Changed(Changed {
                cluster: 1,
                revision: Revision {
                    epoch: 0,
                    revision: 7,
                },
                key: key.into(),
                change: Change::Deleted,
            }),
        };
        let event = |at, what| Event {
            at: At::millis(at),
            what,
        };
        let end = What::End {
            unsettled: Vec::new(),
            backend_volumes: Vec::new(),
        };
        let history = History {
            run: described(),
            events: vec![
                changed(1, "/quorate/a"),
                event(2, What::Calm),
                changed(3, "/quorate/b"),
                event(4, end),
                changed(5, "/quorate/c"),
            ],
        };
        assert_eq!(
            written_in_calm(&history),
            ["/quorate/b was written at 0.003000 s"]
        );
    }

    /// The first line of a history.
    pub(crate) fn described() -> history::Run {
        describe(&options())
    }

    pub(crate) fn options() -> Options {
        Options {
            seed: 1,
            faults: 0,
            only: Vec::new(),
            pace: 1,
            deeds: Vec::new(),
            minutes: 1,
            directory: PathBuf::new(),
            programs: Programs {
                quorate: PathBuf::new(),
                quorate_dev: PathBuf::new(),
            },
            kubernetes: false,
            mutation: String::new(),
        }
    }
}
