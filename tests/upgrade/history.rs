//! The history of etcd, in one order: the status, the registrations, and the objects of Kubernetes, which are in the same
//! etcd.

use std::collections::BTreeMap;

use prost::Message as _;
use quorate::etcd::{Event, KeyRange, Revision};
use quorate::gate::status::Status;
use quorate::proto::Registration;
use quorate::release::Release;
use serde_json::Value;

use super::{Cluster, Deployment, Shipped};
use crate::support::client::{history, put};

/// All events from the first revision on.
pub struct History(Vec<Event>);

/// The keys of a deployment and the objects of its bundles at one revision.
#[derive(Default)]
struct Snapshot {
    status: Option<Status>,
    registered: BTreeMap<String, Release>,
    /// The release of each object, by name.
    objects: BTreeMap<String, Release>,
}

impl History {
    /// Reads the history up to now.
    pub async fn of(cluster: &Cluster) -> Self {
        const END: &str = "/end-of-history";
        let end = put(&cluster.client, END, "here").await.revision;
        let events = history(&cluster.client, KeyRange::prefix("/"), Revision(1), end).await;
        Self(events)
    }

    /// The events of each revision.
    fn revisions(&self) -> impl Iterator<Item = &[Event]> {
        self.0.chunk_by(|one, other| one.revision() == other.revision())
    }

    /// Every status that was written, in one line each, oldest first.
    pub fn statuses(&self, deployment: &Deployment<'_>) -> Vec<String> {
        let key = deployment.store().keys.status();
        let status = |event: &Event| match event {
            Event::Put(kv) if kv.key == key => Some(match Status::decode(&kv.value) {
                Ok(status) => status.to_string(),
                Err(_) => "malformed".to_owned(),
            }),
            Event::Delete { key: deleted, .. } if *deleted == key => Some("none".to_owned()),
            _ => None,
        };
        self.0.iter().filter_map(status).collect()
    }

    /// The revision at which this status was written last.
    pub fn revision_of(&self, deployment: &Deployment<'_>, status: &str) -> Revision {
        let key = deployment.store().keys.status();
        let wrote = self.0.iter().rfind(|event| match event {
            Event::Put(kv) => {
                kv.key == key && Status::decode(&kv.value).is_ok_and(|found| found.to_string() == status)
            }
            Event::Delete { .. } => false,
        });
        wrote
            .unwrap_or_else(|| panic!("the status was never {status}"))
            .revision()
    }

    /// The revision at which a replica registered first.
    pub fn registered(&self, deployment: &Deployment<'_>, node: &str) -> Revision {
        let key = deployment.store().keys.registration(&node.parse().unwrap());
        let event = self.0.iter().find(|event| event.key() == key);
        event
            .unwrap_or_else(|| panic!("{node} never registered"))
            .revision()
    }

    /// The keys of Kubernetes objects that were deleted, or written by Quorate, after `from` and before `to`. Events do
    /// not count.
    pub fn objects_written_between(&self, from: Revision, to: Revision) -> Vec<String> {
        let between = self
            .0
            .iter()
            .filter(|event| event.revision() > from && event.revision() < to);
        between
            .filter(|event| {
                let key = String::from_utf8_lossy(event.key());
                let object = key.starts_with("/kubernetes/") && !key.starts_with("/kubernetes/events/");
                object
                    && match event {
                        Event::Put(kv) => managers(&kv.value).iter().any(|manager| manager == "quorate"),
                        Event::Delete { .. } => true,
                    }
            })
            .map(|event| String::from_utf8_lossy(event.key()).into_owned())
            .collect()
    }

    /// INV-4 at every revision: the status admitted no release that the objects in place exclude, and was never narrowed
    /// while a replica was registered that it admitted before and not after. status.json said the same.
    pub fn assert_no_release_was_admitted_that_the_state_excludes(
        &self,
        deployment: &Deployment<'_>,
        releases: &[&Shipped],
    ) {
        let shipped = |release: Release| {
            *releases
                .iter()
                .find(|shipped| shipped.release == release)
                .unwrap_or_else(|| panic!("release {release} is not one of the test's"))
        };
        let keys = deployment.store().keys;
        let (status_key, json_key) = (keys.status(), keys.status_json());
        let mut now = Snapshot::default();
        let mut checked = 0;
        for events in self.revisions() {
            let revision = events[0].revision();
            let before = now.status.clone();
            for event in events {
                now.apply(deployment, event);
            }
            let Some(status) = &now.status else { continue };
            let (version, minimum) = (status.version.release, status.minimum_compatible);
            for (object, release) in &now.objects {
                let excludes = shipped(*release).min_apiserver;
                assert!(
                    minimum >= excludes && version <= *release,
                    "revision {revision}: the status is {status}, but {object} is of release {release}, \
                     which excludes those below {excludes}"
                );
                checked += 1;
            }
            if let Some(written) = events.iter().find(|event| event.key() == status_key) {
                assert!(matches!(written, Event::Put(_)));
                let json = events.iter().find(|event| event.key() == json_key);
                let Some(Event::Put(json)) = json else {
                    panic!("revision {revision}: the status was written without status.json");
                };
                let json: Value = serde_json::from_slice(&json.value).unwrap();
                assert_eq!(json["state"], status.state.to_string());
                assert_eq!(json["version"], status.version.to_string());
                assert_eq!(json["minimumCompatibleRelease"], minimum.to_string());
                for (node, release) in &now.registered {
                    let shipped = shipped(*release);
                    let admitted = before.as_ref().is_some_and(|before| {
                        !shipped.is_excluded_by(before.version.release, before.minimum_compatible)
                    });
                    assert!(
                        !(admitted && shipped.is_excluded_by(version, minimum)),
                        "revision {revision}: the status became {status} while {node} at {release} was registered"
                    );
                }
            }
        }
        assert!(checked > 0, "the history shows no object of {}", deployment.name);
    }
}

impl Snapshot {
    fn apply(&mut self, deployment: &Deployment<'_>, event: &Event) {
        let keys = deployment.store().keys;
        let key = String::from_utf8_lossy(event.key()).into_owned();
        let objects = format!("/kubernetes/configmaps/default/{}-", deployment.name);
        let node = key
            .strip_prefix(&format!("{}/nodes/", deployment.prefix()))
            .and_then(|rest| rest.strip_suffix("/release"));
        if event.key() == keys.status() {
            self.status = match event {
                Event::Put(kv) => Status::decode(&kv.value).ok(),
                Event::Delete { .. } => None,
            };
        } else if let Some(node) = node {
            match event {
                Event::Put(kv) => {
                    let record = Registration::decode(&*kv.value).unwrap();
                    let release = record.version.and_then(|version| version.release);
                    let release = Release::from_proto(release.as_ref()).unwrap();
                    self.registered.insert(node.to_owned(), release);
                }
                Event::Delete { .. } => {
                    self.registered.remove(node);
                }
            }
        } else if let Some(object) = key.strip_prefix(&objects) {
            match event {
                Event::Put(kv) => {
                    let value: Value = serde_json::from_slice(&kv.value).unwrap();
                    let release = value["data"]["release"].as_str().unwrap().parse().unwrap();
                    self.objects.insert(object.to_owned(), release);
                }
                Event::Delete { .. } => {
                    self.objects.remove(object);
                }
            }
        }
    }
}

/// The field managers of an object; none for a value that is no object.
fn managers(value: &[u8]) -> Vec<String> {
    let object: Value = serde_json::from_slice(value).unwrap_or_default();
    let fields = object["metadata"]["managedFields"].as_array();
    let fields = fields.into_iter().flatten();
    fields
        .filter_map(|field| Some(field["manager"].as_str()?.to_owned()))
        .collect()
}
