//! What etcd lets this client read and write. Pure.

use super::checklist::Checklist;
use crate::cli::doctor::finding::Finding;
use crate::cli::doctor::reason::Reason;
use crate::cli::doctor::seen::{RangeSeen, Seen};
use crate::etcd::{Class, Error};

/// Checks each range.
pub fn check(seen: &Seen, list: &mut Checklist) {
    let Ok(store) = &seen.store else {
        return;
    };
    let prefix = seen.keys.prefix().as_str();
    for range in &store.ranges {
        let found = |verb, error: Option<&Error>| refused(range, verb, error?, prefix);
        list.check(found("read", range.read.as_ref().err()));
        if let Some(write) = &range.write {
            list.check(found("write", write.as_ref().err()));
        }
    }
}

fn refused(range: &RangeSeen, verb: &str, error: &Error, prefix: &str) -> Option<Finding> {
    let subject = format!("keys below {}", range.prefix);
    match error.class {
        Class::Denied => Some(
            Finding::fault(
                Reason::EtcdRights,
                subject,
                format!("etcd does not let this client {verb} them: {}", error.message()),
            )
            .matters(
                "what lies there is not kept up; without the right to write the keys of the election a replica does not stand for it",
            )
            .remedy(format!(
                "give the role of the user this permission: etcdctl role grant-permission ROLE --prefix=true readwrite {prefix}/"
            )),
        ),
        // The finding about the alarm says so.
        Class::Exhausted if verb == "write" => None,
        _ => Some(
            Finding::warning(
                Reason::NotAnswered,
                subject,
                format!("they could not be checked ({verb}): {}", error.message()),
            )
            .matters("what lies there is not known")
            .remedy("run doctor again; if it stays so, look at the log of etcd"),
        ),
    }
}
