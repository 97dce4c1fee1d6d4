//! `quorate apply`: documents in, objects written. Everything is checked before anything is written.

use clap::{Args, ValueEnum};
use jiff::Timestamp;

use crate::cli::confirm::{ATTEMPTS, overtaken};
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::{Reader, print, warn};
use crate::etcd::{KeyValue, Revision, Txn, TxnError};
use crate::retry::Delays;
use crate::store::Store;
use crate::store::object::change::{Part, Rejection, Request, Step, Stored};

mod input;
mod references;
mod roles;

use input::Manifest;

/// Arguments of `quorate apply`.
#[derive(Args, Debug)]
#[command(after_help = "\
The spec of a document is written as a whole. What it leaves out has its default in a new object; in an existing one, \
leaving out a field is an error where that would change it (and always for a node's desiredRole). Labels are replaced \
if the document has any, else left alone. A given uid or resourceVersion must be that of the object.

A desiredRole that changes is a promotion or a demotion, and goes through the checks of quorate promote and quorate \
demote. Neither that nor outOfService: true is asked about: the document says it.

With --subresource status, what the document gives of the reporter's part of status is written, and nothing else: a \
node's release, controller and csi, a task's state. What it leaves out stays; null clears.

What a document newly refers to (a service its networks, a task its service and node, a volume its secrets) must exist, here or beside it, \
and not be marked for deletion; that is checked again in the transaction that writes it. What others refer to is written \
first.

All documents are checked first, with each other and against what is stored; if one is faulty, refused or in conflict, \
nothing is written and every reason is told. After that each object is written by itself, all or nothing: one that \
somebody else changes at the same moment fails with exit code 5, the others are written all the same.

Examples:
  quorate apply -f node.yaml
  quorate get nodes -o json |
    jq '.items[].spec.availability = \"active\"' |
    quorate apply -f -
  echo '{apiVersion: quorate.dev/v1, kind: Node, metadata: {name: n1},
    status: {release: 1.2.0}}' |
    quorate apply --subresource status -f -")]
pub struct ApplyArgs {
    /// Where the documents are: a file, a directory (its .yaml, .yml and .json files), or - for standard input; may be given several times
    #[arg(short, long = "filename", value_name = "FILE|DIR|-", required = true)]
    filename: Vec<String>,

    /// Write this part of the objects instead of their spec
    #[arg(long, value_enum, value_name = "PART")]
    subresource: Option<Subresource>,

    /// Write also what somebody else changed at the same moment
    #[arg(long)]
    force_conflicts: bool,
}

/// A part that has a writer of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Subresource {
    /// The reporter's part of the status
    Status,
}

/// Runs the command.
///
/// # Errors
/// 64 for faulty documents, 4 for refused ones, 3 for a report on what does not exist, 5 for conflicts.
pub async fn run(args: ApplyArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let manifests = input::read(&args.filename)?;
    let store = connect(etcd).await?;
    let part = match args.subresource {
        None => Part::Spec,
        Some(Subresource::Status) => Part::Status,
    };
    let planned = plan_all(&store, manifests, part).await?;
    let mut failures = Vec::new();
    for planned in planned {
        let id = planned.manifest.id();
        let marked = part == Part::Spec && planned.is_marked();
        match write(&store, planned, args.force_conflicts).await {
            Ok(outcome) => {
                // The writes go on where nobody reads about them any more.
                let _: Reader = print(&format!("{id} {outcome}\n"))?;
                if marked {
                    warn(&format!(
                        "{id} is marked for deletion and goes once nothing holds it back; apply it again after that"
                    ));
                }
            }
            Err((exit, message)) => failures.push((exit, format!("{id}: {message}"))),
        }
    }
    match summary(failures) {
        Some((exit, text)) => Err(Failure::new(exit, format!("not everything was applied\n{text}"))),
        None => Ok(()),
    }
}

/// A document, what it was compared with, and what follows.
struct Planned {
    manifest: Manifest,
    key: Vec<u8>,
    request: Request,
    stored: Option<KeyValue>,
    step: Step,
}

impl Planned {
    fn is_marked(&self) -> bool {
        let id = self.manifest.name.to_string();
        let marked = |kv: &KeyValue| self.manifest.codec.is_marked(&id, &kv.value);
        self.stored.as_ref().is_some_and(|kv| marked(kv) == Ok(true))
    }
}

async fn plan_all(store: &Store, mut manifests: Vec<Manifest>, part: Part) -> Result<Vec<Planned>, Failure> {
    let now = Timestamp::now();
    // Stable: within a layer they are written in the order in which they were given.
    manifests.sort_by_key(|manifest| manifest.codec.layer());
    let mut planned = Vec::new();
    let mut failures = Vec::new();
    for manifest in manifests {
        let key = manifest.kind.key(&store.keys, &manifest.name);
        let (stored, _) = store.etcd.get(&key).await.map_err(Failure::failed)?;
        let request = Request {
            part,
            now,
            uid: uuid::Uuid::new_v4().to_string(),
        };
        match plan(&manifest, stored.as_ref(), &request) {
            Ok(step) => planned.push(Planned {
                manifest,
                key,
                request,
                stored,
                step,
            }),
            Err(Rejection::Faulty(faults)) => failures.extend(
                faults
                    .iter()
                    .map(|fault| (Exit::Usage, format!("{}: {fault}", manifest.origin))),
            ),
            Err(rejection) => {
                failures.push((exit_of(&rejection), format!("{}: {rejection}", manifest.origin)));
            }
        }
    }
    let created: Vec<Vec<u8>> = planned
        .iter()
        .filter(|planned| matches!(planned.step, Step::Create(_)))
        .map(|planned| planned.key.clone())
        .collect();
    let mut demoted = Vec::new();
    for planned in &planned {
        let (manifest, stored) = (&planned.manifest, planned.stored.as_ref());
        let checked = references::check(store, manifest, stored, &planned.step).await?;
        let mut demotion = roles::look_up(store, manifest, stored, &planned.step).await?;
        let rejections = [checked.rejection(&created), demotion.rejection(&demoted)];
        demoted.extend(demotion.node().cloned());
        for rejection in rejections.into_iter().flatten() {
            let origin = &manifest.origin;
            failures.push((exit_of(&rejection), format!("{origin}: {rejection}")));
        }
    }
    match summary(failures) {
        Some((exit, text)) => Err(Failure::new(exit, format!("nothing was written\n{text}"))),
        None => Ok(planned),
    }
}

fn plan(manifest: &Manifest, stored: Option<&KeyValue>, request: &Request) -> Result<Step, Rejection> {
    let stored = stored.map(|kv| Stored {
        value: &kv.value,
        mod_revision: kv.mod_revision,
    });
    manifest.codec.plan(&manifest.document, stored, request)
}

fn exit_of(rejection: &Rejection) -> Exit {
    match rejection {
        Rejection::Faulty(_) => Exit::Usage,
        Rejection::Refused { .. } => Exit::Refused,
        Rejection::Conflict(_) => Exit::Conflict,
        Rejection::NotFound => Exit::NotFound,
        Rejection::Malformed(_) => Exit::Failed,
    }
}

/// All failures, a line each, and the exit code of the first.
fn summary(failures: Vec<(Exit, String)>) -> Option<(Exit, String)> {
    let exit = failures.first()?.0;
    let lines: Vec<String> = failures
        .into_iter()
        .map(|(_, line)| format!("  {line}"))
        .collect();
    Some((exit, lines.join("\n")))
}

/// Writes one object by compare-and-swap on what its plan was made from. Who wrote another part meanwhile is no
/// conflict: the plan is made anew. Who wrote the same part is, unless it is to be overruled.
async fn write(store: &Store, planned: Planned, force: bool) -> Result<&'static str, (Exit, String)> {
    let Planned {
        manifest,
        key,
        request,
        mut stored,
        mut step,
    } = planned;
    let mut delays = Delays::etcd();
    for _ in 0..ATTEMPTS {
        let told = |failure: Failure| (failure.exit, failure.to_string());
        let used = references::check(store, &manifest, stored.as_ref(), &step);
        let used = used.await.map_err(told)?;
        let demotion = roles::look_up(store, &manifest, stored.as_ref(), &step);
        let mut demotion = demotion.await.map_err(told)?;
        if let Some(rejection) = used.rejection(&[]).or_else(|| demotion.rejection(&[])) {
            return Err((exit_of(&rejection), rejection.to_string()));
        }
        let (outcome, value) = match step {
            Step::Nothing => return Ok("unchanged"),
            Step::Create(value) => ("created", value),
            Step::Configure(value) => ("configured", value),
        };
        let read_at = stored.as_ref().map_or(Revision::ABSENT, |kv| kv.mod_revision);
        let txn = used.compare(Txn::new().when_unchanged(&key, read_at).put(&key, value.clone()));
        let txn = demotion.compare(txn, store);
        #[expect(
            clippy::disallowed_methods,
            reason = "an operator's write, which no leadership guards; it compares what it was made from"
        )]
        let written = store.etcd.unfenced(txn).await;
        let error = match written {
            Ok(_) => return Ok(outcome),
            Err(TxnError::Failed(error)) => return Err((Exit::Failed, error.to_string())),
            Err(error) => error,
        };
        let (current, _) = store.etcd.get(&key).await.map_err(|unread| {
            (
                Exit::Failed,
                format!("{error}; and it could not be read back: {unread}"),
            )
        })?;
        if let TxnError::Unknown(error) = error {
            let applied = current
                .as_ref()
                .is_some_and(|kv| kv.value == value && kv.mod_revision > read_at);
            return match applied {
                true => Ok(outcome),
                false => Err((
                    Exit::Failed,
                    format!("it may or may not be written yet, look again: {error}"),
                )),
            };
        }
        let same = match (&stored, &current) {
            (Some(before), Some(after)) => {
                let id = manifest.name.to_string();
                manifest
                    .codec
                    .same_part(&id, &before.value, &after.value, request.part)
            }
            // Then something that it refers to has changed.
            (None, None) => true,
            _ => false,
        };
        if !same && !force {
            let hint = "get it again and look at what changed, or overrule that with --force-conflicts";
            return Err((
                Exit::Conflict,
                format!("somebody else changed it at the same moment; {hint}"),
            ));
        }
        step = plan(&manifest, current.as_ref(), &request)
            .map_err(|rejection| (exit_of(&rejection), rejection.to_string()))?;
        stored = current;
        delays.wait().await;
    }
    Err((Exit::Conflict, overtaken().to_string()))
}
