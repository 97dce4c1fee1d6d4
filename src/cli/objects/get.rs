//! `quorate get`: prints objects as a table or as documents, once or as they change.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::kinds::target::{Target, TargetParser};
use super::kinds::{Affected, Kind, Shown};
use super::view::{Item, LiveView, View};
use crate::cli::connection::{EtcdArgs, connect, connect_to_show};
use crate::cli::exit::Failure;
use crate::cli::outage;
use crate::cli::output::{Format, Reader, Table, note, one_line, print, warn};
use crate::store::object::document::with_header;
use crate::store::object::label::Selector;
use crate::store::object::text::{to_json, to_yaml};
use crate::store::{Id, Store};

/// How often `--watch` asks members how they are.
const MEMBERS_INTERVAL: Duration = Duration::from_secs(2);

/// Arguments of `quorate get`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quorate get nodes
  quorate get node n1 -o yaml
  quorate get nodes -l 'zone=a,!retired' -o name
  quorate get replicas --watch
  quorate get members -o wide           # etcd's own, asked one by one
  quorate get resources                 # the Kubernetes objects of the bundle, each with its outcome

A stored value that cannot be read is listed as <malformed>, with a warning on standard error. If the object was named, \
the exit code is 1.")]
pub struct GetArgs {
    /// What to list; KIND/NAME names one object
    #[arg(value_name = "KIND[/NAME]", value_parser = TargetParser::ALL)]
    target: Target,

    /// Names of the objects; all of the kind if none is given
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// How to show them
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,

    /// Only objects whose labels match all of: KEY=VALUE, KEY!=VALUE, KEY, !KEY
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = str::parse::<Selector>)]
    selector: Option<Selector>,

    /// Leave out the line of column titles
    #[arg(long)]
    no_headers: bool,

    /// Keep printing objects that are added, modified and deleted, until interrupted
    #[arg(short, long)]
    watch: bool,
}

impl GetArgs {
    /// All objects of a kind.
    pub fn all(kind: &'static Kind, output: Format) -> Self {
        Self {
            target: Target::all(kind),
            names: Vec::new(),
            output,
            selector: None,
            no_headers: false,
            watch: false,
        }
    }
}

/// Runs the command.
///
/// # Errors
/// 3 if a named object does not exist, 1 if one cannot be read.
pub async fn run(args: GetArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let (kind, ids) = args.target.resolve(&args.names).map_err(Failure::usage)?;
    if !ids.is_empty() && args.selector.is_some() {
        return Err(Failure::usage("--selector cannot be used with names of objects"));
    }
    let selection = Selection {
        kind,
        ids,
        selector: args.selector.unwrap_or_default(),
    };
    let store = match args.watch {
        true => connect(etcd).await?,
        false => connect_to_show(etcd).await?,
    };
    let mut printer = Printer {
        kind,
        format: args.output,
        headers: !args.no_headers,
        table: Table::default(),
    };
    match args.watch {
        true => {
            let watching = watch(&store, &selection, &mut printer);
            outage::following(&store.etcd, watching).await?
        }
        false => list(&store, &selection, &mut printer).await,
    }
}

/// The objects that are asked for.
struct Selection {
    kind: &'static Kind,
    ids: Vec<Id>,
    selector: Selector,
}

/// An object's name, and what is shown of it.
type Named = (String, Shown);

impl Selection {
    /// An object as it is shown, if the selector matches its labels.
    fn show(&self, item: &Item<'_>) -> Option<Named> {
        let shown = self.kind.show(item);
        self.selector
            .matches(&shown.labels)
            .then(|| (item.name.to_owned(), shown))
    }

    /// The object with this key, if it exists and is asked for.
    fn pick(&self, view: &View, key: &[u8], now: Timestamp) -> Option<Named> {
        let asked = self.ids.is_empty() || self.ids.iter().any(|id| self.kind.key(view, id) == key);
        let item = self.kind.item(view, key, now).filter(|_| asked)?;
        self.show(&item)
    }
}

async fn list(store: &Store, selection: &Selection, printer: &mut Printer) -> Result<(), Failure> {
    let Selection { kind, ids, .. } = selection;
    let view = kind.read(store, ids).await?;
    let (found, missing) = kind.select(&view, ids, Timestamp::now());
    let shown: Vec<Named> = found.iter().filter_map(|item| selection.show(item)).collect();
    if shown.is_empty() && missing.is_empty() {
        note(format_args!(
            "no {} found below {}",
            kind.words.plural,
            store.keys.prefix()
        ));
    }
    // Documents are one object or one list, even an empty one; a table of nothing is empty.
    let single = ids.len() == 1;
    if !(single && shown.is_empty()) {
        printer.list(&shown, single, view.revision().0)?;
    }
    if !missing.is_empty() {
        return Err(kind.not_found(&missing, &store.keys));
    }
    let malformed = shown.iter().filter(|(_, shown)| shown.malformed.is_some());
    let malformed: Vec<String> = malformed.map(|(name, _)| printer.id(name)).collect();
    if ids.is_empty() || malformed.is_empty() {
        return Ok(());
    }
    let malformed = malformed.join(", ");
    Err(Failure::failed(format!("{malformed} cannot be read (see the warning)")).hint(kind.repair()))
}

async fn watch(store: &Store, selection: &Selection, printer: &mut Printer) -> Result<(), Failure> {
    let kind = selection.kind;
    let ranges = kind.ranges(&store.keys, &selection.ids);
    let mut live = LiveView::new(&store.etcd, store.keys.clone(), ranges);
    let mut last: BTreeMap<Vec<u8>, Named> = BTreeMap::new();
    loop {
        let (mut all, changes) = match kind.shows_members {
            false => (false, live.changes().await),
            // etcd does not report that a member falls ill: every member is asked again and again.
            true => {
                let changes = tokio::time::timeout(MEMBERS_INTERVAL, live.changes()).await;
                if let Err(failure) = live.view.observe_members(store).await {
                    warn(&format!("showing what was seen last: {failure}"));
                }
                (true, changes.unwrap_or_default())
            }
        };
        let mut affected = BTreeSet::new();
        for key in changes {
            match kind.affected_objects(&store.keys, &key) {
                Affected::One(key) => _ = affected.insert(key),
                Affected::All => all = true,
                Affected::Nothing => {}
            }
        }
        if all {
            affected.extend(last.keys().cloned());
            affected.extend(live.view.iter().map(|kv| kv.key.clone()));
        }
        let now = Timestamp::now();
        let mut events = Vec::new();
        for key in affected {
            let current = selection.pick(&live.view, &key, now);
            let event = match (last.get(&key), &current) {
                (None, Some(_)) => "ADDED",
                (Some((_, before)), Some((_, after))) if before.document != after.document => "MODIFIED",
                (Some(_), None) => "DELETED",
                (Some(_), Some(_)) | (None, None) => continue,
            };
            let before = match current.clone() {
                Some(current) => last.insert(key, current),
                None => last.remove(&key),
            };
            events.extend(current.or(before).map(|object| (event, object)));
        }
        if printer.events(&events)? == Reader::Gone {
            return Ok(());
        }
    }
}

/// Prints objects in the requested format.
struct Printer {
    kind: &'static Kind,
    format: Format,
    headers: bool,
    table: Table,
}

impl Printer {
    fn list(&mut self, shown: &[Named], single: bool, revision: i64) -> Result<(), Failure> {
        self.warn_of_malformed(shown.iter());
        let text = match self.format {
            Format::Table | Format::Wide => {
                self.table(None, shown.iter().map(|(_, shown)| shown.cells.clone()))
            }
            Format::Name => shown
                .iter()
                .map(|(name, _)| format!("{}\n", self.id(name)))
                .collect(),
            Format::Json | Format::Yaml => {
                let documents = shown.iter().map(|(_, shown)| &shown.document);
                match (single, documents.clone().next()) {
                    (true, Some(only)) => self.document(only),
                    _ => self.document(&list_document(documents, revision)),
                }
            }
        };
        print(&text).map(drop)
    }

    fn events(&mut self, events: &[(&'static str, Named)]) -> Result<Reader, Failure> {
        self.warn_of_malformed(events.iter().map(|(_, shown)| shown));
        let text = match self.format {
            Format::Table | Format::Wide => {
                let row =
                    |(event, (_, shown)): &(&str, Named)| [&[(*event).to_owned()], &shown.cells[..]].concat();
                self.table(Some("EVENT"), events.iter().map(row))
            }
            Format::Name => events
                .iter()
                .map(|(event, (name, _))| format!("{} {}\n", self.id(name), event.to_lowercase()))
                .collect(),
            Format::Json | Format::Yaml => events
                .iter()
                .map(|(event, (_, shown))| {
                    let text = self.document(&json!({"type": event, "object": shown.document}));
                    match self.format {
                        Format::Yaml => format!("---\n{text}"),
                        _ => text,
                    }
                })
                .collect(),
        };
        print(&text)
    }

    fn warn_of_malformed<'a>(&self, shown: impl Iterator<Item = &'a Named>) {
        for (name, shown) in shown {
            if let Some(reason) = &shown.malformed {
                warn(&format!("{} is malformed: {}", self.id(name), one_line(reason)));
            }
        }
    }

    fn id(&self, name: &str) -> String {
        self.kind.full_name(name)
    }

    /// A table of these rows, below the titles unless those are printed already. `first` is the title of a column before
    /// those of the kind.
    fn table(&mut self, first: Option<&str>, rows: impl Iterator<Item = Vec<String>>) -> String {
        let wide = self
            .kind
            .wide_columns
            .iter()
            .filter(|_| self.format == Format::Wide);
        let titles = first.iter().chain(self.kind.columns).chain(wide);
        let titles: Vec<String> = titles.map(ToString::to_string).collect();
        let mut rows: Vec<Vec<String>> = rows.collect();
        for row in &mut rows {
            row.truncate(titles.len());
        }
        if rows.is_empty() {
            return String::new();
        }
        if std::mem::take(&mut self.headers) {
            rows.insert(0, titles);
        }
        self.table.lay_out(&rows)
    }

    fn document(&self, document: &Value) -> String {
        match self.format {
            Format::Json => to_json(document),
            _ => to_yaml(document),
        }
    }
}

/// The document of a list that was read at this revision.
pub fn list_document<'a>(documents: impl Iterator<Item = &'a Value>, revision: i64) -> Value {
    let items: Vec<&Value> = documents.collect();
    let metadata = json!({"resourceVersion": revision.to_string()});
    with_header("List", metadata, json!({"items": items}))
}
