//! Composes the state that is shown from what a replica knows at one moment. Pure.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::state::{Gate, GateStatus, Known, Leader, OwnReplica, Part, Picture, State};
use crate::deallocator::summary::DeletionsSummary;
use crate::etcd::election;
use crate::gate::readiness::SeenStatus;
use crate::gate::status::StatusJson;
use crate::gate::summary::ReleasesSummary;
use crate::resources::summary::ResourcesSummary;
use crate::roles::summary::{NodesSummary, RolesSummary};
use crate::store::object::time;
use crate::summary::Summary;
use crate::volumes::summary::VolumesSummary;

/// What does not change while a replica runs.
#[derive(Clone, Debug)]
pub struct About {
    /// Its node id.
    pub replica: String,
    /// The name and version of its bundle.
    pub bundle: String,
    /// Whether it keeps Kubernetes resources.
    pub kubernetes: bool,
    /// Whether it serves agents, and so follows the sessions of nodes.
    pub serves_agents: bool,
}

/// The last answer of etcd.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// How long ago its request was sent.
    pub age: Duration,
    /// When that was, by the clock of this machine.
    pub time: Timestamp,
}

/// What a replica knows at one moment.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The last answer of etcd; `None` before the first.
    pub answer: Option<Answer>,
    /// Whether etcd does not answer now.
    pub is_cut_off: bool,
    /// Whether the registration of this replica stands.
    pub is_registered: bool,
    /// Whether this replica leads.
    pub leads: bool,
    /// The leader.
    pub leader: Option<election::Leader>,
    /// Why this replica may not serve.
    pub not_ready: Option<String>,
    /// Why this replica does not stand for election.
    pub not_standing: Option<String>,
    /// The status of the gate.
    pub status: SeenStatus,
    /// The summary of releases.
    pub releases: Option<Summary<ReleasesSummary>>,
    /// That of nodes, from the sessions of agents.
    pub nodes: Option<Summary<NodesSummary>>,
    /// That of the gate.
    pub gate: Option<Summary<StatusJson>>,
    /// That of roles.
    pub roles: Option<Summary<RolesSummary>>,
    /// That of volumes.
    pub volumes: Option<Summary<VolumesSummary>>,
    /// That of deletions.
    pub deletions: Option<Summary<DeletionsSummary>>,
    /// That of resources.
    pub resources: Option<Summary<ResourcesSummary>>,
}

/// Composes the state.
pub fn compose(about: &About, seen: &Seen) -> State {
    let roles = seen.by_leader(seen.roles.as_ref());
    let nodes = match about.serves_agents {
        true => seen.by_each(seen.nodes.as_ref()),
        // Their roles are known all the same, by the leader.
        false => of(&roles, |roles| Arc::clone(&roles.nodes)),
    };
    // The status is followed under a registration. Without one it is shown only where all that is shown is of the past.
    let is_status_followed = seen.is_registered || seen.is_cut_off;
    let gate = about.kubernetes.then(|| Gate {
        status: match is_status_followed {
            true => gate_status(&seen.status),
            false => GateStatus::Unread,
        },
        degraded: of(&seen.by_leader(seen.gate.as_ref()), |gate| {
            Arc::new(gate.degraded.clone())
        }),
    });
    let resources = about.kubernetes.then(|| seen.by_leader(seen.resources.as_ref()));
    let not_ready = seen.not_ready.iter().map(|why| format!("not ready: {why}"));
    let not_standing = seen.not_standing.iter();
    let not_standing = not_standing.map(|why| format!("not standing for election: {why}"));
    State {
        picture: Picture {
            as_of: seen.as_of(),
            age_seconds: seen.answer.map(|answer| answer.age.as_secs()),
            cut_off: seen.is_cut_off,
        },
        replica: OwnReplica {
            name: about.replica.clone(),
            program: env!("CARGO_PKG_VERSION"),
            bundle: about.bundle.clone(),
            leads: seen.leads,
            ready: seen.not_ready.is_none(),
            remarks: not_ready.chain(not_standing).collect(),
        },
        leader: seen.leader.as_ref().map(|leader| Leader {
            name: leader.name.clone(),
            term: leader.term.0,
            is_last_known: seen.is_cut_off || !seen.is_registered,
            page: page_of(&leader.name, seen.releases.as_ref()),
        }),
        gate,
        releases: seen.by_each(seen.releases.as_ref()),
        roles,
        nodes,
        volumes: seen.by_leader(seen.volumes.as_ref()),
        deletions: seen.by_leader(seen.deletions.as_ref()),
        resources,
    }
}

impl Seen {
    fn as_of(&self) -> Option<String> {
        self.answer.map(|answer| time::rfc3339(answer.time))
    }

    /// What every replica makes a summary of.
    fn by_each<T>(&self, summary: Option<&Summary<T>>) -> Part<T> {
        match summary {
            None => Part::unknown(Known::NotYet),
            Some(summary) if self.is_cut_off => self.past(summary),
            Some(summary) => Part {
                known: Known::Now,
                as_of: None,
                content: Some(Arc::clone(&summary.content)),
            },
        }
    }

    /// What the leader alone makes a summary of. That of an earlier term of this replica is void as soon as another one may lead:
    /// it is shown only by a replica that cannot know.
    fn by_leader<T>(&self, summary: Option<&Summary<T>>) -> Part<T> {
        match summary {
            Some(summary) if summary.ended.is_none() => self.by_each(Some(summary)),
            Some(summary) if self.is_cut_off => self.past(summary),
            _ if self.leads => Part::unknown(Known::NotYet),
            _ => Part::unknown(Known::ByTheLeader),
        }
    }

    /// As of the last answer of etcd, and not later than the end of the part that made it.
    fn past<T>(&self, summary: &Summary<T>) -> Part<T> {
        let answered = self.answer.map(|answer| answer.time);
        let ended = summary.ended.and_then(|ended| Timestamp::try_from(ended).ok());
        Part {
            known: Known::Past,
            as_of: [answered, ended].into_iter().flatten().min().map(time::rfc3339),
            content: Some(Arc::clone(&summary.content)),
        }
    }
}

/// A part of a part.
fn of<T, U>(part: &Part<T>, content: impl FnOnce(&T) -> Arc<U>) -> Part<U> {
    Part {
        known: part.known,
        as_of: part.as_of.clone(),
        content: part.content.as_deref().map(content),
    }
}

fn gate_status(seen: &SeenStatus) -> GateStatus {
    match seen {
        SeenStatus::Unread => GateStatus::Unread,
        SeenStatus::Absent => GateStatus::Absent,
        SeenStatus::Stored(Err(error)) => GateStatus::Malformed {
            message: error.to_string(),
        },
        SeenStatus::Stored(Ok(status)) => GateStatus::Stored {
            state: status.state.to_string(),
            version: status.version.to_string(),
            minimum_compatible_release: status.minimum_compatible.to_string(),
        },
    }
}

/// The address that the replica of this name has registered.
fn page_of(name: &str, releases: Option<&Summary<ReleasesSummary>>) -> Option<String> {
    let mut replicas = releases?.content.replicas.first.iter();
    replicas.find(|row| row.name == name)?.page.clone()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::etcd::Revision;
    use crate::gate::summary::ReplicaRow;
    use crate::summary::Rows;

    fn about() -> About {
        About {
            replica: "r1".to_owned(),
            bundle: "builtin 0.1.0".to_owned(),
            kubernetes: true,
            serves_agents: false,
        }
    }

    fn summary<T>(content: T, ended: Option<u64>) -> Option<Summary<T>> {
        Some(Summary {
            content: Arc::new(content),
            ended: ended.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)),
        })
    }

    fn in_contact() -> Seen {
        Seen {
            answer: Some(Answer {
                age: Duration::from_millis(1700),
                time: "2026-03-01T12:00:00Z".parse().unwrap(),
            }),
            is_registered: true,
            leader: Some(election::Leader {
                name: "r1".to_owned(),
                term: Revision(42),
            }),
            ..Seen::default()
        }
    }

    #[test]
    fn before_the_first_answer_of_etcd_nothing_is_known_and_nothing_is_old() {
        let state = compose(&about(), &Seen::default());
        assert_eq!((state.picture.as_of, state.picture.age_seconds), (None, None));
        assert_eq!((state.leader, state.releases.known), (None, Known::NotYet));
        assert_eq!(state.volumes.known, Known::ByTheLeader);
    }

    #[test]
    fn a_standby_does_not_show_what_it_knew_when_it_led() {
        let mut seen = in_contact();
        seen.volumes = summary(VolumesSummary::default(), Some(5));
        seen.releases = summary(ReleasesSummary::default(), None);
        let state = compose(&about(), &seen);
        assert_eq!(state.volumes, Part::unknown(Known::ByTheLeader));
        assert_eq!(state.releases.known, Known::Now);
        seen.leads = true;
        assert_eq!(compose(&about(), &seen).volumes.known, Known::NotYet);
        seen.volumes = summary(VolumesSummary::default(), None);
        assert_eq!(compose(&about(), &seen).volumes.known, Known::Now);
    }

    #[test]
    fn a_replica_that_is_not_registered_does_not_show_the_status_that_it_read_before() {
        let shown = |is_registered: bool, is_cut_off: bool| {
            let seen = Seen {
                status: SeenStatus::Absent,
                is_registered,
                is_cut_off,
                ..in_contact()
            };
            compose(&about(), &seen).gate.unwrap().status
        };
        assert_eq!(shown(true, false), GateStatus::Absent);
        assert_eq!(shown(false, false), GateStatus::Unread);
        assert_eq!(shown(false, true), GateStatus::Absent, "as of the last answer");
    }

    #[test]
    fn a_replica_that_is_cut_off_dates_everything_by_the_last_answer() {
        let mut seen = in_contact();
        seen.is_cut_off = true;
        seen.releases = summary(ReleasesSummary::default(), None);
        // Its term ended seconds after the last answer.
        seen.volumes = summary(VolumesSummary::default(), Some(1_772_366_408));
        // That of another part ended long before.
        seen.deletions = summary(DeletionsSummary::default(), Some(1_772_366_000));
        let state = compose(&about(), &seen);
        assert_eq!(state.picture.age_seconds, Some(1));
        let answered = Some("2026-03-01T12:00:00Z".to_owned());
        assert_eq!(state.picture.as_of, answered);
        assert_eq!(
            (state.releases.known, state.releases.as_of),
            (Known::Past, answered.clone())
        );
        assert_eq!(
            (state.volumes.known, state.volumes.as_of),
            (Known::Past, answered)
        );
        assert_eq!(state.deletions.as_of.as_deref(), Some("2026-03-01T11:53:20Z"));
        assert!(state.leader.unwrap().is_last_known);
    }

    #[test]
    fn the_leader_comes_with_the_address_that_it_has_registered() {
        let mut seen = in_contact();
        let row = |(name, page): (&str, &str)| ReplicaRow {
            name: name.to_owned(),
            version: None,
            page: Some(page.to_owned()),
            excluded: false,
        };
        let replicas = Rows::least([("r1", "http://a/"), ("r2", "http://b/")]).map(row);
        let releases = ReleasesSummary {
            replicas,
            ..ReleasesSummary::default()
        };
        seen.releases = summary(releases, None);
        let leader = compose(&about(), &seen).leader.unwrap();
        assert_eq!(leader.page.as_deref(), Some("http://a/"));
        assert!(!leader.is_last_known);
    }

    #[test]
    fn a_replica_without_agents_shows_the_roles_that_the_leader_knows() {
        let mut seen = in_contact();
        let nodes = NodesSummary {
            roles: [("worker", 3)].into(),
            ..NodesSummary::default()
        };
        let roles = RolesSummary {
            nodes: Arc::new(nodes.clone()),
            ..RolesSummary::default()
        };
        seen.roles = summary(roles, None);
        let state = compose(&about(), &seen);
        assert_eq!(state.nodes.content.as_deref(), Some(&nodes));
        let serving = About {
            serves_agents: true,
            ..about()
        };
        assert_eq!(compose(&serving, &seen).nodes.known, Known::NotYet);
    }

    #[test]
    fn a_replica_without_kubernetes_has_no_gate_and_no_resources() {
        let without = About {
            kubernetes: false,
            ..about()
        };
        let state = compose(&without, &in_contact());
        assert!(state.gate.is_none() && state.resources.is_none());
    }
}
