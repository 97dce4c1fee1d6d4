//! `quorate inventory`: what the leader keeps of the Kubernetes objects that it has written.

use std::collections::BTreeSet;

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
use crate::resources::kinds;
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
Examples:
  quorate inventory forget ConfigMap team/old team/older
  quorate inventory forget Ball.toys.example.com red

Quorate never prunes a forgotten object. It stays in the cluster with its label; delete it there if it is not wanted.
A deletion that has begun may still happen; the command says so.

Exit codes: 0 done, 3 not in the inventory, 4 the bundle holds the object, or no leader has looked at it yet.")]
struct ForgetArgs {
    /// Kind of the objects (ConfigMap, configmaps, cm), with the group if kinds of two groups have the name: Ball.toys.example.com
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
    let (mut failures, mut said) = (Vec::new(), Ok(()));
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
                // The others are forgotten all the same.
                said = said.and(print(&format!("forgot {object}: {so}\n")).map(drop));
            }
            Err(failure) => failures.push(failure),
        }
    }
    said?;
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
    let (namespace, own) = match name.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, name),
    };
    let (entries, _) = store.etcd.list(&store.keys.all_inventory()).await?;
    let named = entries.into_iter().filter_map(|entry| {
        let object = RESOURCES.name(&store.keys, &entry.key).and_then(object)?;
        Some((entry, object))
    });
    let (of_kind, others): (Vec<_>, Vec<_>) =
        named.partition(|(_, object)| kinds::is_called(kind, &object.group, &object.kind));
    let (mut found, of_kind): (Vec<_>, Vec<_>) = of_kind
        .into_iter()
        .partition(|(_, object)| object.namespace.as_deref() == namespace && object.name == own);
    let Some(only) = found.pop() else {
        let objects =
            |entries: Vec<(KeyValue, ObjectRef)>| entries.into_iter().map(|(_, object)| object).collect();
        return Err(not_held(kind, name, objects(of_kind), objects(others)));
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

/// What a failure names of what the inventory holds instead.
const NAMED: usize = 5;

/// The failure for an object that the inventory does not hold. It holds these of the kind, and these of others.
fn not_held(kind: &str, name: &str, of_kind: Vec<ObjectRef>, others: Vec<ObjectRef>) -> Failure {
    let (what, held): (String, BTreeSet<String>) = match (of_kind.is_empty(), others.is_empty()) {
        (true, true) => return Failure::not_found("the inventory is empty"),
        (true, false) => {
            let kind_of = |object: ObjectRef| {
                let unnamed = ObjectRef {
                    namespace: None,
                    name: String::new(),
                    ..object
                };
                unnamed.to_string().trim_end().to_owned()
            };
            let what = format!("the inventory holds nothing of kind {kind}; it holds objects of the kinds");
            (what, others.into_iter().map(kind_of).collect())
        }
        (false, _) => {
            let name_of = |object: ObjectRef| match object.namespace {
                Some(namespace) => format!("{namespace}/{}", object.name),
                None => object.name,
            };
            let what = format!("{kind} {name} is not in the inventory; of this kind it holds");
            (what, of_kind.into_iter().map(name_of).collect())
        }
    };
    let some: Vec<&str> = held.iter().take(NAMED).map(String::as_str).collect();
    let more = match held.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Failure::not_found(format!("{what} {}{more}", some.join(", "))).hint("quorate inventory list")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(namespace: &str, name: usize) -> ObjectRef {
        ObjectRef {
            group: String::new(),
            kind: "ConfigMap".to_owned(),
            namespace: Some(namespace.to_owned()),
            name: name.to_string(),
        }
    }

    #[test]
    fn a_failure_says_what_the_inventory_holds_instead() {
        let said = |of_kind, others| not_held("cm", "old", of_kind, others).to_string();
        assert_eq!(said(vec![], vec![]), "the inventory is empty");
        let ball = ObjectRef {
            group: "toys.example.com".to_owned(),
            kind: "Ball".to_owned(),
            namespace: None,
            name: "red".to_owned(),
        };
        assert_eq!(
            said(vec![], vec![map("a", 1), ball, map("b", 2)]),
            "the inventory holds nothing of kind cm; it holds objects of the kinds Ball.toys.example.com, ConfigMap\n  \
             quorate inventory list"
        );
        assert_eq!(
            said((1..=7).map(|name| map("team", name)).collect(), vec![]),
            "cm old is not in the inventory; of this kind it holds team/1, team/2, team/3, team/4, team/5 and 2 more\n  \
             quorate inventory list"
        );
    }
}
