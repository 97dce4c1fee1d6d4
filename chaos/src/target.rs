//! The processes that faults are about.

use quorate_dev::restartable::Restartable;

use crate::history::Role;
use crate::world::World;

/// A process that can be killed and suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// A replica.
    Replica(usize),
    /// A member of etcd.
    Member(usize),
    /// An agent.
    Agent(usize),
    /// The apiserver.
    Apiserver,
}

impl World {
    /// All of them that this world has.
    pub fn targets(&self) -> Vec<Target> {
        let replicas = (0..self.replicas.len()).map(Target::Replica);
        let members = (0..self.etcd.members.len()).map(Target::Member);
        let agents = (0..self.agents.len()).map(Target::Agent);
        let apiserver = self.apiserver.iter().map(|_| Target::Apiserver);
        members.chain(apiserver).chain(replicas).chain(agents).collect()
    }

    /// Its name in the history.
    pub fn name_of(&self, target: Target) -> String {
        match target {
            Target::Replica(index) => self.replicas[index].replica.node_id.clone(),
            Target::Member(index) => self.etcd.members[index].name.clone(),
            Target::Agent(index) => self.agents[index].name.clone(),
            Target::Apiserver => "apiserver".to_owned(),
        }
    }

    /// What it is.
    pub fn role_of(&self, target: Target) -> Role {
        match target {
            Target::Replica(index) => Role::Replica {
                node_id: self.name_of(target),
                release: self.releases[self.replicas[index].release].release.clone(),
            },
            Target::Member(_) => Role::Etcd {
                member: self.name_of(target),
            },
            Target::Agent(_) => Role::Agent {
                node: self.name_of(target),
            },
            Target::Apiserver => Role::Apiserver,
        }
    }

    /// Its program; none for an apiserver that this world does not have.
    pub fn program_of(&mut self, target: Target) -> Option<&mut Restartable> {
        let program: &mut Restartable = match target {
            Target::Replica(index) => &mut self.replicas[index].replica,
            Target::Member(index) => &mut self.etcd.members[index],
            Target::Agent(index) => &mut self.agents[index],
            Target::Apiserver => self.apiserver.as_mut()?,
        };
        Some(program)
    }
}
