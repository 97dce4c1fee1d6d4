//! The Service kind: its documents, and the networks that it uses.

use serde_json::{Value, json};

use super::Object;
use super::change::{Appliable, Reference, Rejection};
use super::document::document;
use super::fields::{Fault, Fields};
use super::mark::{self, Marked};
use crate::etcd::Revision;
use crate::proto::{Network, Service, ServiceSpec, ServiceStatus};
use crate::store::keys::Name;

/// The most networks in one list. One transaction compares and deletes a service together with its networks, and etcd
/// takes 128 compares.
const MOST_NETWORKS: usize = 60;

/// The spec in a document of a service.
#[derive(Debug, Default)]
pub struct Manifest {
    networks: Option<Vec<Name>>,
    task_networks: Option<Vec<Name>>,
}

/// The networks that a service uses: `taskNetworks`, or `networks` if that list is empty.
pub fn networks_in_force(service: &Service) -> &[String] {
    match &service.spec {
        None => &[],
        Some(spec) if spec.task_networks.is_empty() => &spec.networks,
        Some(spec) => &spec.task_networks,
    }
}

impl Object for Service {
    kind_with_metadata!("Service");

    fn is_marked(&self) -> bool {
        self.mark().is_some()
    }

    fn check(&self) -> Result<(), Fault> {
        let lists = self.spec.iter().flat_map(|spec| {
            [
                ("networks", &spec.networks),
                ("taskNetworks", &spec.task_networks),
            ]
        });
        for (list, names) in lists {
            for (index, name) in names.iter().enumerate() {
                Fault::check_name(format!("spec.{list}[{index}]"), name)?;
            }
        }
        Ok(())
    }
}

impl Appliable for Service {
    type Manifest = Manifest;

    // After networks.
    const LAYER: u8 = 1;

    fn references(&self) -> Vec<Reference> {
        let names = networks_in_force(self).iter();
        names
            .filter_map(|name| Reference::to(Network::KIND, name))
            .collect()
    }

    fn read(document: &mut Fields<'_, '_>) -> Manifest {
        let mut manifest = Manifest::default();
        document.object("spec", |spec| {
            let mut names = |list: &'static str| {
                let names = spec.distinct(list, str::parse::<Name>)?;
                if names.len() > MOST_NETWORKS {
                    spec.fault(list, format!("more than {MOST_NETWORKS} networks"));
                }
                Some(names)
            };
            manifest.networks = names("networks");
            manifest.task_networks = names("taskNetworks");
        });
        mark::check(document);
        manifest
    }

    fn create(_name: &str, manifest: &Manifest) -> Result<Self, Rejection> {
        Ok(Self {
            metadata: None,
            spec: Some(ServiceSpec {
                networks: texts(manifest.networks.as_deref()),
                task_networks: texts(manifest.task_networks.as_deref()),
            }),
            status: Some(ServiceStatus::default()),
        })
    }

    fn update(&mut self, name: &str, manifest: &Manifest) -> Result<(), Rejection> {
        let spec = self.spec.get_or_insert_default();
        let mut faults = Vec::new();
        for (list, stored, given) in [
            ("networks", &mut spec.networks, &manifest.networks),
            ("taskNetworks", &mut spec.task_networks, &manifest.task_networks),
        ] {
            if given.is_none() && !stored.is_empty() {
                let message = format!(
                    "missing: service {name} has {}, and leaving the list out would empty it (write [] for that)",
                    stored.join(", ")
                );
                faults.push(Fault::new(format!("spec.{list}"), message));
            }
            *stored = texts(given.as_deref());
        }
        match faults.is_empty() {
            true => Ok(()),
            false => Err(Rejection::Faulty(faults)),
        }
    }

    fn same_spec(&self, other: &Self) -> bool {
        self.spec == other.spec
    }
}

fn texts(names: Option<&[Name]>) -> Vec<String> {
    names.unwrap_or_default().iter().map(Name::to_string).collect()
}

/// The document of a service. `blockers` hold it back if it is marked.
pub fn to_document(service: &Service, mod_revision: Revision, blockers: &[String]) -> Value {
    let spec = service.spec.clone().unwrap_or_default();
    let parts = json!({
        "spec": {"networks": spec.networks, "taskNetworks": spec.task_networks},
        "status": mark::status(service.mark(), blockers),
    });
    document(Service::KIND, service.metadata.as_ref(), mod_revision, parts)
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::store::object::change::{Of, Part, Request, Step, StoredValue};
    use crate::store::object::decode;

    fn plan(document: &Value, stored: Option<&Service>) -> Result<Step, Rejection> {
        let request = Request {
            part: Part::Spec,
            now: jiff::Timestamp::UNIX_EPOCH,
            uid: "u".to_owned(),
        };
        let value = stored.map(Message::encode_to_vec);
        let stored = value.as_deref().map(|value| StoredValue {
            value,
            mod_revision: Revision(7),
        });
        Of::<Service>::CODEC.plan(document, stored, &request)
    }

    fn document_of(spec: Value) -> Value {
        json!({"apiVersion": "quorate.dev/v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec})
    }

    fn created(spec: Value) -> Service {
        match plan(&document_of(spec), None) {
            Ok(Step::Create(value)) => decode("web", &value).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn task_networks_hide_the_services_own() {
        let service = created(json!({"networks": ["front"]}));
        assert_eq!(networks_in_force(&service), ["front"]);
        let service = created(json!({"networks": ["front"], "taskNetworks": ["back"]}));
        assert_eq!(networks_in_force(&service), ["back"]);
    }

    #[test]
    fn a_list_that_comes_into_force_by_emptying_the_other_is_a_new_reference() {
        let before = created(json!({"networks": ["front"], "taskNetworks": ["back"]}));
        let Ok(Step::Configure(after)) = plan(
            &document_of(json!({"networks": ["front"], "taskNetworks": []})),
            Some(&before),
        ) else {
            panic!("nothing is written");
        };
        let new = Of::<Service>::CODEC.new_references("web", Some(&before.encode_to_vec()), &after);
        let front = Reference {
            kind: "Network",
            name: "front".parse().unwrap(),
        };
        assert_eq!(new, [front]);
    }

    #[test]
    fn every_bad_name_and_every_list_left_out_is_reported() {
        let error = plan(
            &document_of(json!({"networks": ["a", "B", "a", 1], "nets": []})),
            None,
        );
        let error = error.unwrap_err().to_string();
        for path in [
            "spec.networks[1]: \"B\"",
            "spec.networks[2]: occurs twice",
            "spec.networks[3]: expected a string",
            "spec.nets: unknown field",
        ] {
            assert!(error.contains(path), "{error}");
        }
        let before = created(json!({"networks": ["front"], "taskNetworks": ["back"]}));
        let error = plan(&document_of(json!({})), Some(&before))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("spec.networks: missing") && error.contains("spec.taskNetworks: missing"),
            "{error}"
        );
    }

    #[test]
    fn a_stored_service_with_a_name_that_no_network_can_have_is_malformed() {
        let mut service = created(json!({}));
        service
            .spec
            .get_or_insert_default()
            .task_networks
            .push("a/b".to_owned());
        let error = decode::<Service>("web", &service.encode_to_vec()).unwrap_err();
        assert!(error.to_string().starts_with("spec.taskNetworks[0]: "), "{error}");
    }
}
