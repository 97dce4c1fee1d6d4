//! The Network kind: a name that services refer to.

use serde_json::{Value, json};

use super::Object;
use super::change::{Appliable, Rejection};
use super::document::document;
use super::fields::Fields;
use super::mark::{self, Marked};
use crate::etcd::Revision;
use crate::proto::{Network, NetworkSpec, NetworkStatus};

impl Object for Network {
    kind_with_metadata!("Network");

    fn is_marked(&self) -> bool {
        self.mark().is_some()
    }
}

impl Appliable for Network {
    type Manifest = ();

    fn read(document: &mut Fields<'_, '_>) {
        document.object("spec", |_| ());
        mark::check(document);
    }

    fn create(_name: &str, (): &()) -> Result<Self, Rejection> {
        Ok(Self {
            metadata: None,
            spec: Some(NetworkSpec {}),
            status: Some(NetworkStatus::default()),
        })
    }

    fn update(&mut self, _name: &str, (): &()) -> Result<(), Rejection> {
        Ok(())
    }

    fn report(&mut self, (): &()) {}

    fn same_spec(&self, other: &Self) -> bool {
        self.spec == other.spec
    }
}

/// The document of a network. `blockers` hold it back if it is marked.
pub fn to_document(network: &Network, mod_revision: Revision, blockers: &[String]) -> Value {
    let parts = json!({"spec": {}, "status": mark::status(network.mark(), blockers)});
    document(Network::KIND, network.metadata.as_ref(), mod_revision, parts)
}
