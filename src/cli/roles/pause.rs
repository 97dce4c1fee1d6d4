//! `quorate pause roles` and `quorate resume roles`: hold the leader back while a person works on etcd's members.

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use prost::Message;

use crate::cli::commit::{self, Decision};
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::Failure;
use crate::cli::output::{Reader, print};
use crate::etcd::Txn;
use crate::proto::{LastPause, Pause};
use crate::store::object::time;

/// Arguments of `quorate pause`.
#[derive(Args, Debug)]
#[command(after_help = "\
From then on the leader, and every later one, changes no role and adds, promotes and removes no member. A change that is \
under way already is made within 30 s, with its record and its role, or not at all: wait that long before you change members. \
Everything else goes on. quorate status shows the pause. A leader of a release without pauses does not heed it.

Examples:
  quorate pause roles --reason 'disk of n2 is being exchanged'
  quorate resume roles")]
pub struct PauseArgs {
    /// What to pause
    #[arg(value_enum, value_name = "WHAT")]
    what: Pausable,

    /// Why, for others
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
}

/// Arguments of `quorate resume`.
#[derive(Args, Debug)]
pub struct ResumeArgs {
    /// What to resume
    #[arg(value_enum, value_name = "WHAT")]
    what: Pausable,
}

/// What can be paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pausable {
    /// Roles of nodes and etcd's members
    Roles,
}

/// Pauses. Pausing again keeps the first time, and changes the reason.
///
/// # Errors
/// 1 if etcd does not answer.
pub async fn pause(args: PauseArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let Pausable::Roles = args.what;
    let store = connect(etcd).await?;
    let key = store.keys.roles_pause();
    let done = commit::settle(&store, "paused", async || {
        let (stored, _) = store.etcd.get(&key).await?;
        let before = stored.as_ref().and_then(|kv| Pause::decode(&*kv.value).ok());
        let since = before.and_then(|pause| pause.since);
        let pause = Pause {
            since: Some(since.unwrap_or_else(|| time::to_proto(Timestamp::now()))),
            reason: args.reason.clone(),
        };
        let last = LastPause { since: pause.since };
        let txn = match &stored {
            None => Txn::new().when_absent(&key),
            Some(kv) => Txn::new().when_unchanged(&key, kv.mod_revision),
        };
        Ok(Decision::Write(
            txn.put(&key, pause.encode_to_vec())
                .put(&store.keys.last_roles_pause(), last.encode_to_vec()),
            "roles are paused\n",
        ))
    });
    print(done.await?).map(|_: Reader| ())
}

/// Resumes.
///
/// # Errors
/// 1 if etcd does not answer.
pub async fn resume(args: ResumeArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let Pausable::Roles = args.what;
    let store = connect(etcd).await?;
    let key = store.keys.roles_pause();
    let done = commit::settle(&store, "resumed", async || {
        let (stored, _) = store.etcd.get(&key).await?;
        Ok(match stored {
            None => Decision::Nothing("roles are not paused\n"),
            Some(kv) => {
                let txn = Txn::new().when_unchanged(&key, kv.mod_revision).delete(&key);
                Decision::Write(txn, "roles are resumed\n")
            }
        })
    });
    print(done.await?).map(|_: Reader| ())
}
