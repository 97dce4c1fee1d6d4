//! Begins and ends faults as the schedule says.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use quorate_dev::csi_plugin::faults::{Answer, Fault as PluginFault, Happening};
use quorate_dev::proxy::Network;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::Error;
use crate::admin;
use crate::history::{At, Fault, What};
use crate::schedule::{Kind, Planned, Schedule, UNREADABLE};
use crate::target::Target;
use crate::world::{Counts, World};
use network::{InForce, Partition, network};

mod network;
mod processes;
mod restore;

/// The cluster with what is done to it.
pub struct Faults {
    /// The cluster.
    pub world: World,
    /// What is kept down.
    killed: Counts<Target>,
    /// What is suspended.
    paused: Counts<Target>,
    /// Cuts in force, oldest first.
    cuts: Vec<InForce>,
    /// Partitions in force.
    partitions: Vec<Partition>,
    /// Refusals of the apiserver in force, oldest first: the number of the fault, and the status.
    refusals: Vec<(u32, u16)>,
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
            partitions: Vec::new(),
            refusals: Vec::new(),
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

    /// Takes back what a restore may have brought back after its end.
    pub async fn lift(&self) {
        let endpoints = self.world.etcd.endpoints();
        admin::clear_no_space(endpoints.clone()).await;
        for key in UNREADABLE {
            admin::delete(endpoints.clone(), format!("/quorate/{key}")).await;
        }
    }

    async fn begin(&mut self, fault: &Planned) -> Result<(), Error> {
        eprintln!("chaos: {fault}");
        self.begun.insert(fault.number, self.world.recorder.now());
        match fault.kind {
            Kind::KillReplica(_)
            | Kind::KillMember(_)
            | Kind::KillMembersBut(_)
            | Kind::KillApiserver
            | Kind::KillAgent(_)
            | Kind::LoseData(_) => {
                for target in self.targets(&fault.kind) {
                    self.killed.more(target);
                    self.kill(target).await?;
                }
                if let Kind::LoseData(agent) = fault.kind {
                    self.world.agents[agent].lose_etcd_data()?;
                }
            }
            Kind::PauseReplica(_) | Kind::PauseMember(_) | Kind::PauseApiserver | Kind::PauseAgent(_) => {
                for target in self.targets(&fault.kind) {
                    self.pause(target);
                }
            }
            Kind::JumpClock { replica, seconds } => self.replace(replica, None, Some(seconds)).await?,
            Kind::Roll { replica, release } => self.replace(replica, Some(release), None).await?,
            Kind::Network { replica, member, cut } => {
                self.cut(fault.number, Target::Replica(replica), member, network(cut));
            }
            Kind::AgentNetwork { agent, replica, cut } => {
                self.cut(fault.number, Target::Agent(agent), replica, network(cut));
            }
            Kind::Peers { member, other, lost } => {
                self.partitions.push(Partition {
                    number: fault.number,
                    member,
                    other,
                    lost,
                });
                self.set_partitions();
            }
            Kind::RefuseWrites(status) => {
                self.refusals.push((fault.number, status));
                self.set_refusal();
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
                let happens = [Happening::Fails, Happening::FailsAfter][usize::from(after)];
                self.break_plugin(fault.number, None, happens(out_of_order()))
                    .await;
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
            Kind::KillReplica(_)
            | Kind::KillMember(_)
            | Kind::KillMembersBut(_)
            | Kind::KillApiserver
            | Kind::KillAgent(_)
            | Kind::LoseData(_) => {
                for target in self.targets(&fault.kind) {
                    if self.killed.less(&target) {
                        self.launch(target)?;
                    }
                }
            }
            Kind::PauseReplica(_) | Kind::PauseMember(_) | Kind::PauseApiserver | Kind::PauseAgent(_) => {
                for target in self.targets(&fault.kind) {
                    self.resume(target);
                }
            }
            Kind::JumpClock { replica, .. } => self.replace(replica, None, None).await?,
            Kind::Network { replica, .. } => {
                self.cuts.retain(|cut| cut.number != fault.number);
                self.set_network(Target::Replica(replica));
            }
            Kind::AgentNetwork { agent, .. } => {
                self.cuts.retain(|cut| cut.number != fault.number);
                self.set_network(Target::Agent(agent));
            }
            Kind::Peers { .. } => {
                self.partitions
                    .retain(|partition| partition.number != fault.number);
                self.set_partitions();
            }
            Kind::RefuseWrites(_) => {
                self.refusals.retain(|(number, _)| *number != fault.number);
                self.set_refusal();
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
            ended: self.world.recorder.now(),
        };
        self.world.recorder.record(at, What::Fault(recorded));
        Ok(())
    }

    fn cut(&mut self, number: u32, of: Target, server: Option<usize>, network: Network) {
        self.cuts.push(InForce {
            number,
            of,
            server,
            network,
        });
        self.set_network(of);
    }

    /// What the apiserver refuses writes with now: the youngest fault counts.
    fn set_refusal(&self) {
        if let Some(admission) = &self.world.admission {
            admission.refuse(self.refusals.last().map(|(_, status)| *status));
        }
    }

    /// The names of the processes that a fault is about.
    fn about(&self, kind: &Kind) -> Vec<String> {
        let targets = match *kind {
            Kind::PluginHangs { .. } | Kind::PluginFails { .. } | Kind::PluginDies { .. } => {
                return vec!["plugin".to_owned()];
            }
            Kind::JumpClock { replica, .. } | Kind::Roll { replica, .. } => vec![Target::Replica(replica)],
            Kind::Network { replica, member, .. } => {
                let member = member.map(Target::Member);
                [Target::Replica(replica)].into_iter().chain(member).collect()
            }
            // The replica at the other end is not held up.
            Kind::AgentNetwork { agent, .. } => vec![Target::Agent(agent)],
            Kind::Peers { member, other, .. } => {
                let other = other.map(Target::Member);
                [Target::Member(member)].into_iter().chain(other).collect()
            }
            Kind::Defragment(member) => vec![Target::Member(member)],
            Kind::RefuseWrites(_) => vec![Target::Apiserver],
            Kind::Compact | Kind::NoSpace | Kind::Garbage(_) | Kind::Restore { .. } => self.members(),
            _ => self.targets(kind),
        };
        let names = targets.into_iter().map(|target| self.world.name_of(target));
        names.collect()
    }

    fn members(&self) -> Vec<Target> {
        (0..self.world.etcd.members.len()).map(Target::Member).collect()
    }

    /// The processes that a fault kills or suspends; none where it does neither.
    fn targets(&self, kind: &Kind) -> Vec<Target> {
        match *kind {
            Kind::KillReplica(index) | Kind::PauseReplica(index) => vec![Target::Replica(index)],
            Kind::KillMember(index) | Kind::PauseMember(index) => vec![Target::Member(index)],
            Kind::KillMembersBut(left) => {
                let mut members = self.members();
                members.retain(|member| *member != Target::Member(left));
                members
            }
            Kind::KillAgent(index) | Kind::PauseAgent(index) | Kind::LoseData(index) => {
                vec![Target::Agent(index)]
            }
            Kind::KillApiserver | Kind::PauseApiserver => vec![Target::Apiserver],
            _ => Vec::new(),
        }
    }
}

/// What a plugin that fails answers.
fn out_of_order() -> Answer {
    Answer {
        code: "Unavailable".to_owned(),
        message: "out of order".to_owned(),
    }
}
