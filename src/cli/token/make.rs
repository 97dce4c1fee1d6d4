//! `quorate token create` and `quorate token rotate`.

use clap::Args;
use jiff::Timestamp;
use prost::Message;

use super::{JoinerArgs, read_record};
use crate::cli::ca::{CaDir, read};
use crate::cli::commit::{self, Decision};
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::Failure;
use crate::cli::output::{Reader, note, print};
use crate::cli::roles::request::read_node;
use crate::etcd::{KeyValue, Revision, Txn};
use crate::identity::directory::{self, DirectoryError};
use crate::identity::rotation::record::Phase;
use crate::identity::{AuthorityCertificate, AuthorityDigest, AuthorityKind, Token};
use crate::store::Store;
use crate::store::keys::Joiner;
use crate::store::object::{Object, time};
use crate::wire;

/// Arguments of `quorate token create`.
#[derive(Args, Debug)]
#[command(after_help = "\
The token is printed to standard output, and nothing else. It names the node authority of --ca-dir, whose certificate alone is \
read: the key need not be there. etcd holds a hash of the token, so it cannot be shown again.

Examples:
  (umask 077; quorate token create --role worker --ca-dir ca > worker.token)
  (umask 077; quorate token create --node n4 --ca-dir ca > n4.token)

Exit codes: 0 done, 1 failed, 3 the node does not exist, 4 the node cannot be read or has no uid, 5 there is a token already.")]
pub struct CreateArgs {
    #[command(flatten)]
    joiner: JoinerArgs,

    #[command(flatten)]
    ca: CaDir,
}

/// Arguments of `quorate token rotate`.
#[derive(Args, Debug)]
#[command(after_help = "\
Nodes that have joined are not affected. The former token lets in no more from this moment on, and nothing is kept of it. Of \
two rotations at once one fails, so that no token is printed that lets in no node.

Examples:
  (umask 077; quorate token rotate --role worker --ca-dir ca > worker.token)

Exit codes: 0 done, 1 failed, 3 there is no token, or the node does not exist, 4 the node cannot be read or has no uid, 5 another \
command has changed the token meanwhile.")]
pub struct RotateArgs {
    #[command(flatten)]
    joiner: JoinerArgs,

    #[command(flatten)]
    ca: CaDir,
}

/// The last field of a `JoinToken` that this release knows.
const LAST_KNOWN_FIELD: u64 = 4;

/// What the command expects of the token that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Former {
    /// There is none.
    Absent,
    /// There is one, and it ends.
    Replaced,
}

pub async fn create(args: &CreateArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    make(&args.joiner.joiner(), &args.ca, Former::Absent, etcd).await
}

pub async fn rotate(args: &RotateArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    make(&args.joiner.joiner(), &args.ca, Former::Replaced, etcd).await
}

async fn make(joiner: &Joiner, ca: &CaDir, former: Former, etcd: &EtcdArgs) -> Result<(), Failure> {
    let now = Timestamp::now();
    let current = directory::read_certificate(&ca.ca_dir, AuthorityKind::Node, now);
    let store = connect(etcd).await?;
    let token = Token::create(authority(&store, ca, current, now).await?)?;
    let key = store.keys.join_token(joiner);
    let mut first: Option<Revision> = None;
    let done = match former {
        Former::Absent => "created",
        Former::Replaced => "rotated",
    };
    let made = commit::settle(&store, done, async || {
        let (stored, _) = store.etcd.get(&key).await?;
        let found = stored.as_ref().map_or(Revision::ABSENT, |kv| kv.mod_revision);
        let (node_uid, txn) = of_node(&store, joiner).await?;
        check(joiner, former, stored.as_ref(), &node_uid)?;
        if *first.get_or_insert(found) != found {
            return Err(Failure::conflict(format!(
                "another command has changed the token of {joiner} meanwhile"
            ))
            .hint("quorate token show says since when it is as it is"));
        }
        let mut record = token.record(&node_uid, now).encode_to_vec();
        if let Some(stored) = stored.as_ref().filter(|stored| keeps_newer(former, stored)) {
            record.extend(wire::fields(&stored.value, |number| number > LAST_KNOWN_FIELD));
        }
        let txn = txn.when_unchanged(&key, found);
        Ok(Decision::Write(txn.put(&key, record), ()))
    });
    made.await?;
    // Not before it is committed: a token that was shown and opens nothing would only be found out when a node joins.
    match print(&format!("{}\n", token.reveal())) {
        Ok(Reader::Listening) => {}
        Ok(Reader::Gone) | Err(_) => {
            return Err(Failure::failed(format_args!(
                "the token of {joiner} is {done}, and could not be printed"
            ))
            .hint("quorate token rotate makes another one in its place"));
        }
    }
    note(format_args!(
        "the token of {joiner} is shown this once: keep it where only those read it who may join"
    ));
    Ok(())
}

/// The authority that the token names. Once a rotation signs with the next one, a token of that lasts; before, no server may show it yet.
async fn authority(
    store: &Store,
    ca: &CaDir,
    current: Result<AuthorityCertificate, DirectoryError>,
    now: Timestamp,
) -> Result<AuthorityDigest, Failure> {
    let rotation = read(store).await?;
    let dropped = rotation.as_ref().filter(|rotation| !rotation.trusts_both());
    let dropped = dropped.map(|rotation| rotation.before.node);
    // Once it is done, an operator may replace the authorities by hand, as where they have ended.
    let under_way = rotation.as_ref().filter(|rotation| rotation.phase != Phase::Done);
    let known = under_way.map(|rotation| [rotation.before.node, rotation.after.node]);
    let signs = rotation.map(|rotation| rotation.signs(AuthorityKind::Node));
    if let Ok(next) = directory::read_next_certificate(&ca.ca_dir, AuthorityKind::Node, now)
        && signs == Some(next.digest())
    {
        return Ok(next.digest());
    }
    let current = current?.digest();
    if known.is_some_and(|known| !known.contains(&current)) {
        return Err(Failure::conflict(format_args!(
            "the node authority {current} in current/ is none of the rotation that is under way: agents would trust no replica by its tokens"
        ))
        .hint("is --ca-dir right? quorate ca status shows the authorities of the rotation"));
    }
    match dropped == Some(current) && signs != dropped {
        true => Err(Failure::conflict(
            "a rotation has dropped the node authority in current/: no replica takes a token of it",
        )
        .hint("quorate ca rotate, where its next/ is, moves that to current/ once the rotation is over")),
        false => Ok(current),
    }
}

/// The uid of the node that the token is for, empty for a role, and a transaction that compares the node.
async fn of_node(store: &Store, joiner: &Joiner) -> Result<(String, Txn), Failure> {
    let Joiner::Node(name) = joiner else {
        return Ok((String::new(), Txn::new()));
    };
    let node = read_node(store, name).await?;
    let uid = node.object.uid();
    if uid.is_empty() {
        let why =
            format!("node {name} has no uid, so a token of it would be one of every later node of its name");
        return Err(Failure::refused("NoUid", why));
    }
    let unchanged = Txn::new().when_unchanged(&node.key, node.revision);
    Ok((uid.to_owned(), unchanged))
}

/// Whether the record keeps what only a later release knows: that applies to the joiner, not to the secret. Of a record that cannot be
/// read, nothing is kept, which could make the next one as unreadable.
fn keeps_newer(former: Former, stored: &KeyValue) -> bool {
    former == Former::Replaced && read_record(stored).is_ok()
}

fn check(joiner: &Joiner, former: Former, stored: Option<&KeyValue>, node_uid: &str) -> Result<(), Failure> {
    match (former, stored) {
        (Former::Absent, None) | (Former::Replaced, Some(_)) => Ok(()),
        (Former::Replaced, None) => Err(Failure::not_found(format_args!("there is no token of {joiner}"))
            .hint("quorate token create makes one")),
        (Former::Absent, Some(stored)) => {
            let since = match read_record(stored) {
                // That of an earlier node of the name lets in no more.
                Ok(record) if record.node_uid != node_uid => return Ok(()),
                Ok(record) => time::document(record.since.as_ref()),
                Err(_) => None,
            };
            let since = since.map_or_else(String::new, |since| format!(", since {since}"));
            Err(
                Failure::conflict(format_args!("there is a token of {joiner} already{since}"))
                    .hint("quorate token rotate makes another one in its place"),
            )
        }
    }
}
