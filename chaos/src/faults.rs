//! Begins and ends faults as the schedule says, and starts again what ends by itself, as a Deployment and systemd would.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use quorate_dev::clock;
use quorate_dev::csi_plugin::faults::{Answer, Fault as PluginFault, Happening};
use quorate_dev::csi_plugin::order::Order;
use quorate_dev::proxy::Network;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::Error;
use crate::admin;
use crate::history::{At, Fault, Signal, What};
use crate::schedule::{Cut, Kind, Planned, Schedule};
use crate::target::Target;
use crate::world::{Counts, World, plugin_role};

mod restore;

/// Between two looks at processes that may have ended.
const LOOK: Duration = Duration::from_millis(100);

/// Between the end of a process and its next start.
const PAUSE: Duration = Duration::from_secs(1);

/// The cluster with what is done to it.
pub struct Faults {
    /// The cluster.
    pub world: World,
    /// What is kept down.
    killed: Counts<Target>,
    /// What is suspended.
    paused: Counts<Target>,
    /// Cuts in force, oldest first: the number of the fault, the replica, the member, and what the network does.
    cuts: Vec<(u32, usize, Option<usize>, Network)>,
    /// Faults of the plugin in force.
    plugin: Vec<(u32, PluginFault)>,
    /// Alarms in force.
    alarms: usize,
    /// The begin of each fault that is not over.
    begun: BTreeMap<u32, At>,
    /// What has ended by itself, and when it is started again.
    down: BTreeMap<Target, Instant>,
    plugin_down: Option<Instant>,
    snapshots: BTreeMap<u32, restore::Snapshot>,
    variables: Vec<(String, OsString)>,
    /// Requests to members, which may hang.
    requests: JoinSet<()>,
}

/// The begin or the end of a fault.
#[derive(Clone, Copy)]
enum Edge<'a> {
    Begin(&'a Planned),
    End(&'a Planned),
}

impl Faults {
    /// On this cluster, whose replicas have these variables.
    pub fn new(world: World, variables: Vec<(String, OsString)>) -> Self {
        Self {
            world,
            killed: Counts::default(),
            paused: Counts::default(),
            cuts: Vec::new(),
            plugin: Vec::new(),
            alarms: 0,
            begun: BTreeMap::new(),
            down: BTreeMap::new(),
            plugin_down: None,
            snapshots: BTreeMap::new(),
            variables,
            requests: JoinSet::new(),
        }
    }

    /// Carries out the whole schedule.
    pub async fn carry_out(&mut self, schedule: &Schedule) -> Result<(), Error> {
        let mut edges: Vec<(Duration, Edge<'_>)> = Vec::new();
        for fault in &schedule.faults {
            edges.push((fault.begins, Edge::Begin(fault)));
            edges.push((fault.begins + fault.lasts, Edge::End(fault)));
        }
        edges.sort_by_key(|(at, _)| *at);
        let begun = Instant::now();
        for (at, edge) in edges {
            self.keep_up_until(begun + at).await?;
            match edge {
                Edge::Begin(fault) => self.begin(fault).await?,
                Edge::End(fault) => self.end(fault).await?,
            }
        }
        while self.requests.join_next().await.is_some() {}
        Ok(())
    }

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
                }
                _ => {}
            }
        }
        self.keep_plugin_up().await
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
    fn launch(&mut self, target: Target) -> Result<(), Error> {
        let (name, role) = (self.world.name_of(target), self.world.role_of(target));
        let recorder = self.world.recorder.clone();
        if let Some(program) = self.world.program_of(target)
            && (program.pid().is_none() || program.has_ended())
        {
            recorder.started(&name, role);
            program.launch()?;
            if self.paused.has(&target) {
                program.pause();
                recorder.signalled(&name, Signal::Stop);
            }
        }
        Ok(())
    }

    /// Kills a process.
    async fn kill(&mut self, target: Target) -> Result<(), Error> {
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

    fn pause(&mut self, target: Target) {
        self.paused.more(target);
        let name = self.world.name_of(target);
        if let Some(program) = self.world.program_of(target) {
            program.pause();
            self.world.recorder.signalled(&name, Signal::Stop);
        }
    }

    fn resume(&mut self, target: Target) {
        if self.paused.less(&target) {
            let name = self.world.name_of(target);
            if let Some(program) = self.world.program_of(target) {
                program.resume();
                self.world.recorder.signalled(&name, Signal::Continue);
            }
        }
    }

    /// What the network of each replica does now: the youngest cut counts.
    fn set_network(&mut self, replica: usize) {
        for (index, proxy) in self.world.replicas[replica].proxies.iter().enumerate() {
            let cut = self
                .cuts
                .iter()
                .rev()
                .find(|(_, of, member, _)| *of == replica && member.is_none_or(|member| member == index));
            proxy.set(cut.map_or(Network::Passes, |(.., network)| *network));
        }
    }

    /// Gives the plugin the faults that are in force. One that is down gets them with its next start.
    async fn order_plugin(&self) {
        let clear = self.world.plugin.send(&Order::Clear).await;
        for (_, fault) in &self.plugin {
            if clear.is_ok() {
                let _ = self.world.plugin.send(&Order::Fault(fault.clone())).await;
            }
        }
    }

    /// Replaces a replica by one with another bundle or clock, in order.
    async fn replace(
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

    async fn begin(&mut self, fault: &Planned) -> Result<(), Error> {
        eprintln!("chaos: {fault}");
        self.begun.insert(fault.number, self.world.recorder.now());
        match fault.kind {
            Kind::KillReplica(_) | Kind::KillMember(_) | Kind::KillApiserver | Kind::KillAgent(_) => {
                let target = target(&fault.kind);
                self.killed.more(target);
                self.kill(target).await?;
            }
            Kind::PauseReplica(_) | Kind::PauseMember(_) | Kind::PauseApiserver | Kind::PauseAgent(_) => {
                self.pause(target(&fault.kind));
            }
            Kind::JumpClock { replica, seconds } => self.replace(replica, None, Some(seconds)).await?,
            Kind::Roll { replica, release } => self.replace(replica, Some(release), None).await?,
            Kind::Network { replica, member, cut } => {
                self.cuts.push((fault.number, replica, member, network(cut)));
                self.set_network(replica);
            }
            Kind::Compact => {
                let (endpoints, revision) = (self.world.etcd.endpoints(), self.world.watch.seen());
                self.requests.spawn(admin::compact(endpoints, revision));
            }
            Kind::Defragment(member) => {
                let endpoint = self.world.etcd.endpoints()[member].clone();
                self.requests.spawn(admin::defragment(endpoint));
            }
            Kind::NoSpace => {
                self.alarms += 1;
                self.requests
                    .spawn(admin::raise_no_space(self.world.etcd.endpoints()));
            }
            Kind::Garbage(key) => {
                let key = format!("/quorate/{key}");
                self.requests
                    .spawn(admin::put_garbage(self.world.etcd.endpoints(), key));
            }
            Kind::Restore { .. } => self.snapshot(fault.number).await,
            Kind::PluginHangs { after } => {
                let happens = [Happening::Hangs, Happening::LosesReply][usize::from(after)].clone();
                self.break_plugin(fault.number, None, happens).await;
            }
            Kind::PluginFails { after } => {
                let answer = Answer {
                    code: "Unavailable".to_owned(),
                    message: "out of order".to_owned(),
                };
                let happens = match after {
                    true => Happening::FailsAfter(answer),
                    false => Happening::Fails(answer),
                };
                self.break_plugin(fault.number, None, happens).await;
            }
            Kind::PluginDies { after } => {
                let happens = [Happening::Crashes, Happening::CrashesAfter][usize::from(after)].clone();
                self.break_plugin(fault.number, Some(1), happens).await;
            }
        }
        Ok(())
    }

    async fn break_plugin(&mut self, number: u32, times: Option<u32>, happens: Happening) {
        let fault = PluginFault {
            method: None,
            volume: None,
            node: None,
            times,
            happens,
        };
        self.plugin.push((number, fault));
        self.order_plugin().await;
    }

    async fn end(&mut self, fault: &Planned) -> Result<(), Error> {
        match fault.kind {
            Kind::KillReplica(_) | Kind::KillMember(_) | Kind::KillApiserver | Kind::KillAgent(_) => {
                let target = target(&fault.kind);
                if self.killed.less(&target) {
                    self.launch(target)?;
                }
            }
            Kind::PauseReplica(_) | Kind::PauseMember(_) | Kind::PauseApiserver | Kind::PauseAgent(_) => {
                self.resume(target(&fault.kind));
            }
            Kind::JumpClock { replica, .. } => self.replace(replica, None, None).await?,
            Kind::Network { replica, .. } => {
                self.cuts.retain(|(number, ..)| *number != fault.number);
                self.set_network(replica);
            }
            Kind::NoSpace => {
                self.alarms -= 1;
                if self.alarms == 0 {
                    self.requests
                        .spawn(admin::clear_no_space(self.world.etcd.endpoints()));
                }
            }
            Kind::Garbage(key) => {
                let key = format!("/quorate/{key}");
                self.requests
                    .spawn(admin::delete(self.world.etcd.endpoints(), key));
            }
            Kind::Restore { replicas_stopped } => self.restore(fault.number, replicas_stopped).await?,
            Kind::PluginHangs { .. } | Kind::PluginFails { .. } | Kind::PluginDies { .. } => {
                self.plugin.retain(|(number, _)| *number != fault.number);
                self.order_plugin().await;
            }
            Kind::Roll { .. } | Kind::Compact | Kind::Defragment(_) => {}
        }
        let at = self.begun.remove(&fault.number).unwrap_or_default();
        let recorded = Fault {
            number: fault.number,
            kind: fault.kind.name().to_owned(),
            of: self.about(&fault.kind),
            holds_traffic: matches!(fault.kind, Kind::Network { .. }),
            ended: self.world.recorder.now(),
        };
        self.world.recorder.record(at, What::Fault(recorded));
        Ok(())
    }

    /// The names of the processes that a fault is about.
    fn about(&self, kind: &Kind) -> Vec<String> {
        let replica = |index| self.world.name_of(Target::Replica(index));
        let member = |index| self.world.name_of(Target::Member(index));
        match kind {
            Kind::JumpClock { replica: of, .. } | Kind::Roll { replica: of, .. } => vec![replica(*of)],
            Kind::Network {
                replica: of,
                member: to,
                ..
            } => [replica(*of)].into_iter().chain(to.map(member)).collect(),
            Kind::Defragment(of) => vec![member(*of)],
            Kind::PluginHangs { .. } | Kind::PluginFails { .. } | Kind::PluginDies { .. } => {
                vec!["plugin".to_owned()]
            }
            Kind::Compact | Kind::NoSpace | Kind::Garbage(_) | Kind::Restore { .. } => {
                (0..self.world.etcd.members.len()).map(member).collect()
            }
            kind => vec![self.world.name_of(target(kind))],
        }
    }
}

/// The process that a fault kills or suspends; of another fault, the apiserver.
fn target(kind: &Kind) -> Target {
    match *kind {
        Kind::KillReplica(index) | Kind::PauseReplica(index) => Target::Replica(index),
        Kind::KillMember(index) | Kind::PauseMember(index) => Target::Member(index),
        Kind::KillAgent(index) | Kind::PauseAgent(index) => Target::Agent(index),
        _ => Target::Apiserver,
    }
}

fn network(cut: Cut) -> Network {
    match cut {
        Cut::BlackHole => Network::BlackHole,
        Cut::LosesReplies => Network::LosesReplies,
        Cut::Resets => Network::Resets,
        Cut::Delays(delay) => Network::Delays(delay),
    }
}
