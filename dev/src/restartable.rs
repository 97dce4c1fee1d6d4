//! A program that can be restarted.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use super::Error;
use super::process::{Program, Supervised};

/// A program, and its process while it runs. Dropping it kills the process; [`stop`](Self::stop) stops it in order.
#[derive(Debug)]
pub struct Restartable {
    program: Program,
    stop_limit: Duration,
    process: Option<Supervised>,
}

impl Restartable {
    /// A program that does not run yet. `stop_limit` is the time to stop before it is killed.
    pub fn new(program: Program, stop_limit: Duration) -> Self {
        Self {
            program,
            stop_limit,
            process: None,
        }
    }

    /// Adds a flag, from its next start on.
    pub(super) fn add_flag(&mut self, flag: String) {
        self.program.args.push(flag.into());
    }

    /// The value of its flag with this beginning (`--name=`).
    pub fn flag(&self, name: &str) -> Option<String> {
        let args = self.program.args.iter();
        let mut texts = args.map(|arg| arg.to_string_lossy());
        texts.find_map(|text| text.strip_prefix(name).map(str::to_owned))
    }

    /// From its next start on, this flag (`--name=value`) takes the place of those of its name.
    pub fn replace_flag(&mut self, flag: &str) {
        let name = flag.split_inclusive('=').next().unwrap_or(flag);
        self.program
            .args
            .retain(|arg| !arg.to_string_lossy().starts_with(name));
        self.add_flag(flag.to_owned());
    }

    /// From its next start on, these variables are added to its environment, and no others.
    pub fn set_variables(&mut self, variables: Vec<(String, OsString)>) {
        self.program.env = variables;
    }

    /// Runs the program of this file from its next start on, such as that of another release.
    pub fn replace_program(&mut self, file: &Path) {
        file.clone_into(&mut self.program.path);
    }

    /// Starts its process, unless it runs. Does not wait until it serves.
    pub fn launch(&mut self) -> Result<(), Error> {
        let running = |process: &mut Supervised| process.status().is_none();
        if !self.process.as_mut().is_some_and(running) {
            self.process = Some(self.program.start()?);
        }
        Ok(())
    }

    /// Calls [`Supervised::wait_until`] of its process, which must have been started.
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

    /// Its process, unless it was stopped or killed.
    pub fn process(&mut self) -> Option<&mut Supervised> {
        self.process.as_mut()
    }

    /// Whether its process ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.process
            .as_mut()
            .is_some_and(|process| process.status().is_some())
    }

    /// Its process id, unless it was stopped or killed.
    pub fn pid(&self) -> Option<i32> {
        self.process.as_ref().map(Supervised::pid)
    }

    /// The file of its output.
    pub fn log_file(&self) -> &Path {
        &self.program.log
    }

    /// Stops it, and kills it if it exceeds its limit. None if it does not run.
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

    /// Suspends it (SIGSTOP): its connections stay open and nothing answers.
    pub fn pause(&mut self) {
        if let Some(process) = &mut self.process {
            process.pause();
        }
    }

    /// Resumes it after [`pause`](Self::pause).
    pub fn resume(&mut self) {
        if let Some(process) = &mut self.process {
            process.resume();
        }
    }
}
