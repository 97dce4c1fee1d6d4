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
use crate::identity::rotation::record::Rotation;
use crate::identity::token::BadToken;
use crate::identity::{AuthorityDigest, Token};
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
    match rotation.is_some_and(|rotation| has_dropped(&rotation, token.authority())) {
        true => Err(Failure::refused(
            "WrongToken",
            "a rotation has dropped its node authority: agents trust no replica by it",
        )
        .hint("quorate token rotate makes another one in its place")),
        false => Ok(()),
    }
}

/// Whether a rotation has dropped this authority. One that is neither of its two may have been put in place by hand since it was done.
fn has_dropped(rotation: &Rotation, authority: AuthorityDigest) -> bool {
    !rotation.trusts_both() && authority == rotation.before.node && authority != rotation.after.node
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

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::identity::rotation::record::{Phase, Roots};

    #[test]
    fn a_rotation_drops_the_former_authority_alone_and_none_that_was_put_in_place_since() {
        let digest = |byte: u8| AuthorityDigest([byte; 32]);
        let roots = |first: u8| Roots {
            node: digest(first),
            etcd: digest(first + 1),
        };
        let rotation = Rotation::begun(roots(1), roots(3), 0, Timestamp::UNIX_EPOCH);
        for (phase, dropped) in [
            (Phase::Trust, false),
            (Phase::Reissue, false),
            (Phase::Drop, true),
            (Phase::Done, true),
        ] {
            let rotation = rotation.clone().moved_to(phase, Timestamp::UNIX_EPOCH);
            assert_eq!(has_dropped(&rotation, digest(1)), dropped, "{phase:?}");
            assert!(!has_dropped(&rotation, digest(3)), "{phase:?}");
            assert!(!has_dropped(&rotation, digest(9)), "{phase:?}");
        }
        // Of etcd's authority alone.
        let same = Rotation::begun(roots(1), roots(1), 0, Timestamp::UNIX_EPOCH);
        assert!(!has_dropped(
            &same.moved_to(Phase::Done, Timestamp::UNIX_EPOCH),
            digest(1)
        ));
    }
}
