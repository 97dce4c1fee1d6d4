//! The Member kind for commands: etcd's own list, what each member reports, and the records that tie members to nodes.

use std::collections::BTreeMap;

use super::{Kind, Shown, Words};
use crate::cli::objects::view::Item;
use crate::cli::output::{Description, UNKNOWN, bytes, yes_no};
use crate::cli::roles::adopt;
use crate::etcd::MemberId;
use crate::etcd::members::ListedMember;
use crate::store::keys::KeySpace;
use crate::store::object::{Malformed, time};

mod detail;
mod seen;

use seen::{Seen, known};

const KIND: &str = "Member";

/// The kind.
pub static MEMBERS: Kind = Kind {
    shows_members: true,
    // By the name that etcd knows, or by an id without its leading zeros.
    alias: |view, id| {
        let (members, text) = (view.membership()?.members.iter(), id.name.as_str());
        let listed = members.filter_map(|member| member.listed.as_ref());
        let named = adopt::find(listed, text).first().map(|member| member.id);
        let id = named.or_else(|| u64::from_str_radix(text, 16).ok().map(MemberId));
        id.map(|id| view.keys.member(id))
    },
    ..Kind::new(
        Words::new(KIND, "member", "members", &["mem"]),
        KeySpace::MEMBERS,
        &[
            "NAME",
            "ETCD NAME",
            "NODE",
            "ROLE",
            "LEADER",
            "HEALTH",
            "VERSION",
            "DB SIZE",
            "LAG",
            "ALARMS",
        ],
        &["IN USE", "RAFT TERM", "PEER URLS", "CLIENT URLS", "JOINED"],
        show,
        describe,
        Err("quorate demote NODE removes the member of a node from etcd"),
    )
};

fn seen<'v>(item: &Item<'v>) -> Result<Seen<'v>, Malformed> {
    let id = item
        .view
        .keys
        .parse_member(&item.stored.key)
        .unwrap_or(MemberId(0));
    Seen::new(item.view, id, item.stored)
}

fn show(item: &Item<'_>) -> Result<Shown, Malformed> {
    let seen = seen(item)?;
    let status = seen.status();
    let listed = |pick: fn(&ListedMember) -> &[String]| seen.listed().map_or(&[][..], pick).join(",");
    let joined = seen.record.as_ref().map(|record| {
        let joined = time::from_proto(record.joined_at.as_ref());
        joined.map_or_else(|| UNKNOWN.to_owned(), |joined| time::age(joined, item.now))
    });
    let cells = vec![
        seen.listed()
            .map_or_else(String::new, |listed| listed.name.clone()),
        seen.node().to_owned(),
        seen.role().to_owned(),
        known(seen.leads.map(yes_no)),
        seen.health().to_owned(),
        known(status.map(|status| &status.version)),
        known(status.map(|status| bytes(status.db_size))),
        known(seen.lag),
        seen.alarms.join(","),
        known(status.map(|status| bytes(status.db_in_use))),
        known(status.map(|status| status.raft_term)),
        listed(|listed| &listed.peer_urls),
        listed(|listed| &listed.client_urls),
        joined.unwrap_or_default(),
    ];
    let document = detail::document(&seen, item.revision());
    Ok(Shown::new(BTreeMap::new(), cells, document))
}

fn describe(item: &Item<'_>, description: &mut Description) {
    match seen(item) {
        Ok(seen) => detail::describe(description, &seen, item.now),
        Err(malformed) => description.malformed(item, &malformed),
    }
}
