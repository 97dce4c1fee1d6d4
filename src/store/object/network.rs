//! The Network kind: nothing but a name that services refer to.

use serde_json::{Map, Value, json};

use super::change::{Appliable, Rejection};
use super::fields::{Fault, Fields};
use super::mark::{self, Marked};
use super::{Object, document};
use crate::etcd::Revision;
use crate::proto::{Metadata, Network, NetworkSpec, NetworkStatus};

impl Object for Network {
    const KIND: &'static str = "Network";

    fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    fn metadata_mut(&mut self) -> &mut Metadata {
        self.metadata.get_or_insert_default()
    }

    fn is_marked(&self) -> bool {
        self.mark().is_some()
    }

    fn check(&self) -> Result<(), Fault> {
        Ok(())
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

    fn same_report(&self, _other: &Self) -> bool {
        true
    }
}

/// The document of a network. `blockers` are what holds it back, if it is marked.
pub fn to_document(network: &Network, mod_revision: Revision, blockers: &[String]) -> Value {
    let parts = Map::from_iter([
        ("spec".to_owned(), json!({})),
        ("status".to_owned(), mark::status(network.mark(), blockers)),
    ]);
    document(Network::KIND, network.metadata.as_ref(), mod_revision, parts)
}
