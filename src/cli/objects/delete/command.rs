//! `quorate delete`: what may go, goes; what may not is refused by name. All objects are looked at before one is
//! deleted.

use clap::Args;

use super::{Deletable, Deletion, wait};
use crate::cli::commit::{self, Decision};
use crate::cli::confirm;
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::{Exit, Failure};
use crate::cli::objects::kinds::target::{Target, TargetParser};
use crate::cli::output::{Reader, print};
use crate::cli::wait::WaitArgs;
use crate::store::{Id, Store};

/// Arguments of `quorate delete`.
#[derive(Args, Debug)]
#[command(after_help = "\
A node is not deleted while it is ready, unless --force is given, not while it is a desired manager and in the \
member list of etcd (demote it first), and not if its member is the last voter. Its uid is recorded as removed: no node \
of that uid is ever admitted again. A member that it still has is removed from etcd by the leader; --wait waits for that.

A service or a network is marked, which cannot be taken back, and the command returns, telling what still holds it \
back: a service goes once it has no task, a network once no service uses it. --wait waits for that. A marked network \
cannot be newly referred to.

A task is deleted at once, whatever its state: whoever deletes it says that it runs no more.

A volume is marked, too, unless it is published; the leader deletes it at its backend. --force forgets the records of a \
volume at once, published or not, does nothing at the backend, and leaves a tombstone: quorate get tombstones lists \
what is to be cleaned up by hand. A plugin or a secret is deleted at once, unless volumes use it; --force deletes it all \
the same, and they wait until it is there again. A tombstone is deleted at once, and nothing reminds of it any more.

If one of the objects is refused or does not exist, none is deleted.

Examples:
  quorate delete node n1
  quorate delete --yes $(quorate get nodes -l retired -o name)
  quorate delete service web --wait --timeout 5m
  quorate delete task web/1
  quorate delete volume data --wait")]
pub struct DeleteArgs {
    /// What to delete; KIND/NAME names one object
    #[arg(value_name = "KIND[/NAME]", value_parser = TargetParser::DELETED)]
    target: Target,

    /// Names of the objects
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Delete also a node that is ready, a volume that is published, what volumes use, and what cannot be read
    #[arg(long)]
    force: bool,

    /// Do not ask
    #[arg(short, long)]
    yes: bool,

    #[command(flatten)]
    wait: WaitArgs,
}

impl Deletion {
    fn decision(self) -> Decision<&'static str> {
        match self.txn {
            Some(txn) => Decision::Write(txn, self.outcome),
            None => Decision::Nothing(self.outcome),
        }
    }
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
        return Err(
            Failure::usage(format!("{} cannot be deleted", words.plural)).hint(match words.singular {
                "member" => "quorate demote NODE removes the member of a node from etcd",
                "publication" => "quorate unpublish VOLUME NODE ends one",
                _ => "they go with their processes",
            }),
        );
    };
    if names.is_empty() {
        return Err(Failure::usage(format!("no {} named", words.singular))
            .hint(format!("quorate delete {} NAME…", words.singular)));
    }
    confirm::require(args.yes, "delete")?;
    let store = connect(etcd).await?;
    let mut planned = Vec::new();
    let mut failures = Vec::new();
    for name in &names {
        match deletable.plan(&store, name, args.force).await {
            Ok(deletion) => planned.push((name, deletion)),
            Err(failure) => failures.push(failure.on(format_args!("{}/{name}", words.singular))),
        }
    }
    Failure::all("nothing was deleted", &failures)?;
    // What is done already is no question.
    let changes = planned.iter().filter(|(_, deletion)| deletion.txn.is_some());
    let statements: Vec<&str> = changes.map(|(_, deletion)| deletion.statement.as_str()).collect();
    if !args.yes && !statements.is_empty() {
        confirm::ask(&statements, "nothing was deleted")?;
    }
    let mut failures = Vec::new();
    let mut marked = Vec::new();
    for (id, deletion) in planned {
        match delete(&store, deletable, id, deletion, &args).await {
            Ok(outcome) => {
                let _: Reader = print(&format!("{}/{id} {outcome}\n", words.singular))?;
                marked.push(id);
            }
            Err(failure) => failures.push(failure.on(format_args!("{}/{id}", words.singular))),
        }
    }
    let deleted = Failure::all("not everything was deleted", &failures);
    if let Some(ends_later) = deletable.ends_later().filter(|_| !marked.is_empty()) {
        let ending = wait::Ending {
            store: &store,
            kind: words.singular,
            ends_later,
            ids: &marked,
        };
        let ended = match args.wait.wait {
            true => ending.wait(args.wait.timeout).await,
            false => ending.tell().await,
        };
        return deleted.and(ended);
    }
    deleted
}

/// Deletes one object. After a conflict it is planned again, and must still mean what a person agreed to.
async fn delete(
    store: &Store,
    deletable: &dyn Deletable,
    id: &Id,
    agreed: Deletion,
    args: &DeleteArgs,
) -> Result<&'static str, Failure> {
    let statement = agreed.statement.clone();
    let again = async || {
        let next = deletable.plan(store, id, args.force).await?;
        if !args.yes && next.txn.is_some() && next.statement != statement {
            return Err(Failure::new(
                Exit::Conflict,
                format!("it changed meanwhile; now: {}", next.statement),
            ));
        }
        Ok(next.decision())
    };
    commit::settle_from(store, "deleted", agreed.decision(), again).await
}
