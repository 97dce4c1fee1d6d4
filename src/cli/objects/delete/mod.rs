//! `quorate delete`: what may go, goes; what may not is refused by name. All objects are looked at before one is
//! deleted.

use std::io::{IsTerminal, Write};

use clap::Args;
use futures::future::BoxFuture;

use super::kinds::{Target, TargetParser};
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::{Reader, print};
use crate::etcd::{Txn, TxnError};
use crate::retry::Delays;
use crate::store::{Name, Store};

pub mod nodes;

/// How often a deletion that others overtook is decided anew.
const ATTEMPTS: u32 = 10;

/// Arguments of `quorate delete`.
#[derive(Args, Debug)]
#[command(after_help = "\
A node is not deleted while it is ready, unless --force is given, and not while it is a desired manager and in the \
member list of etcd. Its uid is recorded as removed.

If one of the objects is refused or does not exist, none is deleted.

Examples:
  quorate delete node n1
  quorate delete --yes $(quorate get nodes -l retired -o name)")]
pub struct DeleteArgs {
    /// What to delete; KIND/NAME names one object
    #[arg(value_name = "KIND[/NAME]", value_parser = TargetParser)]
    target: Target,

    /// Names of the objects
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Delete also what is still in use: a node that is ready, or whose stored value cannot be read
    #[arg(long)]
    force: bool,

    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

/// A kind that `delete` deletes.
pub trait Deletable: Sync {
    /// Reads what decides, and decides.
    ///
    /// The failure of an object that does not exist has exit code 3, that of one that may not go has 4.
    fn plan<'a>(
        &'a self,
        store: &'a Store,
        name: &'a Name,
        force: bool,
    ) -> BoxFuture<'a, Result<Deletion, Failure>>;
}

/// What deleting one object means.
#[derive(Clone, Debug)]
pub struct Deletion {
    /// What will happen to what, for the question: `node/n1 is deleted: …`.
    pub statement: String,
    /// Compares what was read, and deletes.
    pub txn: Txn,
}

/// Runs the command.
///
/// # Errors
/// 3 for what does not exist, 4 for what is refused, 5 for what somebody else changed meanwhile, 64 where nobody can
/// be asked.
pub async fn run(args: DeleteArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let (kind, names) = args.target.resolve(&args.names).map_err(Failure::usage)?;
    let words = kind.words();
    let Some(deletable) = kind.deleted() else {
        return Err(Failure::usage(format!(
            "{} are written by Quorate alone and cannot be deleted",
            words.plural
        )));
    };
    if names.is_empty() {
        return Err(Failure::usage(format!("no {} named", words.singular))
            .hint(format!("quorate delete {} NAME…", words.singular)));
    }
    if !args.yes && !std::io::stdin().is_terminal() {
        return Err(
            Failure::usage("nobody can be asked whether to delete: standard input is no terminal")
                .hint("add --yes to delete without being asked"),
        );
    }
    let store = connect(etcd).await?;
    let mut planned = Vec::new();
    let mut failures = Vec::new();
    for name in &names {
        match deletable.plan(&store, name, args.force).await {
            Ok(deletion) => planned.push((name, deletion)),
            Err(failure) => failures.push((name, failure)),
        }
    }
    let told = |failures: Vec<(&Name, Failure)>, summary: &str| {
        let exit = failures.first().map_or(Exit::Done, |(_, failure)| failure.exit);
        let lines: Vec<String> = failures
            .iter()
            .map(|(name, failure)| format!("{}/{name}: {failure}", words.singular).replace('\n', "\n  "))
            .collect();
        match failures.is_empty() {
            true => Ok(()),
            false => Err(Failure::new(exit, format!("{summary}\n  {}", lines.join("\n  ")))),
        }
    };
    told(failures, "nothing was deleted")?;
    if !args.yes {
        let statements: Vec<&str> = planned
            .iter()
            .map(|(_, deletion)| deletion.statement.as_str())
            .collect();
        ask(&statements)?;
    }
    let mut failures = Vec::new();
    for (name, deletion) in planned {
        match delete(&store, deletable, name, deletion, args.force).await {
            Ok(()) => {
                let _: Reader = print(&format!("{}/{name} deleted\n", words.singular))?;
            }
            Err(failure) => failures.push((name, failure)),
        }
    }
    told(failures, "not everything was deleted")
}

fn ask(statements: &[&str]) -> Result<(), Failure> {
    let mut err = std::io::stderr();
    let _ = write!(err, "{}\nGo on? [y/N] ", statements.join("\n"));
    let _ = err.flush();
    let mut answer = String::new();
    std::io::stdin()
        .read_line(&mut answer)
        .map_err(|error| Failure::failed(format!("cannot read the answer: {error}")))?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::failed("not confirmed, nothing was deleted")),
    }
}

/// Deletes one object. What changed since it was agreed is looked at again: if the same would still happen, it does.
async fn delete(
    store: &Store,
    deletable: &dyn Deletable,
    name: &Name,
    agreed: Deletion,
    force: bool,
) -> Result<(), Failure> {
    let mut delays = Delays::etcd();
    let mut txn = agreed.txn;
    for _ in 0..ATTEMPTS {
        #[expect(
            clippy::disallowed_methods,
            reason = "an operator's write, which no leadership guards; it compares what it was decided from"
        )]
        let outcome = store.etcd.unfenced(txn).await;
        match outcome {
            Ok(_) => return Ok(()),
            Err(TxnError::Conflict { .. }) => {}
            Err(TxnError::Failed(error)) => return Err(Failure::failed(error)),
            Err(TxnError::Unknown(error)) => {
                return Err(Failure::failed(format!(
                    "it may or may not be deleted yet, look again: {error}"
                )));
            }
        }
        let next = deletable.plan(store, name, force).await?;
        if next.statement != agreed.statement {
            return Err(Failure::new(
                Exit::Conflict,
                format!("it changed meanwhile; now: {}", next.statement),
            ));
        }
        txn = next.txn;
        delays.wait().await;
    }
    Err(Failure::new(
        Exit::Conflict,
        format!("others changed it {ATTEMPTS} times in a row; try again"),
    ))
}
