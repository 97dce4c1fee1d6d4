//! `quorate token check`.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::Args;

use super::read_record;
use crate::cli::ca::read as read_rotation;
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::Failure;
use crate::cli::objects::stored::Versioned;
use crate::cli::output::print;
use crate::identity::Token;
use crate::identity::token::BadToken;
use crate::proto::{JoinToken, Node};
use crate::store::Store;
use crate::store::keys::Joiner;
use crate::store::object::Object;

/// More than any token has.
const MOST_BYTES: u64 = 1024;

/// Arguments of `quorate token check`.
#[derive(Args, Debug)]
#[command(after_help = "\
Prints who joins with the token: worker, manager, or node/NAME.

Examples:
  quorate token check worker.token
  quorate token check - < worker.token

Exit codes: 0 it lets in, 1 failed, 4 it does not, 64 it is no token, or cannot be read.")]
pub struct CheckArgs {
    /// File that holds the token; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub async fn run(args: &CheckArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let text = read(&args.file)?;
    let token: Token = text.trim().parse().map_err(|bad: BadToken| {
        let file = args.file.display();
        Failure::usage(bad).on(file)
    })?;
    let store = connect(etcd).await?;
    let (stored, _) = store.etcd.list(&store.keys.join_tokens()).await?;
    let mut records = stored.iter().filter_map(|kv| {
        let joiner = store.keys.parse_join_token(&kv.key)?;
        Some((joiner, read_record(kv).ok()?))
    });
    let Some((joiner, record)) = records.find(|(_, record)| token.is_recorded_as(record)) else {
        return Err(Failure::refused(
            "WrongToken",
            "it lets in no node here: it was rotated, or is a token of another cluster",
        )
        .hint("quorate token show says since when each token is as it is"));
    };
    check_node(&store, &joiner, &record).await?;
    check_authority(&store, &token).await?;
    print(&format!("{joiner}\n")).map(drop)
}

/// Agents trust no server by a token of an authority that a rotation has dropped.
async fn check_authority(store: &Store, token: &Token) -> Result<(), Failure> {
    let rotation = read_rotation(store).await?;
    let over = rotation.filter(|rotation| !rotation.trusts_both());
    match over.is_some_and(|rotation| rotation.after.node != token.authority()) {
        true => Err(Failure::refused(
            "WrongToken",
            "its node authority is not that of the cluster: a rotation has dropped it, or it was made from another --ca-dir",
        )
        .hint("quorate token rotate makes another one in its place")),
        false => Ok(()),
    }
}

/// A later node of the same name is another one.
async fn check_node(store: &Store, joiner: &Joiner, record: &JoinToken) -> Result<(), Failure> {
    let Joiner::Node(name) = joiner else {
        return Ok(());
    };
    match Versioned::<Node>::find(store, name.as_str(), store.keys.node(name)).await? {
        Some(node) if node.object.uid() == record.node_uid => Ok(()),
        _ => Err(Failure::refused(
            "NodeGone",
            format_args!("it was made for a node {name} that does not exist any more"),
        )),
    }
}

fn read(file: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read = match file.to_str() {
        Some("-") => io::stdin().lock().take(MOST_BYTES).read_to_string(&mut text),
        _ => File::open(file).and_then(|open| open.take(MOST_BYTES).read_to_string(&mut text)),
    };
    match read {
        Ok(_) => Ok(text),
        Err(error) => Err(Failure::usage(format_args!(
            "cannot read {}: {error}",
            file.display()
        ))),
    }
}
