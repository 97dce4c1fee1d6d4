//! A program that is started, stopped and started again.

use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use super::Error;
use super::process::{Program, Supervised};

/// What every server here has: its program, and its process while it runs. Dropping it kills the process;
/// [`stop`](Self::stop) is the orderly way.
#[derive(Debug)]
pub struct Restartable {
    program: Program,
    stop_limit: Duration,
    process: Option<Supervised>,
}

impl Restartable {
    /// Nothing runs yet. `stop_limit` is how long it may take to stop before it is killed.
    pub fn new(program: Program, stop_limit: Duration) -> Self {
        Self {
            program,
            stop_limit,
            process: None,
        }
    }

    /// From its next start on it gets this flag, too.
    pub(super) fn add_flag(&mut self, flag: String) {
        self.program.args.push(flag.into());
    }

    /// Starts its process and does not wait for it. Nothing if it runs.
    pub fn launch(&mut self) -> Result<(), Error> {
        let running = |process: &mut Supervised| process.status().is_none();
        if !self.process.as_mut().is_some_and(running) {
            self.process = Some(self.program.start()?);
        }
        Ok(())
    }

    /// [`Supervised::wait_until`] of its process, which must have been started.
    pub(super) async fn wait_until<F>(&mut self, limit: Duration, ask: impl FnMut() -> F) -> Result<(), Error>
    where
        F: Future<Output = Result<(), String>>,
    {
        match &mut self.process {
            Some(process) => process.wait_until(limit, ask).await,
            None => Err(Error::NotStarted {
                name: self.program.name.clone(),
            }),
        }
    }

    /// Its process, while it was not stopped or killed.
    pub fn process(&mut self) -> Option<&mut Supervised> {
        self.process.as_mut()
    }

    /// Whether its process ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.process
            .as_mut()
            .is_some_and(|process| process.status().is_some())
    }

    /// Its process id, while it was not stopped or killed.
    pub fn pid(&self) -> Option<i32> {
        self.process.as_ref().map(Supervised::pid)
    }

    /// Where its output goes.
    pub fn log_file(&self) -> &Path {
        &self.program.log
    }

    /// Stops it in order, or kills it if it does not obey. None if it does not run.
    pub async fn stop(&mut self) -> Result<Option<ExitStatus>, Error> {
        match self.process.take() {
            Some(mut process) => process.stop(self.stop_limit).await.map(Some),
            None => Ok(None),
        }
    }

    /// Kills it (SIGKILL). None if it does not run.
    pub async fn kill(&mut self) -> Result<Option<ExitStatus>, Error> {
        match self.process.take() {
            Some(mut process) => process.kill().await.map(Some),
            None => Ok(None),
        }
    }

    /// Stops its execution (SIGSTOP): its connections stay, nothing answers.
    pub fn pause(&mut self) {
        if let Some(process) = &mut self.process {
            process.pause();
        }
    }

    /// Goes on after [`pause`](Self::pause).
    pub fn resume(&mut self) {
        if let Some(process) = &mut self.process {
            process.resume();
        }
    }
}
