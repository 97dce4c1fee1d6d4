//! `quorate get`: objects as a table or as documents, now or as they change.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::kinds::target::{Target, TargetParser};
use super::kinds::{Concerns, Kind, Shown};
use super::view::{LiveView, View};
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::Failure;
use crate::cli::output::{Column, Format, Reader, Table, one_line, print, warn};
use crate::etcd::KeyValue;
use crate::store::object::label::Selector;
use crate::store::object::text::{to_json, to_yaml};
use crate::store::object::with_header;
use crate::store::{Id, Store};

/// How often members are asked how they fare, with `--watch`.
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

A stored value that cannot be read is listed as <malformed>, with a warning on standard error; asked for by name, it \
also makes the exit code 1.")]
pub struct GetArgs {
    /// What to list; KIND/NAME names one object
    #[arg(value_name = "KIND[/NAME]", value_parser = TargetParser::ALL)]
    target: Target,

    /// Names of the objects; all of the kind if there is none
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// How to show them
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,

    /// Only objects whose labels match all of: KEY=VALUE, KEY!=VALUE, KEY, !KEY
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "names", value_parser = str::parse::<Selector>)]
    selector: Option<Selector>,

    /// Leave the line of column titles out
    #[arg(long)]
    no_headers: bool,

    /// Go on showing what is added, modified and deleted, until interrupted
    #[arg(short, long)]
    watch: bool,
}

/// Runs the command.
///
/// # Errors
/// A failure with exit code 3 if a named object does not exist.
pub async fn run(args: GetArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let (kind, names) = args.target.resolve(&args.names).map_err(Failure::usage)?;
    let selection = Selection {
        kind,
        names,
        selector: args.selector.unwrap_or_default(),
    };
    let store = connect(etcd).await?;
    let printer = Printer {
        kind,
        format: args.output,
        headers: !args.no_headers,
        table: Table::default(),
    };
    if args.watch {
        watch(&store, &selection, printer).await
    } else {
        list(&store, &selection, printer).await
    }
}

/// Which objects are wanted.
struct Selection {
    kind: &'static dyn Kind,
    names: Vec<Id>,
    selector: Selector,
}

impl Selection {
    /// An object as it is shown, if it matches the selector.
    fn show(&self, view: &View, name: &str, stored: &KeyValue, now: Timestamp) -> Option<(String, Shown)> {
        let shown = self.kind.show(view, name, stored, now);
        self.selector
            .matches(&shown.labels)
            .then(|| (name.to_owned(), shown))
    }

    /// The object with this key, if it exists and is selected.
    fn pick(&self, view: &View, key: &[u8], now: Timestamp) -> Option<(String, Shown)> {
        let stored = view.get(key)?;
        let name = self.kind.name(&view.keys, key)?;
        let is_wanted = |wanted: &Id| self.kind.locate(view, wanted) == key;
        let wanted = self.names.is_empty() || self.names.iter().any(is_wanted);
        wanted.then(|| self.show(view, name, stored, now)).flatten()
    }
}

async fn list(store: &Store, selection: &Selection, mut printer: Printer) -> Result<(), Failure> {
    let kind = selection.kind;
    let view = kind.read(store, &selection.names).await?;
    let (found, missing) = kind.select(&view, &selection.names);
    let now = Timestamp::now();
    let shown: Vec<(String, Shown)> = found
        .iter()
        .filter_map(|(name, stored)| selection.show(&view, name, stored, now))
        .collect();
    if shown.is_empty() && missing.is_empty() {
        eprintln!("no {} found below {}", kind.words().plural, store.keys.prefix());
    }
    // Documents are one object or one list, also where nothing was found; a table of nothing is empty.
    let single = selection.names.len() == 1;
    if !(single && shown.is_empty()) {
        printer.list(&shown, single, view.revision().0)?;
    }
    if !missing.is_empty() {
        return Err(kind.not_found(&missing, &store.keys));
    }
    let malformed = shown.iter().filter(|(_, shown)| shown.malformed.is_some());
    let malformed: Vec<String> = malformed.map(|(name, _)| printer.id(name)).collect();
    if selection.names.is_empty() || malformed.is_empty() {
        return Ok(());
    }
    let malformed = malformed.join(", ");
    Err(Failure::failed(format!("{malformed} cannot be read (see the warning)")).hint(kind.mending()))
}

async fn watch(store: &Store, selection: &Selection, mut printer: Printer) -> Result<(), Failure> {
    let watching = watch_objects(store, selection, &mut printer);
    store.etcd.following(watching).await
}

async fn watch_objects(store: &Store, selection: &Selection, printer: &mut Printer) -> Result<(), Failure> {
    let mut live = LiveView::new(
        &store.etcd,
        store.keys.clone(),
        selection.kind.ranges_of(&store.keys, &selection.names),
    );
    let mut last: BTreeMap<Vec<u8>, (String, Shown)> = BTreeMap::new();
    loop {
        let mut concerned = std::collections::BTreeSet::new();
        let keys = if selection.kind.looks_at_members() {
            // etcd tells nobody when a member falls ill: it has to be asked.
            let changes = tokio::time::timeout(MEMBERS_INTERVAL, live.changes()).await;
            if let Err(failure) = live.view.look_at_members(store).await {
                warn(&format!("showing what was seen last: {failure}"));
            }
            concerned.extend(last.keys().cloned());
            concerned.extend(live.view.iter().map(|kv| kv.key.clone()));
            changes.unwrap_or_default()
        } else {
            live.changes().await
        };
        for key in keys {
            match selection.kind.concerns(&store.keys, &key) {
                Concerns::One(key) => {
                    concerned.insert(key);
                }
                Concerns::All => {
                    concerned.extend(last.keys().cloned());
                    concerned.extend(live.view.iter().map(|kv| kv.key.clone()));
                }
                Concerns::Nothing => {}
            }
        }
        let now = Timestamp::now();
        let mut events = Vec::new();
        for key in concerned {
            let current = selection.pick(&live.view, &key, now);
            match (last.get(&key), current) {
                (None, Some(current)) => {
                    events.push(("ADDED", current.clone()));
                    last.insert(key, current);
                }
                (Some((_, before)), Some(current)) if before.document != current.1.document => {
                    events.push(("MODIFIED", current.clone()));
                    last.insert(key, current);
                }
                (Some(_), None) => events.extend(last.remove(&key).map(|before| ("DELETED", before))),
                (Some(_), Some(_)) | (None, None) => {}
            }
        }
        if printer.events(&events)? == Reader::Gone {
            return Ok(());
        }
    }
}

/// Shows objects in the format asked for.
struct Printer {
    kind: &'static dyn Kind,
    format: Format,
    headers: bool,
    table: Table,
}

impl Printer {
    fn list(&mut self, shown: &[(String, Shown)], single: bool, revision: i64) -> Result<(), Failure> {
        self.warn_of_malformed(shown.iter());
        let text = match self.format {
            Format::Table | Format::Wide => {
                let rows: Vec<Vec<String>> =
                    shown.iter().map(|(_, shown)| self.cells(&shown.cells)).collect();
                self.rows(None, rows)
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

    fn events(&mut self, events: &[(&'static str, (String, Shown))]) -> Result<Reader, Failure> {
        self.warn_of_malformed(events.iter().map(|(_, shown)| shown));
        let text = match self.format {
            Format::Table | Format::Wide => {
                let rows = events
                    .iter()
                    .map(|(event, (_, shown))| {
                        let mut row = vec![(*event).to_owned()];
                        row.append(&mut self.cells(&shown.cells));
                        row
                    })
                    .collect();
                self.rows(Some("EVENT"), rows)
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

    fn warn_of_malformed<'a>(&self, shown: impl Iterator<Item = &'a (String, Shown)>) {
        for (name, shown) in shown {
            if let Some(reason) = &shown.malformed {
                warn(&format!("{} is malformed: {}", self.id(name), one_line(reason)));
            }
        }
    }

    fn id(&self, name: &str) -> String {
        format!("{}/{}", self.kind.words().singular, one_line(name))
    }

    fn cells(&self, cells: &[String]) -> Vec<String> {
        let columns = self.kind.columns().iter().zip(cells);
        let shown = columns.filter(|(column, _)| self.format == Format::Wide || !column.wide);
        shown.map(|(_, cell)| cell.clone()).collect()
    }

    /// The rows, below the titles if these were not printed before.
    fn rows(&mut self, first_title: Option<&str>, mut rows: Vec<Vec<String>>) -> String {
        if rows.is_empty() {
            return String::new();
        }
        if std::mem::take(&mut self.headers) {
            let titles: Vec<String> = self
                .kind
                .columns()
                .iter()
                .map(|Column { title, .. }| (*title).to_owned())
                .collect();
            let mut header: Vec<String> = first_title.map(str::to_owned).into_iter().collect();
            header.append(&mut self.cells(&titles));
            rows.insert(0, header);
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

fn list_document<'a>(documents: impl Iterator<Item = &'a Value>, revision: i64) -> Value {
    let metadata = serde_json::Map::from_iter([("resourceVersion".to_owned(), json!(revision.to_string()))]);
    let items = serde_json::Map::from_iter([("items".to_owned(), documents.cloned().collect())]);
    with_header("List", metadata, items)
}
