//! `quorate wait`: blocks until objects are as a script needs them.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;

use super::kinds::Kind;
use super::kinds::target::{Target, TargetParser};
use super::view::View;
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::duration::duration;
use crate::cli::exit::Failure;
use crate::cli::output::{one_line, print};
use crate::cli::wait;
use crate::etcd::Revision;
use crate::store::Id;

pub mod goal;

use goal::Goal;

/// Arguments of `quorate wait`.
#[derive(Args, Debug)]
#[command(after_help = "\
--for takes one of:
  create                        the object exists
  delete                        the object does not exist
  condition=TYPE[=STATUS]       a condition has this status [default: True]
  jsonpath=PATH[=VALUE]         a field has this value; without one, any but an empty one

PATH is a path in what `quorate get -o json` shows: .status.ready, {.status.csi[0].nodeID}.

An object that does not exist, or is deleted meanwhile, ends the command with exit code 3, unless that is waited for. One that \
was deleted and created again is deleted.

Examples:
  quorate wait node n2 --for=jsonpath=.status.role=manager --timeout 5m
  quorate wait volume data --for=jsonpath=.status.volumeID
  quorate wait publication data/n1 --for=jsonpath=.status.state=published
  quorate wait publications data/n1 data/n2 --for=delete")]
pub struct WaitForArgs {
    /// The kind of the objects; KIND/NAME names one object
    #[arg(value_name = "KIND[/NAME]", value_parser = TargetParser::FOLLOWED)]
    target: Target,

    /// Names of the objects
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// What to wait for
    #[arg(long = "for", value_name = "WHAT", value_parser = str::parse::<Goal>)]
    goal: Goal,

    /// Give up waiting after this long (30s, 5m, 1h30m) [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
}

/// Runs the command.
///
/// # Errors
/// 64 if no object is named, or if etcd reports no change of the kind; 3 if a named object does not exist; 2 after the timeout.
pub async fn run(args: WaitForArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let (kind, ids) = args.target.resolve(&args.names).map_err(Failure::usage)?;
    if ids.is_empty() {
        let words = &kind.words;
        return Err(Failure::usage(format!("name the {} to wait for", words.plural))
            .hint(format!("quorate get {} -o name lists them", words.plural)));
    }
    if kind.shows_members {
        return Err(Failure::usage(
            "etcd reports no change of how its members are, so none can be waited for",
        )
        .hint("quorate get members --watch asks them again and again"));
    }
    let store = connect(etcd).await?;
    let asked: Vec<&Id> = ids.iter().collect();
    let ranges = kind.ranges_to_follow(&store, &ids).await;
    let hint = "it goes on without this command; run the command again to wait on";
    let mut first_seen = BTreeMap::new();
    wait::until_all(&store, ranges, args.timeout, hint, &asked, |view, id, _| {
        observe(kind, view, id, &args.goal, &mut first_seen)
    })
    .await?;
    let met = asked
        .iter()
        .map(|id| format!("{}/{id} {}\n", kind.words.singular, args.goal.met()));
    print(&met.collect::<String>()).map(drop)
}

/// Why an object is not yet as it is waited for; `None` once it is. `first_seen` has the revision at which each object was created
/// that was seen first.
fn observe<'i>(
    kind: &'static Kind,
    view: &View,
    id: &'i Id,
    goal: &Goal,
    first_seen: &mut BTreeMap<&'i Id, Revision>,
) -> Result<Option<String>, Failure> {
    let named = format!("{}/{id}", kind.words.singular);
    let item = kind.item(view, &kind.key(view, id), Timestamp::now());
    let Some(item) = item else {
        return match goal.reads_the_object() {
            true => Err(kind.not_found(&[id], &view.keys)),
            false => Ok(goal.lacks(None).map(|lacks| format!("{named}: {lacks}"))),
        };
    };
    // The deletion may have come together with the creation of another one.
    let created = item.stored.create_revision;
    if *goal == Goal::Deleted && *first_seen.entry(id).or_insert(created) != created {
        return Ok(None);
    }
    let shown = kind.show(&item);
    if let Some(why) = shown.malformed.filter(|_| goal.reads_the_object()) {
        return Err(Failure::failed(format!("{named} cannot be read: {why}")).hint(kind.repair()));
    }
    let lacks = goal.lacks(Some(&shown.document));
    Ok(lacks.map(|lacks| format!("{named}: {}", one_line(&lacks))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::objects::kinds::registry::find;
    use crate::etcd::KeyValue;
    use crate::store::{Keys, Name};

    #[test]
    fn an_object_that_was_created_again_was_deleted_and_its_value_is_not_asked_for() {
        let (kind, keys) = (find("secret").unwrap(), Keys::new("/q".parse().unwrap()));
        let id = Id::from("a".parse::<Name>().unwrap());
        let mut view = View::new(keys.clone());
        let mut first_seen = BTreeMap::new();
        let mut observe = |view: &View, goal: &Goal| observe(kind, view, &id, goal, &mut first_seen).unwrap();
        assert_eq!(observe(&view, &Goal::Deleted), None);

        let malformed = KeyValue::written_at(kind.space.key(&keys, &id), vec![0xff], 1);
        view.set(&malformed.key, Some(&malformed));
        assert_eq!(observe(&view, &Goal::Created), None);
        for _ in 0..2 {
            let lacks = observe(&view, &Goal::Deleted);
            assert_eq!(lacks.as_deref(), Some("secret/a: it still exists"));
        }
        let again = KeyValue {
            create_revision: Revision(7),
            ..malformed
        };
        view.set(&again.key, Some(&again));
        assert_eq!(observe(&view, &Goal::Deleted), None);
    }
}
