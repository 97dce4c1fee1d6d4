//! `quorate apply`: writes objects from documents. All documents are checked before the first object is written.

use clap::{Args, ValueEnum};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;

use super::backends::{self, Moved};
use super::input::{self, Manifest};
use super::references::Used;
use super::sealing::{self, Published};
use super::{references, roles};
use crate::cli::commit::{self, Decision};
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::{Exit, Failure};
use crate::cli::objects::kinds::READ_AT_ONCE;
use crate::cli::output::{Reader, print, warn};
use crate::etcd::{KeyValue, Revision, Txn};
use crate::failpoint::{self, Pause};
use crate::store::Store;
use crate::store::object::change::{Part, Rejection, Request, Step, StoredValue};

/// Arguments of `quorate apply`.
#[derive(Args, Debug)]
#[command(after_help = "\
A document's spec is written as a whole. In a new object, a field that is left out gets its default; in an existing \
one, leaving a field out is an error if that would change it (and always for a node's desiredRole). Labels are replaced \
if the document has any. A uid or resourceVersion in the document must be that of the object.

A changed desiredRole is a promotion or a demotion, and must pass the checks of quorate promote and quorate demote. \
Neither that nor outOfService: true needs a confirmation.

--subresource status writes only the reporter's part of the status: a node's release, controller and csi, a task's state. \
A field that is left out stays as it is; null clears it.

An object that a document newly refers to (the networks of a service, the service and node of a task, the secrets of a \
volume) must exist or be among the documents, and must not be marked for deletion. The transaction that writes the \
document checks that again. Objects that others refer to are written first.

The values of a Secret are encrypted before they are written, if the replicas have an encryption key; this command needs none.

All documents are checked first. If one is faulty, refused or in conflict, nothing is written and every reason is \
printed. Then each object is written by itself: one that another writer changes at the same moment fails with exit code \
5, and the others are still written.

Examples:
  quorate apply -f node.yaml
  quorate get nodes -o json |
    jq '.items[].spec.availability = \"active\"' |
    quorate apply -f -
  echo '{apiVersion: quorate.dev/v1, kind: Node, metadata: {name: n1},
    status: {release: 1.2.0}}' |
    quorate apply --subresource status -f -")]
pub struct ApplyArgs {
    /// A file, a directory (its .yaml, .yml and .json files), or - for standard input; may be given several times
    #[arg(short, long = "filename", value_name = "FILE|DIR|-", required = true)]
    filename: Vec<String>,

    /// Write this part of the objects instead of their spec
    #[arg(long, value_enum, value_name = "PART")]
    subresource: Option<Subresource>,

    /// Overrule another writer that changed the same at the same moment
    #[arg(long)]
    force_conflicts: bool,

    /// Pause at a named point: creates the file there, and continues once the file is removed, for fault runs
    #[arg(long, hide = true, value_name = "POINT=FILE")]
    hold_at: Option<Pause>,
}

/// A part of an object that another writer than the operator owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Subresource {
    /// The reporter's part of the status
    Status,
}

/// Runs the command.
///
/// # Errors
/// 64 for faulty documents, 4 for refused ones, 3 for a status of an object that does not exist, 5 for conflicts.
pub async fn run(args: ApplyArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let manifests = input::read(&args.filename)?;
    if let Some(pause) = args.hold_at {
        failpoint::arm_pause(pause);
    }
    let store = connect(etcd).await?;
    let part = match args.subresource {
        None => Part::Spec,
        Some(Subresource::Status) => Part::Status,
    };
    apply_all(&store, manifests, part, args.force_conflicts).await
}

/// Checks all documents, writes their objects, and prints the outcome of each.
///
/// # Errors
/// As [`run`].
pub async fn apply_all(
    store: &Store,
    manifests: Vec<Manifest>,
    part: Part,
    force: bool,
) -> Result<(), Failure> {
    let mut planned = plan_all(store, manifests, part).await?;
    let (mut failures, mut unsaid) = (Vec::new(), None);
    for alike in planned.chunk_by_mut(Planned::is_like) {
        let at_once = alike[0].manifest.kind.written_at_once();
        let writes = alike.iter_mut().map(|planned| async move {
            let marked = part == Part::Spec && planned.is_marked();
            let written = planned.write(store, force).await;
            (planned.manifest.id(), marked, written, planned)
        });
        let mut writes = stream::iter(writes).buffered(at_once);
        while let Some((id, marked, written, planned)) = writes.next().await {
            match written {
                // What is under way is written all the same.
                Ok(outcome) => unsaid = planned.report(outcome, marked).err().or(unsaid),
                Err(failure) => failures.push(failure.on(id)),
            }
        }
    }
    Failure::all("not everything was applied", &failures)?;
    unsaid.map_or(Ok(()), Err)
}

/// A document, the stored object that it was compared with, and what follows.
pub struct Planned {
    /// The document.
    pub manifest: Manifest,
    key: Vec<u8>,
    request: Request,
    /// The stored object.
    pub stored: Option<KeyValue>,
    /// What is written. The values of a Secret are plain until they are about to be written.
    pub step: Step,
    /// The key that encrypted them; `None` before that, and for another kind.
    published: Option<Published>,
    /// What is said once it is written.
    warning: Option<String>,
}

impl Planned {
    fn is_marked(&self) -> bool {
        let id = self.manifest.name.to_string();
        let marked = |kv: &KeyValue| self.manifest.codec.is_marked(&id, &kv.value);
        self.stored.as_ref().is_some_and(|kv| marked(kv) == Ok(true))
    }

    fn is_like(&self, other: &Self) -> bool {
        std::ptr::eq(self.manifest.kind, other.manifest.kind)
    }

    /// Prints what was done, and warns of what follows.
    fn report(&self, outcome: &str, marked: bool) -> Result<(), Failure> {
        let id = self.manifest.id();
        // The remaining objects are written even if standard output has no reader any more.
        let _: Reader = print(&format!("{id} {outcome}\n"))?;
        if marked {
            warn(&format!(
                "{id} is marked for deletion: the leader deletes it once nothing holds it back; apply it again after that"
            ));
        }
        self.warning.iter().for_each(|warning| warn(warning));
        Ok(())
    }

    /// The revision that the transaction compares.
    fn read_at(&self) -> Revision {
        self.stored
            .as_ref()
            .map_or(Revision::ABSENT, |kv| kv.mod_revision)
    }

    /// Writes the object by compare-and-swap on what the plan was made from.
    async fn write(&mut self, store: &Store, force: bool) -> Result<&'static str, Failure> {
        self.published = sealing::seal(store, &self.manifest, &mut self.step).await?;
        let first = self.decide(store).await?;
        failpoint::pause_at("apply.decided").await;
        let again = async || {
            self.plan_again(store, force).await?;
            self.published = sealing::seal(store, &self.manifest, &mut self.step).await?;
            self.decide(store).await
        };
        let settled = commit::settle_from(store, "written", first, again).await;
        match settled {
            // It may have been written although the reply was lost.
            Err(failure) if failure.exit == Exit::Failed => {
                let (current, _) = store.etcd.get(&self.key).await.map_err(|unread| {
                    Failure::failed(format!("{failure}; and it could not be read back: {unread}"))
                })?;
                let written = current
                    .filter(|kv| kv.mod_revision > self.read_at())
                    .map(|kv| kv.value);
                match &self.step {
                    Step::Create(value) if written.as_ref() == Some(value) => Ok("created"),
                    Step::Configure(value) if written.as_ref() == Some(value) => Ok("configured"),
                    _ => Err(failure),
                }
            }
            settled => settled,
        }
    }

    /// Checks the step against what it concerns beside the object, and compares that in the transaction.
    async fn decide(&self, store: &Store) -> Result<Decision<&'static str>, Failure> {
        let (outcome, value) = match &self.step {
            Step::Nothing => return Ok(Decision::Nothing("unchanged")),
            Step::Create(value) => ("created", value),
            Step::Configure(value) => ("configured", value),
        };
        let (manifest, stored) = (&self.manifest, self.stored.as_ref());
        let used = references::check(store, manifest, stored, &self.step).await?;
        let mut demotion = roles::look_up(store, manifest, stored, &self.step).await?;
        let moved = backends::look_up(store, manifest, stored, &self.step).await?;
        let rejections = [
            used.rejection(&[]),
            demotion.rejection(&[]),
            moved.as_ref().and_then(Moved::rejection),
        ];
        if let Some(rejection) = rejections.iter().flatten().next() {
            return Err(refused(rejection));
        }
        let txn = Txn::new()
            .when_unchanged(&self.key, self.read_at())
            .put(&self.key, value.clone());
        let txn = demotion.compare(used.compare(txn), store);
        let txn = match &self.published {
            Some(published) => published.compare(txn),
            None => txn,
        };
        let txn = match moved {
            Some(moved) => moved.compare(txn, store),
            None => txn,
        };
        Ok(Decision::Write(txn, outcome))
    }

    /// Plans again after a conflict. A write of another part is no conflict; one of the same part is, unless `force`
    /// overrules it.
    async fn plan_again(&mut self, store: &Store, force: bool) -> Result<(), Failure> {
        let (current, _) = store.etcd.get(&self.key).await?;
        let same = match (&self.stored, &current) {
            (Some(before), Some(after)) => {
                let (id, part) = (self.manifest.name.to_string(), self.request.part);
                self.manifest
                    .codec
                    .same_part(&id, &before.value, &after.value, part)
            }
            // Something that it refers to has changed.
            (None, None) => true,
            _ => false,
        };
        if !same && !force {
            return Err(Failure::conflict(
                "another writer changed it at the same moment; get it again and look at what changed, or overrule that \
                 with --force-conflicts",
            ));
        }
        self.step =
            plan(&self.manifest, current.as_ref(), &self.request).map_err(|rejection| refused(&rejection))?;
        self.stored = current;
        Ok(())
    }
}

/// Decides what each document writes, and checks that it may.
///
/// # Errors
/// 64 for faulty documents, 4 for refused ones, 3 for a status of an object that does not exist, 5 for conflicts: all of them.
pub async fn plan_all(
    store: &Store,
    mut manifests: Vec<Manifest>,
    part: Part,
) -> Result<Vec<Planned>, Failure> {
    let now = Timestamp::now();
    // A stable sort: within a layer, documents keep the order in which they were given.
    manifests.sort_by_key(|manifest| manifest.codec.layer());
    let mut planned = Vec::new();
    let mut failures = Vec::new();
    let reads = manifests.into_iter().map(async |manifest| {
        let key = manifest.kind.space.key(&store.keys, &manifest.name);
        let read = store.etcd.get(&key).await;
        (manifest, key, read)
    });
    let mut reads = stream::iter(reads).buffered(READ_AT_ONCE);
    while let Some((manifest, key, read)) = reads.next().await {
        let (stored, _) = read?;
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
                published: None,
                warning: None,
            }),
            Err(Rejection::Faulty(faults)) => {
                let faults = faults
                    .iter()
                    .map(|fault| Failure::usage(fault).on(&manifest.origin));
                failures.extend(faults);
            }
            Err(rejection) => failures.push(refused(&rejection).on(&manifest.origin)),
        }
    }
    let created: Vec<Vec<u8>> = planned
        .iter()
        .filter(|planned| matches!(planned.step, Step::Create(_)))
        .map(|planned| planned.key.clone())
        .collect();
    let checks = planned.iter().map(|planned| {
        let Planned {
            manifest,
            stored,
            step,
            ..
        } = planned;
        references::check(store, manifest, stored.as_ref(), step)
    });
    let checks: Vec<Used> = stream::iter(checks).buffered(READ_AT_ONCE).try_collect().await?;
    let mut demoted = Vec::new();
    for (planned, checked) in planned.iter_mut().zip(checks) {
        let (manifest, stored) = (&planned.manifest, planned.stored.as_ref());
        let mut demotion = roles::look_up(store, manifest, stored, &planned.step).await?;
        let moved = backends::look_up(store, manifest, stored, &planned.step).await?;
        planned.warning = moved.as_ref().and_then(Moved::warning);
        let rejections = [
            checked.rejection(&created),
            demotion.rejection(&demoted),
            moved.as_ref().and_then(Moved::rejection),
        ];
        demoted.extend(demotion.node().cloned());
        let rejections = rejections.iter().flatten();
        failures.extend(rejections.map(|rejection| refused(rejection).on(&manifest.origin)));
    }
    Failure::all("nothing was written", &failures)?;
    Ok(planned)
}

fn plan(manifest: &Manifest, stored: Option<&KeyValue>, request: &Request) -> Result<Step, Rejection> {
    let stored = stored.map(|kv| StoredValue {
        value: &kv.value,
        mod_revision: kv.mod_revision,
    });
    manifest.codec.plan(&manifest.document, stored, request)
}

fn refused(rejection: &Rejection) -> Failure {
    let exit = match rejection {
        Rejection::Faulty(_) => Exit::Usage,
        Rejection::Refused { .. } => Exit::Refused,
        Rejection::Conflict(_) => Exit::Conflict,
        Rejection::NotFound => Exit::NotFound,
        Rejection::Malformed(_) => Exit::Failed,
    };
    Failure::new(exit, rejection)
}
