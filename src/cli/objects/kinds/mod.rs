//! The kinds: what `get`, `describe`, `apply` and `delete` know of each. A new kind is a file here and a line in
//! [`registry::KINDS`].

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde_json::Value;

use super::delete::Deletable;
use super::pending;
use super::view::{Item, View};
use crate::cli::exit::Failure;
use crate::cli::output::{Description, UNKNOWN, one_line, or_none, pairs, yes_no};
use crate::etcd::{KeyRange, Revision};
use crate::proto::{Metadata, Node, Secret};
use crate::store::keys::KeySpace;
use crate::store::object::change::Codec;
use crate::store::object::mark::{self, Marked};
use crate::store::object::{Malformed, Object, document, time};
use crate::store::{Id, Keys, Name, Store};

mod certificates;
mod members;
mod networks;
mod nodes;
mod plugins;
mod publications;
pub mod registry;
mod replicas;
pub mod resources;
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
    /// `nodes`, as in `quorate get nodes`.
    pub plural: &'static str,
    /// Abbreviations, such as `no`.
    pub short: &'static [&'static str],
}

impl Words {
    const fn new(
        kind: &'static str,
        singular: &'static str,
        plural: &'static str,
        short: &'static [&'static str],
    ) -> Self {
        Self {
            kind,
            singular,
            plural,
            short,
        }
    }
}

/// A kind of object, as the commands see it.
pub struct Kind {
    /// What it is called.
    pub words: Words,
    /// Where its objects are stored.
    pub space: KeySpace,
    /// The titles of the columns that its table always has, in capitals. The first is the name.
    pub columns: &'static [&'static str],
    /// The titles of the columns after these, which only `-o wide` shows.
    pub wide_columns: &'static [&'static str],
    /// An object in a table and as a document.
    pub show: fn(&Item<'_>) -> Result<Shown, Malformed>,
    /// An object in words, after its name and kind.
    pub describe: fn(&Item<'_>, &mut Description),
    /// How `delete` deletes an object, or a hint at what ends it instead.
    pub deleted: Result<&'static Deletable, &'static str>,
    /// How `apply` writes an object, if it does.
    pub applied: Option<&'static dyn Codec>,
    /// The form of ids that contain an owner, such as `SERVICE/NAME`.
    pub owned: Option<&'static str>,
    /// What an object is called that its key names otherwise. Such a kind is only listed as a whole.
    pub title: Option<fn(&str) -> String>,
    /// Whether its objects are shown with what etcd reports of its members: see [`View::membership`].
    pub shows_members: bool,
    /// The ranges that showing one object, or all, needs besides the objects themselves.
    pub beside: fn(&Keys, Option<&Name>) -> Vec<KeyRange>,
    /// Further ranges that the descriptions of the objects of a view need, and whose keys follow from the objects. `true`: all objects
    /// are described.
    pub described_with: fn(&View, bool) -> Vec<KeyRange>,
    /// Which objects a change of a key in the ranges beside affects.
    pub affected: fn(&Keys, &[u8]) -> Affected,
    /// The key of an object that a person calls by something else than its name.
    pub alias: fn(&View, &Id) -> Option<Vec<u8>>,
}

/// Which objects a change affects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Affected {
    /// The one with this key.
    One(Vec<u8>),
    /// Any of them.
    All,
    /// None.
    Nothing,
}

impl Affected {
    /// The one that the first part of an id names, which another key has: `web` in `web/1`.
    fn named(id: Option<&str>, key: impl FnOnce(&Name) -> Vec<u8>) -> Self {
        let name = id.and_then(|id| id.split('/').next()?.parse().ok());
        name.map_or(Self::Nothing, |name| Self::One(key(&name)))
    }
}

/// Objects that a command reads, or writes, at once: one after the other, each would wait for etcd by itself.
pub const READ_AT_ONCE: usize = 16;

/// Keys that are read for each object that is followed, rather than its own alone: so many cost about as much as a stream.
const SHOWN_FOR_ONE: u64 = 64;

/// Whether one range of so many keys is followed at less cost than a range for each of these objects.
fn is_worthwhile(keys: u64, objects: usize) -> bool {
    let objects = u64::try_from(objects).unwrap_or(u64::MAX);
    keys <= objects.saturating_mul(SHOWN_FOR_ONE)
}

impl Kind {
    /// How many objects of the kind a command writes at once. Whether a node may be demoted or deleted depends on what became of
    /// the others.
    pub fn written_at_once(&self) -> usize {
        match self.words.kind == Node::KIND {
            true => 1,
            false => READ_AT_ONCE,
        }
    }

    /// A kind that is not applied and is shown from its own key alone.
    const fn new(
        words: Words,
        space: KeySpace,
        columns: &'static [&'static str],
        wide_columns: &'static [&'static str],
        show: fn(&Item<'_>) -> Result<Shown, Malformed>,
        describe: fn(&Item<'_>, &mut Description),
        deleted: Result<&'static Deletable, &'static str>,
    ) -> Self {
        Self {
            words,
            space,
            columns,
            wide_columns,
            show,
            describe,
            deleted,
            applied: None,
            owned: None,
            title: None,
            shows_members: false,
            beside: |_, _| Vec::new(),
            described_with: |_, _| Vec::new(),
            affected: |_, _| Affected::Nothing,
            alias: |_, _| None,
        }
    }

    /// The key of the object that a person calls `id`.
    pub fn key(&self, view: &View, id: &Id) -> Vec<u8> {
        let key = self.space.key(&view.keys, id);
        match view.get(&key) {
            Some(_) => key,
            None => (self.alias)(view, id).unwrap_or(key),
        }
    }

    /// The name in a key, if it is the key of an object of this kind.
    pub fn name<'k>(&self, keys: &Keys, key: &'k [u8]) -> Option<&'k str> {
        self.space.name(keys, key)
    }

    /// The ranges that show these objects, or all of the kind if none is named.
    pub fn ranges(&self, keys: &Keys, ids: &[Id]) -> Vec<KeyRange> {
        // How far a member lags is seen beside the others.
        if ids.is_empty() || self.shows_members {
            return [vec![self.space.all(keys)], (self.beside)(keys, None)].concat();
        }
        let mut ranges = Vec::new();
        for id in ids {
            let own = KeyRange::key(self.space.key(keys, id));
            // Objects share ranges that do not depend on the name, such as the candidates of the election.
            for range in [vec![own], (self.beside)(keys, Some(&id.name))].concat() {
                if !ranges.contains(&range) {
                    ranges.push(range);
                }
            }
        }
        ranges
    }

    /// Ranges that show these objects, and may show others as well. However many are named, the ranges are as few as for one, and
    /// none shows a key of another.
    fn covering_ranges(&self, keys: &Keys, ids: &[Id]) -> Vec<KeyRange> {
        // Of each object, the range that has the same place among its ranges.
        let mut covering: Vec<KeyRange> = Vec::new();
        for id in ids {
            let own = KeyRange::key(self.space.key(keys, id));
            let of_one = [vec![own], (self.beside)(keys, Some(&id.name))].concat();
            for (place, range) in of_one.into_iter().enumerate() {
                match covering.get_mut(place) {
                    Some(covered) => *covered = covered.clone().spanning(range),
                    None => covering.push(range),
                }
            }
        }
        covering.sort_by(|one, other| one.start().cmp(other.start()));
        let mut apart: Vec<KeyRange> = Vec::new();
        for range in covering {
            // A key that two streams bring would be seen as one has it, and then as the other had it before.
            if let Some(last) = apart.pop_if(|last| last.contains(range.start())) {
                apart.push(last.spanning(range));
            } else {
                apart.push(range);
            }
        }
        apart
    }

    /// The ranges to follow for these objects. Each costs etcd a request to read it, and a stream to watch it: those of many objects
    /// are covered by a few, unless that would show many times as much, or etcd lets this client read no more than was asked for.
    pub async fn ranges_to_follow(&self, store: &Store, ids: &[Id]) -> Vec<KeyRange> {
        let each = self.ranges(&store.keys, ids);
        // The values of secrets are read for those alone who asked for them.
        if ids.len() <= READ_AT_ONCE || self.shows_members || self.words.kind == Secret::KIND {
            return each;
        }
        let covering = self.covering_ranges(&store.keys, ids);
        let mut are_few = true;
        for range in &covering {
            if are_few && !each.contains(range) {
                // Where etcd does not answer, the first read of the others says so.
                let counted = store.etcd.count(range).await;
                are_few = counted.is_ok_and(|(keys, _)| is_worthwhile(keys, ids.len()));
            }
        }
        if are_few { covering } else { each }
    }

    /// Which objects a change of a key in [`Kind::ranges`] affects.
    pub fn affected_objects(&self, keys: &Keys, key: &[u8]) -> Affected {
        match self.name(keys, key) {
            Some(_) => Affected::One(key.to_vec()),
            None => (self.affected)(keys, key),
        }
    }

    /// Reads what is shown of these objects, or of all.
    ///
    /// # Errors
    /// 1 if etcd did not answer.
    pub async fn read(&self, store: &Store, ids: &[Id]) -> Result<View, Failure> {
        let mut view = View::read(store, &self.ranges(&store.keys, ids)).await?;
        if self.shows_members {
            view.observe_members(store).await?;
        }
        Ok(view)
    }

    /// Reads what is described of these objects, or of all.
    ///
    /// # Errors
    /// 1 if etcd did not answer.
    pub async fn read_to_describe(&self, store: &Store, ids: &[Id]) -> Result<View, Failure> {
        let mut view = self.read(store, ids).await?;
        let further = (self.described_with)(&view, ids.is_empty());
        view.read_further(store, &further).await?;
        Ok(view)
    }

    /// The object with this key.
    pub fn item<'v>(&self, view: &'v View, key: &[u8], now: Timestamp) -> Option<Item<'v>> {
        let stored = view.get(key)?;
        let name = self.name(&view.keys, &stored.key)?;
        Some(Item {
            view,
            name,
            stored,
            now,
        })
    }

    /// The named objects of a view, or all of the kind if none is named; then the ids of those that do not exist.
    pub fn select<'v, 'i>(
        &self,
        view: &'v View,
        ids: &'i [Id],
        now: Timestamp,
    ) -> (Vec<Item<'v>>, Vec<&'i Id>) {
        if ids.is_empty() {
            let all = view.iter().filter_map(|kv| self.item(view, &kv.key, now));
            return (all.collect(), Vec::new());
        }
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for id in ids {
            match self.item(view, &self.key(view, id), now) {
                Some(item) => found.push(item),
                None => missing.push(id),
            }
        }
        (found, missing)
    }

    /// An object as it is listed. A malformed value is shown with the reason (INV-8).
    pub fn show(&self, item: &Item<'_>) -> Shown {
        let name = one_line(&self.title(item.name));
        match (self.show)(item) {
            Ok(mut shown) => {
                let cells = shown.cells.iter().map(|cell| one_line(or_none(cell)));
                shown.cells = std::iter::once(name).chain(cells).collect();
                shown
            }
            Err(malformed) => {
                let mut cells = vec![name, "<malformed>".to_owned()];
                cells.resize(self.columns.len() + self.wide_columns.len(), String::new());
                Shown {
                    labels: BTreeMap::new(),
                    document: document::malformed(
                        self.words.kind,
                        item.name,
                        item.stored.mod_revision,
                        &malformed,
                    ),
                    cells,
                    malformed: Some(malformed.to_string()),
                }
            }
        }
    }

    fn title(&self, name: &str) -> String {
        self.title.map_or_else(|| name.to_owned(), |title| title(name))
    }

    /// How an object is named outside the list of its kind: `node/n1`.
    pub fn full_name(&self, name: &str) -> String {
        match self.title {
            Some(_) => one_line(&self.title(name)),
            None => format!("{}/{}", self.words.singular, one_line(name)),
        }
    }

    /// An object in full and in words.
    pub fn describe(&self, item: &Item<'_>) -> String {
        let mut description = Description::default();
        description
            .field("Name", self.title(item.name))
            .field("Kind", self.words.kind);
        (self.describe)(item, &mut description);
        description.render()
    }

    /// The failure of a command that names objects that do not exist.
    pub fn not_found(&self, ids: &[&Id], keys: &Keys) -> Failure {
        let ids: Vec<String> = ids
            .iter()
            .map(|id| format!("{}/{id}", self.words.singular))
            .collect();
        Failure::not_found(format!("{} not found", ids.join(", "))).hint(format!(
            "quorate get {} lists what there is below {}",
            self.words.plural,
            keys.prefix()
        ))
    }

    /// A hint at how an object whose stored value cannot be read is repaired.
    pub fn repair(&self) -> &'static str {
        match self.deleted {
            Ok(_) => "delete it with --force and apply it again, or have its writer repair it",
            Err(_) => "only its writer can repair it",
        }
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words.kind)
    }
}

/// An object as it is listed.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Its labels, for selectors.
    pub labels: BTreeMap<String, String>,
    /// What `-o json` and `-o yaml` show.
    pub document: Value,
    /// A cell for each column; without the name, and still as they are stored, where a kind returns them.
    pub cells: Vec<String>,
    /// Why the stored value cannot be read.
    pub malformed: Option<String>,
}

impl Shown {
    /// An object of a kind with columns of its own.
    fn new(labels: BTreeMap<String, String>, cells: Vec<String>, document: Value) -> Self {
        Self {
            labels,
            document,
            cells,
            malformed: None,
        }
    }

    /// An object of a kind whose last columns are age, uid and labels.
    fn object<O: Object>(object: &O, now: Timestamp, mut cells: Vec<String>, document: Value) -> Self {
        let metadata = object.metadata().cloned().unwrap_or_default();
        cells.push(age(metadata.creation_time.as_ref(), now));
        cells.extend(identity(&metadata));
        Self::new(metadata.labels, cells, document)
    }

    /// An object of a kind that is deleted by a mark, whose columns before these are the mark and the blockers. `users` hold
    /// it back once it is marked.
    fn marked<O: Marked>(
        object: &O,
        item: &Item<'_>,
        mut cells: Vec<String>,
        users: &[String],
        document: fn(&O, Revision, &[String]) -> Value,
    ) -> Self {
        let blockers = mark::blockers(object, users);
        cells.push(yes_no(object.is_marked()).to_owned());
        cells.push(pending::cell(blockers));
        let document = document(object, item.revision(), blockers);
        Self::object(object, item.now, cells, document)
    }
}

/// The cell of a time: how long ago it was.
fn age(then: Option<&prost_types::Timestamp>, now: Timestamp) -> String {
    time::from_proto(then).map_or_else(|| UNKNOWN.to_owned(), |then| time::age(then, now))
}

/// The cells of uid and labels.
fn identity(metadata: &Metadata) -> [String; 2] {
    [metadata.uid.clone(), pairs(&metadata.labels)]
}
