//! `quorate inventory`: what the leader keeps of the Kubernetes objects that it has written.

use clap::{Args, Subcommand};

use super::commit::{self, Decision};
use super::connection::{EtcdArgs, connect};
use super::exit::Failure;
use super::objects::get::{self, GetArgs};
use super::objects::kinds::resources::{RESOURCES, object};
use super::output::{Format, print};
use crate::etcd::{KeyValue, Txn};
use crate::kube::ObjectRef;
use crate::proto::Applied;
use crate::store::Store;
use crate::store::object::message;

/// Arguments of `quorate inventory`.
#[derive(Args, Debug)]
pub struct InventoryArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// List the inventory, as `quorate get resources -o wide` does
    List(ListArgs),
    /// Take objects that the bundle no longer holds out of the inventory, and leave them in the cluster
    Forget(ForgetArgs),
}

/// Arguments of `quorate inventory list`.
#[derive(Args, Debug)]
struct ListArgs {
    /// How to show it
    #[arg(short, long, value_enum, default_value_t = Format::Wide, value_name = "FORMAT")]
    output: Format,
}

/// Arguments of `quorate inventory forget`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  quorate inventory forget ConfigMap team/old team/older
  quorate inventory forget Ball.toys.example.com red

Quorate never prunes a forgotten object. It stays in the cluster with its label; delete it there if it is not wanted.
A deletion that has begun may still happen; the command says so.

Exit codes: 0 done, 3 not in the inventory, 4 the bundle holds the object, or no leader has looked at it yet.")]
struct ForgetArgs {
    /// Kind of the objects, with the group if kinds of two groups have the name: Ball.toys.example.com
    #[arg(value_name = "KIND[.GROUP]")]
    kind: String,

    /// The objects; those without a namespace by their name alone
    #[arg(value_name = "NAMESPACE/NAME", required = true)]
    objects: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// A failure with the exit code of the subcommand.
pub async fn run(args: InventoryArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    match args.command {
        Command::List(ListArgs { output }) => get::run(GetArgs::all(&RESOURCES, output), etcd).await,
        Command::Forget(args) => forget(&args, etcd).await,
    }
}

async fn forget(args: &ForgetArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let store = connect(etcd).await?;
    let mut failures = Vec::new();
    for name in &args.objects {
        let forgotten = commit::settle(&store, "forgotten", async || {
            decide(&store, &args.kind, name).await
        });
        match forgotten.await {
            Ok(Forgotten {
                object,
                may_be_deleted,
            }) => {
                let so = match may_be_deleted {
                    true => "its deletion was begun and may still happen; it is not begun again",
                    false => "it stays in the cluster and is not pruned",
                };
                print(&format!("forgot {object}: {so}\n"))?;
            }
            Err(failure) => failures.push(failure),
        }
    }
    match failures.len() {
        1 => Err(failures.remove(0)),
        _ => Failure::all("not forgotten:", &failures),
    }
}

/// An object that was taken out of the inventory.
struct Forgotten {
    object: ObjectRef,
    /// Whether a leader has begun to delete it.
    may_be_deleted: bool,
}

async fn decide(store: &Store, kind: &str, name: &str) -> Result<Decision<Forgotten>, Failure> {
    let (entry, object) = find(store, kind, name).await?;
    let mut may_be_deleted = false;
    // An entry that cannot be read says nothing that could be lost.
    if let Ok(applied) = message::<Applied>("Applied", &entry.value) {
        may_be_deleted = applied.deleting;
        match applied.state {
            Some(state) if state.dropped => {}
            Some(_) => {
                let why = format!("the bundle holds {object}");
                return Err(Failure::refused("BundleHolds", why).hint(
                    "the leader would record it again with its next pass; drop it from the bundle first",
                ));
            }
            None => {
                let why = format!("no leader of this release has looked at {object} yet");
                return Err(Failure::refused("NotLookedAt", why).hint("wait for its next pass"));
            }
        }
    }
    let txn = Txn::new()
        .when_unchanged(&entry.key, entry.mod_revision)
        .delete(&entry.key);
    let forgotten = Forgotten {
        object,
        may_be_deleted,
    };
    Ok(Decision::Write(txn, forgotten))
}

/// The one entry of an object that is called so.
async fn find(store: &Store, kind: &str, name: &str) -> Result<(KeyValue, ObjectRef), Failure> {
    let (kind, group) = match kind.split_once('.') {
        Some((kind, group)) => (kind, Some(group)),
        None => (kind, None),
    };
    let (namespace, own) = match name.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, name),
    };
    let called = |object: &ObjectRef| {
        object.kind.eq_ignore_ascii_case(kind)
            && group.is_none_or(|group| object.group == group)
            && object.namespace.as_deref() == namespace
            && object.name == own
    };
    let (entries, _) = store.etcd.list(&store.keys.all_inventory()).await?;
    let mut found: Vec<(KeyValue, ObjectRef)> = entries
        .into_iter()
        .filter_map(|entry| {
            let object = RESOURCES.name(&store.keys, &entry.key).and_then(object)?;
            called(&object).then_some((entry, object))
        })
        .collect();
    let Some(only) = found.pop() else {
        return Err(
            Failure::not_found(format!("{kind} {name} is not in the inventory"))
                .hint("quorate inventory list"),
        );
    };
    if let Some((_, other)) = found.first() {
        let name_of = |object: &ObjectRef| format!("{}.{}", object.kind, object.group);
        return Err(Failure::usage(format!(
            "{kind} is the kind of two groups: name it as {} or {}",
            name_of(other),
            name_of(&only.1)
        )));
    }
    Ok(only)
}
