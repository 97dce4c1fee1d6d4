//! How findings name what they are about. Pure.

use crate::roles::membership::Member;

/// How a member is named.
pub fn subject(member: &Member) -> String {
    let etcd = member.listed.as_ref().map_or("", |listed| &listed.name);
    match etcd {
        "" => format!("etcd member {}", member.id),
        name => format!("etcd member {name}"),
    }
}
