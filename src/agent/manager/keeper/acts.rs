//! The steps that the keeper takes by itself.

use jiff::Timestamp;
use tracing::info;

use super::{Failure, Keeper};
use crate::agent::manager::data;
use crate::agent::manager::environment::{Variables, environment};
use crate::agent::manager::files::TlsFiles;
use crate::agent::manager::plan::{Data, Noted, Stage, Step, Task};
use crate::agent::manager::record::Record;
use crate::clock;
use crate::etcd::MemberId;
use crate::failpoint;
use crate::span;

impl Keeper {
    /// Takes a step that needs no replica.
    pub(super) async fn take(&mut self, step: Step) {
        let Some(task) = step.task() else { return };
        let span = span::step("etcd", step.word(), "etcd");
        match span::within(span, self.act(step), Failure::outcome).await {
            // An etcd that has started may end at once.
            Ok(()) if task == Task::Start => _ = self.faults.remove(&task),
            Ok(()) => self.succeed(task),
            Err(why) => self.fail(task, &why),
        }
    }

    async fn act(&mut self, step: Step) -> Result<(), Failure> {
        match step {
            Step::WriteList => {
                let files = self.files.as_ref().ok_or(Failure::Overtaken)?;
                files.write_list(&self.list)?;
            }
            Step::Note(noted) => self.note(noted)?,
            Step::Start => self.start().await?,
            Step::Stop(member) => {
                info!("stopping etcd: member {member} is out of the cluster");
                self.etcd.stop().await?;
                (self.runs_since, self.is_healthy) = (None, false);
            }
            Step::Restart(number) => self.restart(number).await?,
            Step::SetAside(member) => {
                // It has ended by now, by itself or as it was asked to.
                failpoint::abort_at("manager.stopped");
                let aside = data::set_aside(&self.settings.data, member, Timestamp::now())?;
                info!("set the data of member {member} aside: {}", aside.display());
                failpoint::abort_at("manager.set-aside");
            }
            Step::Forget(member) => {
                // An etcd on the data of another member goes on with the certificate.
                if let Some(files) = &self.files
                    && !self.has_data_of_another(member)
                {
                    files.forget()?;
                }
                self.notes.remove()?;
                (self.record, self.answered) = (None, None);
                self.faults.clear();
                self.backoff.succeeded(&Task::Start);
            }
            Step::Join | Step::Certify(_) | Step::Rest(_) => {}
        }
        Ok(())
    }

    /// Whether a person has put the data of another member in the place of this one's.
    pub(super) fn has_data_of_another(&self, member: MemberId) -> bool {
        matches!(data::look(&self.settings.data), Data::Of(other) if other.id != member)
    }

    pub(super) fn note(&mut self, noted: Noted) -> Result<(), Failure> {
        let record = self.recorded(noted).ok_or(Failure::Overtaken)?;
        if noted.stage == Stage::Started {
            // A unit that systemd starts again must not start on an empty directory from now on. Before the note: what is noted is not
            // done again.
            self.etcd.configure(&self.variables(&record))?;
        }
        failpoint::abort_at("manager.before-note");
        self.notes.save(&record)?;
        failpoint::abort_at("manager.noted");
        info!("noted {}: {}", noted.own, word(noted.stage));
        self.record = Some(record);
        if noted.stage == Stage::Ended {
            // What was asked for in the name of this member is void: its certificate is revoked by now.
            self.calls.clear();
            self.under_way.clear();
            self.answered = None;
        }
        Ok(())
    }

    /// The record with this note: the former one, or that of the member that a replica has named.
    fn recorded(&self, noted: Noted) -> Option<Record> {
        if let Some(record) = self
            .record
            .as_ref()
            .filter(|record| record.noted.own == noted.own)
        {
            return Some(Record {
                noted,
                ..record.clone()
            });
        }
        let (startable, _) = self.answered.as_ref()?;
        (startable.own == noted.own).then(|| Record {
            noted,
            name: startable.name.clone(),
            initial_cluster: startable.initial_cluster.clone(),
            peer_urls: self.settings.peer_urls.clone(),
            client_urls: self.settings.client_urls.clone(),
            restarted: 0,
        })
    }

    async fn start(&mut self) -> Result<(), Failure> {
        // The members that it starts with for the first time are those of the last answer.
        if let (Some(record), Some((startable, _))) = (&mut self.record, &self.answered)
            && startable.own == record.noted.own
            && record.noted.stage == Stage::New
        {
            record.initial_cluster.clone_from(&startable.initial_cluster);
            record.name.clone_from(&startable.name);
            self.notes.save(record)?;
        }
        let record = self.record.as_ref().ok_or(Failure::Overtaken)?;
        let variables = self.variables(record);
        failpoint::abort_at("manager.before-start");
        self.etcd.start(&variables).await?;
        failpoint::abort_at("manager.started");
        self.answered = None;
        self.runs_since = Some(clock::now());
        self.wiring.metrics.agent_etcd_starts.inc();
        info!("started etcd");
        Ok(())
    }

    /// Has etcd trust what the leader says, and stops it: it starts again as it does whenever it does not run. The number is noted last, so
    /// that an agent that is killed in between does it all again.
    async fn restart(&mut self, number: u64) -> Result<(), Failure> {
        let (Some(files), Some((permitted, authorities)), Some(record)) =
            (&self.files, &self.restart, &self.record)
        else {
            return Err(Failure::Overtaken);
        };
        if *permitted != number {
            return Err(Failure::Overtaken);
        }
        files.trust(authorities, Timestamp::now())?;
        let record = Record {
            restarted: number,
            ..record.clone()
        };
        failpoint::abort_at("manager.restart-trusts");
        info!("stopping etcd: it starts again, to trust the new authority alone");
        self.etcd.stop().await?;
        (self.runs_since, self.is_healthy) = (None, false);
        failpoint::abort_at("manager.restart-stopped");
        self.notes.save(&record)?;
        self.record = Some(record);
        failpoint::abort_at("manager.restart-noted");
        Ok(())
    }

    pub(super) fn variables(&self, record: &Record) -> Variables {
        let paths = self.files.as_ref().map(TlsFiles::paths);
        environment(record, &self.settings, paths.as_ref())
    }
}

fn word(stage: Stage) -> &'static str {
    match stage {
        Stage::New => "etcd starts on an empty directory",
        Stage::Started => "it has started",
        Stage::Ended => "it is out of the cluster for good",
    }
}
