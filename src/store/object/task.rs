//! The Task kind: something that runs for a service on a node, and its state.

use serde_json::{Value, json};

use super::Object;
use super::change::{Appliable, Reference, Rejection};
use super::document::{document, given, present};
use super::fields::{Fault, Fields};
use super::words::word_of_number;
use crate::etcd::Revision;
use crate::proto::task_status::State;
use crate::proto::{Node, Service, Task, TaskSpec, TaskStatus};
use crate::store::keys::Name;

const STATES: &[(&str, State)] = &[
    ("new", State::New),
    ("pending", State::Pending),
    ("assigned", State::Assigned),
    ("accepted", State::Accepted),
    ("preparing", State::Preparing),
    ("ready", State::Ready),
    ("starting", State::Starting),
    ("running", State::Running),
    ("complete", State::Complete),
    ("failed", State::Failed),
    ("shutdown", State::Shutdown),
    ("rejected", State::Rejected),
    ("orphaned", State::Orphaned),
    ("removed", State::Removed),
];

/// The spec and the reported state in a document of a task.
#[derive(Debug, Default)]
pub struct Manifest {
    service: Option<Name>,
    node: Option<Name>,
    state: Option<State>,
}

/// Whether the task no longer runs: its runner or, for an orphaned one, the leader reported that.
pub fn is_finished(task: &Task) -> bool {
    match task.status.unwrap_or_default().state() {
        State::Complete
        | State::Failed
        | State::Shutdown
        | State::Rejected
        | State::Orphaned
        | State::Removed => true,
        State::Unspecified
        | State::New
        | State::Pending
        | State::Assigned
        | State::Accepted
        | State::Preparing
        | State::Ready
        | State::Starting
        | State::Running => false,
    }
}

/// The state as a word such as `running`: empty if unset, or the number of a state that only a later release knows.
pub fn state_word(task: &Task) -> String {
    word_of_number(STATES, task.status.unwrap_or_default().state)
}

impl Object for Task {
    kind_with_metadata!("Task");

    fn owner(&self) -> Option<&str> {
        Some(self.spec.as_ref().map_or("", |spec| spec.service.as_str()))
    }

    fn check(&self) -> Result<(), Fault> {
        let node = self.spec.as_ref().map_or("", |spec| spec.node.as_str());
        if !node.is_empty() {
            Fault::check_name("spec.node", node)?;
        }
        Ok(())
    }
}

impl Appliable for Task {
    type Manifest = Manifest;

    // After services and nodes.
    const LAYER: u8 = 2;

    fn owner_in(manifest: &Manifest) -> Option<Name> {
        manifest.service.clone()
    }

    fn references(&self) -> Vec<Reference> {
        let Some(spec) = &self.spec else {
            return Vec::new();
        };
        let names = [(Service::KIND, &spec.service), (Node::KIND, &spec.node)];
        let references = names.into_iter();
        references
            .filter_map(|(kind, name)| Reference::to(kind, name))
            .collect()
    }

    fn read(document: &mut Fields<'_, '_>) -> Manifest {
        let mut manifest = Manifest::default();
        document.required("spec", |spec| {
            manifest.service = spec.parsed("service", str::parse::<Name>);
            if manifest.service.is_none() && spec.value("service").is_none() {
                spec.fault("service", "missing: a task is addressed as SERVICE/NAME");
            }
            manifest.node = match spec.string("node") {
                // `get -o yaml` prints a task without a node so.
                Some("") => None,
                _ => spec.parsed("node", str::parse::<Name>),
            };
        });
        document.object("status", |status| {
            manifest.state = status.one_of("state", STATES);
            if manifest.state.is_none() && status.is_given("state") && status.value("state").is_none() {
                status.fault("state", "a task always has a state");
            }
        });
        manifest
    }

    fn create(_name: &str, manifest: &Manifest) -> Result<Self, Rejection> {
        Ok(Self {
            metadata: None,
            spec: Some(TaskSpec {
                service: text(manifest.service.as_ref()),
                node: text(manifest.node.as_ref()),
            }),
            // The program that runs tasks reports every later state.
            status: Some(TaskStatus {
                state: State::New.into(),
            }),
        })
    }

    fn update(&mut self, name: &str, manifest: &Manifest) -> Result<(), Rejection> {
        let spec = self.spec.get_or_insert_default();
        if manifest.node.is_none() && !spec.node.is_empty() {
            let message = format!(
                "missing: task {}/{name} is assigned to {}, and leaving the node out would unassign it",
                spec.service, spec.node
            );
            return Err(Rejection::Faulty(vec![Fault::new("spec.node", message)]));
        }
        spec.node = text(manifest.node.as_ref());
        Ok(())
    }

    fn report(&mut self, manifest: &Manifest) {
        if let Some(state) = manifest.state {
            self.status.get_or_insert_default().set_state(state);
        }
    }

    fn same_spec(&self, other: &Self) -> bool {
        self.spec == other.spec
    }

    fn same_report(&self, other: &Self) -> bool {
        self.status.unwrap_or_default().state == other.status.unwrap_or_default().state
    }
}

fn text(name: Option<&Name>) -> String {
    name.map(Name::to_string).unwrap_or_default()
}

/// The document of a task.
pub fn to_document(task: &Task, mod_revision: Revision) -> Value {
    let spec = task.spec.clone().unwrap_or_default();
    let parts = json!({
        "spec": present(json!({"service": spec.service, "node": given(&spec.node)})),
        "status": present(json!({"state": given(&state_word(task))})),
    });
    document(Task::KIND, task.metadata.as_ref(), mod_revision, parts)
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::store::object::{Malformed, decode};

    #[test]
    fn the_finished_states_are_those_of_the_contract_and_an_unknown_one_is_unfinished() {
        let task = |state: i32| Task {
            status: Some(TaskStatus { state }),
            ..Task::default()
        };
        let finished: Vec<&str> = STATES
            .iter()
            .filter(|(_, state)| is_finished(&task((*state).into())))
            .map(|(word, _)| *word)
            .collect();
        assert_eq!(
            finished,
            [
                "complete", "failed", "shutdown", "rejected", "orphaned", "removed"
            ]
        );
        assert!(!is_finished(&task(99)) && !is_finished(&task(0)));
        assert_eq!(state_word(&task(99)), "unknown (99)");
    }

    #[test]
    fn a_task_under_the_key_of_another_service_is_malformed() {
        let mut task = Task {
            spec: Some(TaskSpec {
                service: "web".to_owned(),
                node: String::new(),
            }),
            ..Task::default()
        };
        task.metadata_mut().name = "1".to_owned();
        let value = task.encode_to_vec();
        assert!(decode::<Task>("web/1", &value).is_ok());
        assert!(matches!(
            decode::<Task>("db/1", &value),
            Err(Malformed::Owner { .. })
        ));
        assert!(matches!(
            decode::<Task>("web/2", &value),
            Err(Malformed::Name { .. })
        ));
    }
}
