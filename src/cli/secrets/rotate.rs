//! `quorate secrets rotate`: encrypts again what the first key does not encrypt. What is done stays done, so that a rotation that was
//! interrupted goes on with the rest.

use clap::Args;
use futures::{StreamExt as _, stream};
use serde_json::json;

use super::{Shape, secrets};
use crate::cli::commit::{self, Decision};
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::encryption::KeyFiles;
use crate::cli::exit::Failure;
use crate::cli::output::{note, print};
use crate::etcd::{Revision, Txn};
use crate::failpoint::{self, Pause};
use crate::proto::Secret;
use crate::secrets::{Keyring, Recipient, encrypted};
use crate::store::object::secret::{Form, form};
use crate::store::object::{Object as _, message, text};
use crate::store::{Name, Store};
use crate::wipe::{Zeroizing, wipe};

/// Secrets that are written at a time: enough to hide the way to etcd, and few beside its other work.
const AT_ONCE: usize = 16;

/// Arguments of `quorate secrets rotate`.
#[derive(Args, Debug)]
#[command(after_help = "\
Needs the key files of the replicas, whose first key must be the published one. In a pod of Quorate they are those of its environment:

  kubectl -n quorate-system exec deploy/quorate -- quorate secrets rotate

To replace a key: add the new one as the last of the file, and restart every replica; make it the first, and restart them again; \
rotate; take the old one out. A Secret that is written meanwhile is not overwritten. A rotation that was interrupted goes on where \
it ended when it is started again.

Exit codes: 0 done, 1 some are not encrypted with the first key, 4 the first key is not the published one, 64 no key file.")]
pub struct RotateArgs {
    #[command(flatten)]
    keys: KeyFiles,

    /// How to show it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Shape,

    /// Abort the process at a named point, for fault runs
    #[arg(long, hide = true, value_name = "POINT")]
    crash_at: Option<String>,

    /// Pause at a named point: creates the file there, and continues once the file is removed, for fault runs
    #[arg(long, hide = true, value_name = "POINT=FILE")]
    hold_at: Option<Pause>,
}

/// What became of a Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It was plain.
    Encrypted,
    /// Another key had encrypted it.
    Rotated,
    /// The key has encrypted it before, Kubernetes has its values, or it is gone.
    Unchanged,
}

pub async fn run(args: &RotateArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    if let Some(point) = &args.crash_at {
        failpoint::arm_crash(point);
    }
    if let Some(pause) = args.hold_at.clone() {
        failpoint::arm_pause(pause);
    }
    let keyring = args.keys.read()?;
    let first = keyring.first().ok_or_else(|| {
        Failure::usage("no key is given")
            .hint("give the key files of the replicas with --encryption-key-file")
    })?;
    let store = connect(etcd).await?;
    let published = check_published(&store, first.recipient()).await?;
    let names = names(&store).await?;
    failpoint::abort_at("rotate.listed");
    let rotation = Rotation {
        store: &store,
        keyring: &keyring,
        recipient: first.recipient(),
        published,
    };
    let rotating = names.into_iter().map(|name| {
        let rotation = &rotation;
        async move {
            let outcome = rotation.rotate(&name).await;
            (name, outcome)
        }
    });
    let mut rotating = stream::iter(rotating).buffered(AT_ONCE);
    let (mut done, mut failures) = (Vec::new(), Vec::new());
    while let Some((name, outcome)) = rotating.next().await {
        match outcome {
            Ok(outcome) => done.push((name, outcome)),
            Err(failure) => failures.push(failure.on(format_args!("secret/{name}"))),
        }
    }
    drop(rotating);
    failpoint::abort_at("rotate.ended");
    report(args.output, first.id().as_str(), &done, &failures)?;
    Failure::all("not every secret is encrypted with the first key", &failures)
}

/// The revision of the published key, which must be this one: what another one encrypts, replicas may not be able to read.
async fn check_published(store: &Store, first: &Recipient) -> Result<Revision, Failure> {
    let (stored, _) = store.etcd.get(&store.keys.encryption_key()).await?;
    let Some(stored) = stored else {
        let why = "the leader has published no encryption key";
        return Err(
            Failure::refused("NoPublishedKey", why).hint("start the replicas with --encryption-key-file")
        );
    };
    match Recipient::published(&stored.value) {
        Some(published) if published == *first => Ok(stored.mod_revision),
        published => {
            let other = published.map_or_else(|| "none".to_owned(), |key| key.id().to_string());
            let why = format!(
                "the first key is {}, and the published one is {other}",
                first.id()
            );
            Err(Failure::refused("OtherKey", why)
                .hint("restart the replicas with this file first, or give theirs with --encryption-key-file"))
        }
    }
}

/// The names of all Secrets. One whose key no Secret can have is none.
async fn names(store: &Store) -> Result<Vec<Name>, Failure> {
    let (stored, _) = store.etcd.list(&store.keys.secrets()).await?;
    let names = stored.into_iter().filter_map(|mut kv| {
        wipe(&mut kv.value);
        store.keys.parse_secret(&kv.key)?.parse().ok()
    });
    Ok(names.collect())
}

/// What the rotation of each Secret needs.
struct Rotation<'a> {
    store: &'a Store,
    keyring: &'a Keyring,
    recipient: &'a Recipient,
    /// The revision of the published key. Once that is another, nothing more is encrypted with this one.
    published: Revision,
}

impl Rotation<'_> {
    async fn rotate(&self, name: &Name) -> Result<Outcome, Failure> {
        let outcome = commit::settle(self.store, "encrypted", async || self.decide(name).await).await?;
        if outcome != Outcome::Unchanged {
            failpoint::abort_at("rotate.written");
        }
        Ok(outcome)
    }

    async fn decide(&self, name: &Name) -> Result<Decision<Outcome>, Failure> {
        let Self { store, keyring, .. } = self;
        let published = store.keys.encryption_key();
        let key = store.keys.secret(name);
        let ([current, stored], _) = store.etcd.get_each([&published, &key]).await?;
        if current.map(|kv| kv.mod_revision) != Some(self.published) {
            return Err(Failure::conflict(
                "another key was published meanwhile; look at quorate secrets status",
            ));
        }
        let Some(stored) = stored else {
            return Ok(Decision::Nothing(Outcome::Unchanged));
        };
        let value = Zeroizing::new(stored.value);
        let made = encrypted(self.recipient, keyring, &key, name.as_str(), &value);
        let Some(made) = made.map_err(Failure::failed)? else {
            return Ok(Decision::Nothing(Outcome::Unchanged));
        };
        let before = message::<Secret>(Secret::KIND, &value).map_err(Failure::failed)?;
        let outcome = match form(&before) {
            Form::Plain => Outcome::Encrypted,
            Form::Sealed(_) | Form::Kubernetes(_) => Outcome::Rotated,
        };
        drop(value);
        failpoint::pause_at("rotate.encrypted").await;
        let txn = Txn::new()
            .when_unchanged(&key, stored.mod_revision)
            .when_unchanged(&published, self.published)
            .put(&key, made);
        Ok(Decision::Write(txn, outcome))
    }
}

fn report(shape: Shape, key: &str, done: &[(Name, Outcome)], failures: &[Failure]) -> Result<(), Failure> {
    let count = |wanted| done.iter().filter(|(_, outcome)| *outcome == wanted).count();
    let of = |wanted| {
        let found = done.iter().filter(move |(_, outcome)| *outcome == wanted);
        found.map(|(name, _)| name.to_string()).collect::<Vec<_>>()
    };
    let plain = count(Outcome::Encrypted);
    print(&match shape {
        Shape::Json => text::to_json(&json!({
            "key": key,
            "encrypted": of(Outcome::Encrypted),
            "rotated": of(Outcome::Rotated),
            "unchanged": of(Outcome::Unchanged),
            "failures": failures.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })),
        Shape::Table => {
            let lines = done.iter().filter_map(|(name, outcome)| match outcome {
                Outcome::Encrypted => Some(format!("secret/{name} encrypted\n")),
                Outcome::Rotated => Some(format!("secret/{name} rotated\n")),
                Outcome::Unchanged => None,
            });
            let lines: String = lines.collect();
            format!(
                "{lines}key {key}: {} encrypted that were plain, {} rotated, {} unchanged\n",
                plain,
                count(Outcome::Rotated),
                count(Outcome::Unchanged)
            )
        }
    })?;
    if plain > 0 {
        note(format_args!(
            "the plain values of {} stay in etcd's history until it is compacted and defragmented, and in backups",
            secrets(plain)
        ));
    }
    Ok(())
}
