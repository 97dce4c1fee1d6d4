//! `quorate delete`: deletes or marks objects. All objects are checked before the first one is deleted.

use clap::Args;
use futures::{StreamExt as _, stream};

use super::following::Following;
use super::published::{Publications, Reads};
use super::{Deletable, Deletion, Request};
use crate::cli::commit;
use crate::cli::confirm;
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::Failure;
use crate::cli::objects::kinds::target::{Target, TargetParser};
use crate::cli::objects::kinds::{Kind, READ_AT_ONCE};
use crate::cli::output::{Reader, print};
use crate::cli::wait::WaitArgs;
use crate::etcd::Revision;
use crate::store::{Id, Store};

/// Arguments of `quorate delete`.
#[derive(Args, Debug)]
#[command(after_help = "\
A node is deleted only while it is down, unless --force is given. A desired manager in etcd's member list (demote it \
first) and the node of the last voter are never deleted. The node's uid is recorded as removed: no node with that uid is \
admitted again. The leader removes a member that the node still has from etcd; --wait waits for that. Where only the key \
of a node is gone, and its member, its volumes or the record of its certificate are left, the command records the removal.

A service or a network is marked for deletion, which cannot be taken back, and the command prints what still holds it \
back: a service is deleted once it has no task, a network once no service uses it. --wait waits for that. No service can \
newly refer to a marked network.

A task is deleted at once, whatever its state: deleting it says that it no longer runs.

A volume is marked, too, if it is not published; the leader deletes it at its backend. --force deletes the records of a \
volume at once, published or not. It does nothing at the backend and leaves a tombstone: quorate get tombstones lists \
what has to be cleaned up by hand. A plugin or a secret is deleted at once, if no volume uses it; with --force it is \
deleted anyway, and its volumes wait until it exists again. A tombstone is deleted at once; what it lists stays at the \
backend.

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

    /// Delete even a ready node, a published volume, what volumes use, and what cannot be read
    #[arg(long)]
    force: bool,

    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,

    #[command(flatten)]
    wait: WaitArgs,
}

/// Runs the command.
///
/// # Errors
/// 3 for an object that does not exist, 4 for one that must not be deleted, 5 for one that another writer changed
/// meanwhile, 64 if no confirmation can be asked for.
pub async fn run(args: DeleteArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let (kind, ids) = args.target.resolve(&args.names).map_err(Failure::usage)?;
    let words = &kind.words;
    let deletable = kind
        .deleted
        .map_err(|hint| Failure::usage(format!("{} cannot be deleted", words.plural)).hint(hint))?;
    if ids.is_empty() {
        return Err(Failure::usage(format!("no {} named", words.singular))
            .hint(format!("quorate delete {} NAME…", words.singular)));
    }
    confirm::require(args.yes, "delete")?;
    let command = Command {
        store: connect(etcd).await?,
        kind,
        deletable,
        args: &args,
        publications: Publications::default(),
    };
    let planned = command.plan_all(&ids).await?;
    command.confirm(&planned)?;
    let (done, deleted) = command.delete_all(planned).await?;
    let Some(ending) = deletable.ending.as_ref().filter(|_| !done.is_empty()) else {
        return deleted;
    };
    let following = Following {
        store: &command.store,
        kind,
        ending,
        ids: done,
    };
    let followed = following.follow(&args.wait).await;
    deleted.and(followed)
}

struct Command<'a> {
    store: Store,
    kind: &'static Kind,
    deletable: &'static Deletable,
    args: &'a DeleteArgs,
    publications: Publications,
}

impl Command<'_> {
    fn failure(&self, id: &Id, failure: Failure) -> Failure {
        failure.on(format_args!("{}/{id}", self.kind.words.singular))
    }

    /// Plans the deletion of an object; `again` after a conflict, by nothing that was read before.
    async fn plan(&self, id: &Id, again: bool) -> Result<Deletion, Failure> {
        let store = &self.store;
        let key = self.kind.space.key(&store.keys, id);
        let (stored, read_at) = store.etcd.get(&key).await?;
        let force = self.args.force;
        let reads = Reads {
            publications: &self.publications,
            since: if again { read_at } else { Revision::ABSENT },
        };
        if let Some(stored) = stored {
            return (self.deletable.plan)(Request {
                store,
                id,
                stored,
                force,
                reads,
            })
            .await;
        }
        let left = match self.deletable.plan_absent {
            Some(plan) => plan(store, id, force, reads).await?,
            None => None,
        };
        left.ok_or_else(|| Failure::not_found("not found"))
    }

    async fn plan_all<'i>(&self, ids: &'i [Id]) -> Result<Vec<(&'i Id, Deletion)>, Failure> {
        let plans = ids.iter().map(async |id| (id, self.plan(id, false).await));
        let mut plans = stream::iter(plans).buffered(READ_AT_ONCE);
        let mut planned = Vec::new();
        let mut failures = Vec::new();
        while let Some((id, plan)) = plans.next().await {
            match plan {
                Ok(deletion) => planned.push((id, deletion)),
                Err(failure) => failures.push(self.failure(id, failure)),
            }
        }
        Failure::all("nothing was deleted", &failures)?;
        Ok(planned)
    }

    fn confirm(&self, planned: &[(&Id, Deletion)]) -> Result<(), Failure> {
        // An object that has the mark already needs no confirmation.
        let changes = planned.iter().filter(|(_, deletion)| deletion.txn.is_some());
        let statements: Vec<&str> = changes.map(|(_, deletion)| deletion.statement.as_str()).collect();
        match self.args.yes || statements.is_empty() {
            true => Ok(()),
            false => confirm::ask(&statements, "nothing was deleted"),
        }
    }

    /// Deletes what was planned: the objects that are deleted or marked now, and a failure that lists the others.
    async fn delete_all(
        &self,
        planned: Vec<(&Id, Deletion)>,
    ) -> Result<(Vec<Id>, Result<(), Failure>), Failure> {
        let mut done = Vec::new();
        let (mut failures, mut said) = (Vec::new(), Ok(()));
        let deletions = planned
            .into_iter()
            .map(async |(id, deletion)| (id, self.delete(id, deletion).await));
        let mut deletions = stream::iter(deletions).buffered(self.kind.written_at_once());
        while let Some((id, deleted)) = deletions.next().await {
            match deleted {
                Ok(outcome) => {
                    // What is under way is deleted all the same.
                    let line = format!("{}/{id} {outcome}\n", self.kind.words.singular);
                    said = said.and(print(&line).map(|_: Reader| ()));
                    done.push(id.clone());
                }
                Err(failure) => failures.push(self.failure(id, failure)),
            }
        }
        said?;
        Ok((done, Failure::all("not everything was deleted", &failures)))
    }

    /// Deletes one object. After a conflict it is planned again, and must still mean what a person agreed to.
    async fn delete(&self, id: &Id, agreed: Deletion) -> Result<&'static str, Failure> {
        let statement = agreed.statement.clone();
        let again = async || {
            let next = self.plan(id, true).await?;
            if !self.args.yes && next.txn.is_some() && next.statement != statement {
                return Err(Failure::conflict(format!(
                    "it changed meanwhile; now: {}",
                    next.statement
                )));
            }
            Ok(next.into())
        };
        commit::settle_from(&self.store, "deleted", agreed.into(), again).await
    }
}
