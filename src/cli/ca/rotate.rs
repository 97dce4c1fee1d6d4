//! `quorate ca rotate`.

use std::path::Path;

use clap::Args;
use jiff::Timestamp;
use prost::Message as _;

use super::CaDir;
use super::status::{self, NOT_BEGUN, RotationFormat, reasons, unreadable};
use crate::cli::commit::{self, Decision};
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::Failure;
use crate::cli::objects::view::View;
use crate::cli::output::note;
use crate::cli::wait::{Progress, WaitArgs, until};
use crate::etcd::{KeyRange, KeyValue, Revision, Txn};
use crate::identity::rotation::record::{Asked, OnRecord, Phase, Roots, Rotation};
use crate::identity::{Authority, AuthorityKind, directory};
use crate::proto::RotationRequest;
use crate::store::Store;
use crate::store::object::time;
use crate::wire;

/// What becomes of a rotation when the command no longer waits for it.
const GOES_ON: &str =
    "the leader carries it on; quorate ca status shows how far it is, and the same command goes on waiting";

/// The last field of a `RotationRequest` that this release knows.
const LAST_KNOWN_FIELD: u64 = 3;

/// Arguments of `quorate ca rotate`.
#[derive(Args, Debug)]
#[command(after_help = "\
Makes new authorities in next/ beside current/, unless they are there, and asks the leader to put them in the place of the \
present ones: every replica comes to trust both (trust), every certificate is replaced (reissue), the former ones are dropped \
(drop), for which the etcds are started again one after the other. Give every replica the same next/ in its --ca-dir. The same command \
goes on with a rotation that is under way, and moves next/ to current/ once that is over; the former authorities stay beside it.

Clients of etcd that Quorate does not know, such as a kube-apiserver, have to get certificates of the new authority from quorate ca \
issue etcd-client before the former one is dropped. The rotation waits for the word that they have: --drop-old.

Examples:
  quorate ca rotate --ca-dir ca
  quorate ca rotate --ca-dir ca --drop-old --wait --timeout 30m

Exit codes: 0 done, 1 failed, 2 timed out, 4 the record of a rotation cannot be read, 5 another rotation is asked for or under way.")]
pub struct RotateArgs {
    #[command(flatten)]
    ca: CaDir,

    /// No client of etcd needs the former authority any more: it may be dropped once everything else is done
    #[arg(long)]
    drop_old: bool,

    #[command(flatten)]
    wait: WaitArgs,

    /// How to print how far it is
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: RotationFormat,
}

pub async fn run(args: &RotateArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let store = connect(etcd).await?;
    let directory = args.ca.ca_dir.as_path();
    let now = Timestamp::now();
    let on_record = status::read(&store).await?;
    let under_way = on_record
        .as_ref()
        .filter(|rotation| rotation.phase != Phase::Done);
    if let Some(done) = on_record.as_ref().filter(|_| under_way.is_none())
        && directory::has_next(directory)
        && next_roots(directory, now)? == done.after
    {
        return finish(directory, done, now, args.output);
    }
    let roots = match under_way {
        Some(rotation) => going_on(directory, rotation, now)?,
        None => {
            if !directory::has_next(directory) {
                if let Some(done) = &on_record {
                    not_dropped(directory, done, now)?;
                }
                // What is on record asks for other authorities than those that are made now.
                request_on_record(&store, None).await?;
                make_next(directory, now)?;
            }
            next_roots(directory, now)?
        }
    };
    commit::settle(&store, "requested", async || {
        decide(&store, roots, args.drop_old, now).await
    })
    .await?;
    if !args.wait.wait {
        return status::show(status::read(&store).await?.as_ref(), args.output);
    }
    let ranges = vec![KeyRange::key(store.keys.rotation())];
    let observe = |view: &View| observe(view, &store, roots);
    let done = until(&store, ranges, args.wait.timeout, GOES_ON, observe).await?;
    match directory::has_next(directory) && next_roots(directory, now)? == done.after {
        true => finish(directory, &done, now, args.output),
        false => status::show(Some(&done), args.output),
    }
}

/// The authorities of the rotation that is under way. Others in the directory would be those of another one.
fn going_on(directory: &Path, rotation: &Rotation, now: Timestamp) -> Result<Roots, Failure> {
    if directory::has_next(directory) && next_roots(directory, now)? != rotation.after {
        let next = directory.join(directory::NEXT);
        return Err(Failure::conflict(format_args!(
            "a rotation to other authorities than those of {} is under way",
            next.display()
        ))
        .hint("quorate ca status shows it; run this command where its next/ is"));
    }
    Ok(rotation.after)
}

/// The authorities of `current/` are none that a rotation has dropped: what they sign leads nowhere.
fn not_dropped(directory: &Path, done: &Rotation, now: Timestamp) -> Result<(), Failure> {
    for kind in AuthorityKind::ALL {
        let former = done.before.of(kind);
        let is_it = directory::read_certificate(directory, kind, now)?.digest() == former;
        if is_it && done.after.of(kind) != former {
            let current = directory.join(directory::CURRENT);
            return Err(Failure::conflict(format_args!(
                "the last rotation has dropped the {} authority in {}",
                kind.word(),
                current.display()
            ))
            .hint("put the authorities there that it has put in its place; quorate ca status shows their digests"));
        }
    }
    Ok(())
}

fn next_roots(directory: &Path, now: Timestamp) -> Result<Roots, Failure> {
    Ok(Roots {
        node: directory::read_next_certificate(directory, AuthorityKind::Node, now)?.digest(),
        etcd: directory::read_next_certificate(directory, AuthorityKind::Etcd, now)?.digest(),
    })
}

/// Makes the authorities that take the place of the present ones, all files at once.
fn make_next(directory: &Path, now: Timestamp) -> Result<(), Failure> {
    let mut files = Vec::new();
    for kind in AuthorityKind::ALL {
        let former = directory::read(directory, kind, now)?;
        let (next, key, cross) = Authority::create_after(kind, &former, now)?;
        files.push((kind.certificate_file(), next.certificates_pem().to_owned()));
        files.push((kind.cross_file(), cross));
        files.push((kind.key_file(), key));
    }
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(name, content)| (*name, content.as_str()))
        .collect();
    let next = directory::create_next(directory, &files)?;
    note(format_args!(
        "made the next authorities in {}: give every replica this directory",
        next.display()
    ));
    Ok(())
}

/// The rotation is over: its authorities become those that sign without it.
fn finish(directory: &Path, done: &Rotation, now: Timestamp, format: RotationFormat) -> Result<(), Failure> {
    let former = directory::take_next(directory, now)?;
    let (next, current) = (
        directory.join(directory::NEXT),
        directory.join(directory::CURRENT),
    );
    note(format_args!("{} is {} now", next.display(), current.display()));
    if let Some(former) = former {
        note(format_args!(
            "nothing trusts the authorities in {} any more: delete them",
            former.display()
        ));
    }
    status::show(Some(done), format)
}

/// The request on record; `None` in the place of authorities stands for those that are yet to be made.
///
/// # Errors
/// 5 where another rotation than the one to these authorities is asked for or under way.
async fn request_on_record(store: &Store, roots: Option<Roots>) -> Result<Option<KeyValue>, Failure> {
    let (request, rotation) = (store.keys.rotation_request(), store.keys.rotation());
    let ([request_found, rotation_found], _) = store.etcd.get_each([&request, &rotation]).await?;
    let rotation = rotation_found.map_or(OnRecord::Absent, |stored| OnRecord::of(&stored));
    let asked = request_found
        .as_ref()
        .and_then(|stored| Asked::read(&stored.value));
    if let Some(other) = other_rotation(asked, rotation.rotation(), roots) {
        let Roots { node, etcd } = other;
        return Err(Failure::conflict(format_args!(
            "another rotation was asked for, and is not over: to node authority {node} and etcd authority {etcd}"
        ))
        .hint(format_args!(
            "run this command where its next/ is; as long as quorate ca status does not show it, etcdctl del {} withdraws it",
            String::from_utf8_lossy(&request)
        )));
    }
    Ok(request_found)
}

/// The authorities of a rotation that is under way, or that was asked for and has yet to begin, unless they are these. A request that
/// was carried out stays on record, and counts no more. Pure.
fn other_rotation(asked: Option<Asked>, rotation: Option<&Rotation>, roots: Option<Roots>) -> Option<Roots> {
    let under_way = rotation.filter(|rotation| rotation.phase != Phase::Done);
    let under_way = under_way.map(|rotation| rotation.after);
    let to_begin = asked.filter(|asked| asked.is_to_begin(rotation));
    let mut others = under_way.into_iter().chain(to_begin.map(|asked| asked.roots));
    others.find(|other| roots != Some(*other))
}

/// Asks for the rotation, unless that is on record. It takes the place of no other one: its operator would wait for it in vain.
async fn decide(
    store: &Store,
    roots: Roots,
    drop_old: bool,
    now: Timestamp,
) -> Result<Decision<()>, Failure> {
    let key = store.keys.rotation_request();
    let stored = request_on_record(store, Some(roots)).await?;
    let asked = stored.as_ref().and_then(|stored| Asked::read(&stored.value));
    let same = asked.filter(|asked| asked.roots == roots);
    let drop_old = drop_old || same.is_some_and(|asked| asked.drop_old);
    if same.is_some_and(|asked| asked.drop_old == drop_old) {
        return Ok(Decision::Nothing(()));
    }
    let request = RotationRequest {
        roots: Some(roots.to_proto()),
        at: Some(time::to_proto(now)),
        drop_old,
    };
    let mut value = request.encode_to_vec();
    if let Some(stored) = &stored {
        value.extend(wire::fields(&stored.value, |number| number > LAST_KNOWN_FIELD));
    }
    let found = stored.map_or(Revision::ABSENT, |stored| stored.mod_revision);
    let txn = Txn::new().when_unchanged(&key, found).put(&key, value);
    Ok(Decision::Write(txn, ()))
}

/// How far the rotation to these authorities is.
fn observe(view: &View, store: &Store, roots: Roots) -> Result<Progress<Rotation>, Failure> {
    let Some(stored) = view.get(&store.keys.rotation()) else {
        return Ok(Progress::Waiting(vec![NOT_BEGUN.to_owned()]));
    };
    let rotation = Rotation::read(&stored.value).ok_or_else(unreadable)?;
    if rotation.after != roots {
        return Ok(Progress::Waiting(vec![NOT_BEGUN.to_owned()]));
    }
    if rotation.phase == Phase::Done {
        return Ok(Progress::Done(rotation));
    }
    let phase = format!("phase {}", rotation.phase.word());
    let reasons = [phase].into_iter().chain(reasons(&rotation));
    Ok(Progress::Waiting(reasons.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::AuthorityDigest;

    fn roots(byte: u8) -> Roots {
        Roots {
            node: AuthorityDigest([byte; 32]),
            etcd: AuthorityDigest([byte; 32]),
        }
    }

    #[test]
    fn a_rotation_takes_the_place_of_none_that_is_under_way_or_has_yet_to_begin() {
        let now = "2026-03-01T12:00:00Z".parse().unwrap();
        let asked = |byte| {
            Some(Asked {
                roots: roots(byte),
                drop_old: false,
            })
        };
        let begun = Rotation::begun(roots(1), roots(2), 0, now);
        let done = begun.moved_to(Phase::Done, now);
        for (asked, rotation, expected) in [
            (None, None, None),
            (asked(3), None, None),
            (asked(4), None, Some(4)),
            (asked(2), Some(&done), None),
            (asked(4), Some(&done), Some(4)),
            (asked(2), Some(&begun), Some(2)),
            (None, Some(&begun), Some(2)),
        ] {
            let other = other_rotation(asked, rotation, Some(roots(3)));
            assert_eq!(other, expected.map(roots), "{asked:?} {rotation:?}");
        }
        assert_eq!(other_rotation(asked(2), Some(&begun), Some(roots(2))), None);
        assert_eq!(other_rotation(asked(3), None, None), Some(roots(3)));
    }
}
