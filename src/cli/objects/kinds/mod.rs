//! The kinds: what `get`, `describe`, `apply` and `delete` know of each. A further kind is a file here and a line in
//! [`registry::KINDS`].

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde_json::Value;

use super::delete::Deletable;
use super::view::View;
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::{Column, one_line, or_none, pairs};
use crate::etcd::{KeyRange, KeyValue};
use crate::proto::Metadata;
use crate::store::object::change::Codec;
use crate::store::object::{Object, decode, malformed_document, time};
use crate::store::{Id, Keys, Store};

mod members;
mod networks;
mod nodes;
mod plugins;
mod publications;
pub mod registry;
mod replicas;
mod secrets;
mod services;
pub mod target;
mod tasks;
mod tombstones;
mod volumes;

/// What a kind is called.
#[derive(Debug)]
pub struct Words {
    /// `Node`, as in a document's `kind`.
    pub kind: &'static str,
    /// `node`, as in `node/n1`.
    pub singular: &'static str,
    /// `nodes`.
    pub plural: &'static str,
    /// Shorter ones.
    pub short: &'static [&'static str],
}

/// A kind of object, as the commands see it.
pub trait Kind: Sync {
    /// What it is called.
    fn words(&self) -> &'static Words;

    /// Whether its objects are addressed as `OWNER/NAME`.
    fn is_owned(&self) -> bool {
        false
    }

    /// The ranges that show all objects of this kind, or this one.
    fn ranges(&self, keys: &Keys, id: Option<&Id>) -> Vec<KeyRange>;

    /// The key of this object.
    fn key(&self, keys: &Keys, id: &Id) -> Vec<u8>;

    /// The name in a key, `OWNER/NAME` where it is addressed so, if it is the key of an object of this kind.
    fn name<'k>(&self, keys: &Keys, key: &'k [u8]) -> Option<&'k str>;

    /// The key of the object that a person calls so, where there are other ways to call it than its name.
    fn locate(&self, view: &View, id: &Id) -> Vec<u8> {
        self.key(&view.keys, id)
    }

    /// Whether it is shown with what etcd says of its members: see [`View::members`].
    fn looks_at_members(&self) -> bool {
        false
    }

    /// Which objects a key of the ranges is about: by default the one whose key it is.
    fn concerns(&self, _keys: &Keys, key: &[u8]) -> Concerns {
        Concerns::One(key.to_vec())
    }

    /// The columns of the table.
    fn columns(&self) -> &'static [Column];

    /// An object as it is listed.
    fn show(&self, view: &View, name: &str, stored: &KeyValue, now: Timestamp) -> Shown;

    /// An object in full and in words.
    fn describe(&self, view: &View, name: &str, stored: &KeyValue, now: Timestamp) -> String;

    /// How `apply` writes it, if it does.
    fn applied(&self) -> Option<&'static dyn Codec> {
        None
    }

    /// How `delete` deletes it, if it does.
    fn deleted(&self) -> Option<&'static dyn Deletable> {
        None
    }
}

impl dyn Kind {
    /// The ranges that show these objects, or all of the kind if none is named.
    pub fn ranges_of(&self, keys: &Keys, ids: &[Id]) -> Vec<KeyRange> {
        if ids.is_empty() {
            return self.ranges(keys, None);
        }
        let ranges = ids.iter().flat_map(|id| self.ranges(keys, Some(id)));
        // Objects share ranges that do not concern one object, such as the candidates of the election.
        ranges.fold(Vec::new(), |mut distinct, range| {
            if !distinct.contains(&range) {
                distinct.push(range);
            }
            distinct
        })
    }

    /// Reads what is shown of these objects, or of all.
    ///
    /// # Errors
    /// 1 if etcd did not answer.
    pub async fn read(&self, store: &Store, ids: &[Id]) -> Result<View, Failure> {
        let mut view = View::read(store, &self.ranges_of(&store.keys, ids)).await?;
        if self.looks_at_members() {
            view.look_at_members(store).await?;
        }
        Ok(view)
    }

    /// The named objects of a view, or all of the kind if none is named: their keys and names. Then the ids that do not
    /// exist.
    pub fn select<'v, 'i>(
        &self,
        view: &'v View,
        ids: &'i [Id],
    ) -> (Vec<(&'v str, &'v KeyValue)>, Vec<&'i Id>) {
        let named = |kv: &'v KeyValue| Some((self.name(&view.keys, &kv.key)?, kv));
        if ids.is_empty() {
            return (view.iter().filter_map(named).collect(), Vec::new());
        }
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for id in ids {
            match view.get(&self.locate(view, id)).and_then(named) {
                Some(object) => found.push(object),
                None => missing.push(id),
            }
        }
        (found, missing)
    }

    /// The failure of a command that names objects that do not exist.
    pub fn not_found(&self, ids: &[&Id], keys: &Keys) -> Failure {
        let words = self.words();
        let ids: Vec<String> = ids.iter().map(|id| format!("{}/{id}", words.singular)).collect();
        Failure::new(Exit::NotFound, format!("{} not found", ids.join(", "))).hint(format!(
            "quorate get {} lists what there is below {}",
            words.plural,
            keys.prefix()
        ))
    }

    /// What can be done about an object whose stored value cannot be read.
    pub fn mending(&self) -> &'static str {
        match self.deleted() {
            Some(_) => "delete it with --force and apply it again, or have its writer mend it",
            None => "only its writer can mend it",
        }
    }
}

impl fmt::Debug for dyn Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words().kind)
    }
}

/// Which objects a change is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Concerns {
    /// The one with this key.
    One(Vec<u8>),
    /// Every one, or it cannot be said which.
    All,
    /// None.
    Nothing,
}

/// An object as it is listed.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Its labels, for selectors.
    pub labels: BTreeMap<String, String>,
    /// What `-o json` and `-o yaml` show.
    pub document: Value,
    /// A cell for each column.
    pub cells: Vec<String>,
    /// Why the stored value is not shown as what it should be.
    pub malformed: Option<String>,
}

impl Shown {
    /// A stored object: its name, then the cells and the document that `own` makes of it.
    fn decoded<O: Object>(
        columns: &[Column],
        name: &str,
        stored: &KeyValue,
        own: impl FnOnce(&O, &Metadata) -> (Vec<String>, Value),
    ) -> Self {
        let object: O = match decode(name, &stored.value) {
            Ok(object) => object,
            Err(malformed) => {
                let document = malformed_document(O::KIND, name, stored.mod_revision, &malformed);
                return Self::malformed(document, name, columns, malformed.to_string());
            }
        };
        let metadata = object.metadata().cloned().unwrap_or_default();
        let (own, document) = own(&object, &metadata);
        let mut cells = vec![one_line(name)];
        cells.extend(own);
        Self {
            labels: metadata.labels,
            document,
            cells,
            malformed: None,
        }
    }

    /// [`Self::decoded`] of most kinds, whose last columns are age, uid and labels.
    fn object<O: Object>(
        columns: &[Column],
        name: &str,
        stored: &KeyValue,
        now: Timestamp,
        own: impl FnOnce(&O) -> (Vec<String>, Value),
    ) -> Self {
        Self::decoded(columns, name, stored, |object, metadata| {
            let (mut cells, document) = own(object);
            cells.push(age_cell(metadata.creation_time.as_ref(), now));
            cells.extend(identity_cells(metadata));
            (cells, document)
        })
    }

    /// What stands in the place of an object whose stored value is malformed (INV-8).
    fn malformed(document: Value, name: &str, columns: &[Column], malformed: String) -> Self {
        let mut cells = vec![one_line(name), "<malformed>".to_owned()];
        cells.resize(columns.len(), String::new());
        Self {
            labels: BTreeMap::new(),
            document,
            cells,
            malformed: Some(malformed),
        }
    }
}

/// How long ago that was.
fn age_cell(since: Option<&prost_types::Timestamp>, now: Timestamp) -> String {
    time::from_proto(since).map_or_else(|| "<unknown>".to_owned(), |since| time::age(since, now))
}

/// Uid and labels.
fn identity_cells(metadata: &Metadata) -> [String; 2] {
    [
        one_line(or_none(&metadata.uid)),
        one_line(&pairs(&metadata.labels)),
    ]
}
