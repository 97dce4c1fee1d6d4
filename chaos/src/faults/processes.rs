//! Starts, ends and suspends processes, and starts again what ends by itself, as a Deployment and systemd would.

use std::time::Duration;

use quorate_dev::clock;
use quorate_dev::csi_plugin::faults::{Fault as PluginFault, Happening};
use quorate_dev::csi_plugin::order::Order;
use tokio::time::{Instant, sleep, sleep_until};

use super::Faults;
use crate::Error;
use crate::history::Signal;
use crate::target::Target;
use crate::world::plugin_role;

/// Between two looks at processes that may have ended.
const LOOK: Duration = Duration::from_millis(100);

/// Between the end of a process and its next start.
const PAUSE: Duration = Duration::from_secs(1);

impl Faults {
    /// Starts again what ends by itself, until this instant.
    pub async fn keep_up_until(&mut self, until: Instant) -> Result<(), Error> {
        loop {
            self.keep_up().await?;
            let next = Instant::now() + LOOK;
            if next >= until {
                sleep_until(until).await;
                return Ok(());
            }
            sleep(LOOK).await;
        }
    }

    async fn keep_up(&mut self) -> Result<(), Error> {
        for target in self.world.targets() {
            let name = self.world.name_of(target);
            if self.killed.has(&target) {
                self.down.remove(&target);
                continue;
            }
            let Some(program) = self.world.program_of(target) else {
                continue;
            };
            match self.down.get(&target) {
                Some(due) if Instant::now() >= *due => {
                    self.down.remove(&target);
                    self.launch(target)?;
                }
                None if program.has_ended() => {
                    let code = program
                        .process()
                        .and_then(|it| it.status())
                        .and_then(|it| it.code());
                    self.world.recorder.exited(&name, code);
                    self.down.insert(target, Instant::now() + PAUSE);
                    self.install_again(target)?;
                }
                _ => {}
            }
        }
        self.keep_plugin_up().await
    }

    /// The machine of a node that was removed is installed again: its agent joins as a node of the same name.
    fn install_again(&mut self, target: Target) -> Result<(), Error> {
        let Target::Agent(index) = target else {
            return Ok(());
        };
        let agent = &mut self.world.agents[index];
        match agent.was_removed() {
            true => Ok(agent.set_state_aside()?),
            false => Ok(()),
        }
    }

    async fn keep_plugin_up(&mut self) -> Result<(), Error> {
        let dies = |(_, fault): &(u32, PluginFault)| {
            matches!(fault.happens, Happening::Crashes | Happening::CrashesAfter)
        };
        let plugin = &mut self.world.plugin;
        let status = plugin.process().and_then(|process| process.status());
        match (status, self.plugin_down) {
            (Some(status), None) => {
                self.world.recorder.exited("plugin", status.code());
                self.plugin_down = Some(Instant::now() + PAUSE);
            }
            (_, Some(due)) if Instant::now() >= due && !self.plugin.iter().any(dies) => {
                self.plugin_down = None;
                self.world.recorder.started("plugin", plugin_role());
                plugin.launch().await?;
                self.order_plugin().await;
            }
            _ => {}
        }
        Ok(())
    }

    /// Starts a process, unless it runs.
    pub(super) fn launch(&mut self, target: Target) -> Result<(), Error> {
        let (name, role) = (self.world.name_of(target), self.world.role_of(target));
        let recorder = self.world.recorder.clone();
        if let Some(program) = self.world.program_of(target)
            && (program.pid().is_none() || program.has_ended())
        {
            recorder.started(&name, role);
            program.launch()?;
            recorder.runs_as(&name, program.pid());
            if self.paused.has(&target) {
                program.pause();
                recorder.signalled(&name, Signal::Stop);
            }
        }
        Ok(())
    }

    /// Kills a process.
    pub(super) async fn kill(&mut self, target: Target) -> Result<(), Error> {
        let name = self.world.name_of(target);
        let recorder = self.world.recorder.clone();
        if let Some(program) = self.world.program_of(target)
            && program.pid().is_some()
        {
            let ended = program.has_ended();
            if !ended {
                recorder.signalled(&name, Signal::Kill);
            }
            let status = program.kill().await?;
            // What has ended by itself may be recorded already.
            if !self.down.contains_key(&target) {
                recorder.exited(&name, status.and_then(|status| status.code()));
            }
        }
        Ok(())
    }

    /// Stops a process in order.
    async fn stop(&mut self, target: Target) -> Result<(), Error> {
        let name = self.world.name_of(target);
        let recorder = self.world.recorder.clone();
        if let Some(program) = self.world.program_of(target)
            && program.pid().is_some()
        {
            recorder.signalled(&name, Signal::Terminate);
            let status = program.stop().await?;
            if !self.down.contains_key(&target) {
                recorder.exited(&name, status.and_then(|status| status.code()));
            }
        }
        self.down.remove(&target);
        Ok(())
    }

    pub(super) fn pause(&mut self, target: Target) {
        self.paused.more(target);
        let name = self.world.name_of(target);
        if let Some(program) = self.world.program_of(target) {
            program.pause();
            self.world.recorder.signalled(&name, Signal::Stop);
        }
    }

    pub(super) fn resume(&mut self, target: Target) {
        if self.paused.less(&target) {
            let name = self.world.name_of(target);
            if let Some(program) = self.world.program_of(target) {
                program.resume();
                self.world.recorder.signalled(&name, Signal::Continue);
            }
        }
    }

    /// Gives the plugin the faults that are in force. One that is down gets them with its next start.
    pub(super) async fn order_plugin(&self) {
        let clear = self.world.plugin.send(&Order::Clear).await;
        for (_, fault) in &self.plugin {
            if clear.is_ok() {
                let _ = self.world.plugin.send(&Order::Fault(fault.clone())).await;
            }
        }
    }

    /// Replaces a replica by one with another bundle or clock, in order.
    pub(super) async fn replace(
        &mut self,
        replica: usize,
        release: Option<usize>,
        clock: Option<i64>,
    ) -> Result<(), Error> {
        let target = Target::Replica(replica);
        self.stop(target).await?;
        if let Some(release) = release {
            let flag = format!("--bundle={}", self.world.bundle(release).display());
            self.world.replicas[replica].replica.replace_flag(&flag);
            self.world.replicas[replica].release = release;
        }
        let mut variables = self.variables.clone();
        if let Some(seconds) = clock {
            let wrong = clock::off_by(&format!("{seconds:+}s"))?;
            variables.extend(wrong.map(|(name, value)| (name.to_owned(), value)));
        }
        self.world.replicas[replica].replica.set_variables(variables);
        match self.killed.has(&target) {
            true => Ok(()),
            false => self.launch(target),
        }
    }

    /// All replicas run this release from now on, with the right clock.
    pub async fn roll_to(&mut self, release: usize) -> Result<(), Error> {
        for replica in 0..self.world.replicas.len() {
            if self.world.replicas[replica].release != release {
                self.replace(replica, Some(release), None).await?;
                self.keep_up_until(Instant::now() + PAUSE).await?;
            }
        }
        Ok(())
    }
}
