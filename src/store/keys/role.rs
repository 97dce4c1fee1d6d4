//! The keys of members, joins and removed nodes: with nodes, the input of the role controller.

use super::{KeySpace, Keys, Name};
use crate::etcd::{KeyRange, MemberId};

/// A key of [`Keys::roles`]. Names are as in the key, valid or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleKey<'a> {
    /// `/joins/<node>`
    Join(&'a str),
    /// `/members/<member id>`
    Member(MemberId),
    /// `/nodes/<name>`, but no key below it
    Node(&'a str),
    /// `/pauses/roles`
    Pause,
    /// `/pauses/roles-last`
    LastPause,
    /// `/removed/<uid>`
    Removed(&'a str),
    /// Any other key, such as that of a registration.
    Other,
}

impl Keys {
    /// `/removed/<uid>`: a `RemovedNode`.
    pub fn removed(&self, uid: &str) -> Vec<u8> {
        self.below(format_args!("/removed/{uid}"))
    }

    /// The range of all removed nodes.
    pub fn all_removed(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/removed/")))
    }

    /// `/pauses/roles`: a `Pause`.
    pub fn roles_pause(&self) -> Vec<u8> {
        self.below(format_args!("/pauses/roles"))
    }

    /// `/pauses/roles-last`: a `LastPause`.
    pub fn last_roles_pause(&self) -> Vec<u8> {
        self.below(format_args!("/pauses/roles-last"))
    }

    /// `/joins/<node>`: a `Join`.
    pub fn join(&self, node: &Name) -> Vec<u8> {
        self.below(format_args!("/joins/{node}"))
    }

    /// The range of all joins.
    pub fn joins(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/joins/")))
    }

    /// `/members/<member id>`: a `Member`.
    pub fn member(&self, id: MemberId) -> Vec<u8> {
        self.below(format_args!("/members/{id}"))
    }

    /// The range of all member records.
    pub fn members(&self) -> KeyRange {
        KeySpace::MEMBERS.all(self)
    }

    /// The id in a key of [`Keys::members`].
    pub fn parse_member(&self, key: &[u8]) -> Option<MemberId> {
        parse_member_id(KeySpace::MEMBERS.name(self, key)?)
    }

    /// Joins, member records, nodes, the pause of roles and removed nodes in one range, so that one watch brings their changes in the order
    /// in which they happened. Keys of other kinds lie between them: [`RoleKey::Other`].
    pub fn roles(&self) -> KeyRange {
        self.joins().through(self.all_removed())
    }

    /// The bytes of a key that [`Keys::parse_role`] returned; `None` for [`RoleKey::Other`].
    pub fn role(&self, key: RoleKey<'_>) -> Option<Vec<u8>> {
        Some(match key {
            RoleKey::Join(node) => self.below(format_args!("/joins/{node}")),
            RoleKey::Member(id) => self.member(id),
            RoleKey::Node(name) => self.below(format_args!("/nodes/{name}")),
            RoleKey::Pause => self.roles_pause(),
            RoleKey::LastPause => self.last_roles_pause(),
            RoleKey::Removed(uid) => self.removed(uid),
            RoleKey::Other => return None,
        })
    }

    /// Parses a key of [`Keys::roles`].
    pub fn parse_role<'a>(&self, key: &'a [u8]) -> RoleKey<'a> {
        let parts = self
            .parse_below(key, "/")
            .and_then(|below| below.split_once('/'))
            .filter(|(_, name)| !name.is_empty() && !name.contains('/'));
        match parts {
            Some(("joins", node)) => RoleKey::Join(node),
            Some(("members", id)) => parse_member_id(id).map_or(RoleKey::Other, RoleKey::Member),
            Some(("nodes", name)) => RoleKey::Node(name),
            Some(("pauses", "roles")) => RoleKey::Pause,
            Some(("pauses", "roles-last")) => RoleKey::LastPause,
            Some(("removed", uid)) => RoleKey::Removed(uid),
            _ => RoleKey::Other,
        }
    }
}

impl KeySpace {
    /// The keys of every `Member`.
    pub const MEMBERS: Self = Self {
        folder: "/members/",
        suffix: "",
        takes: |id| parse_member_id(id).is_some(),
    };
}

/// Accepts an id only as [`MemberId`] prints it, so that no member has two keys.
fn parse_member_id(text: &str) -> Option<MemberId> {
    let id = MemberId(u64::from_str_radix(text, 16).ok()?);
    (id.to_string() == text).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys::new("/team/quorate".parse().unwrap())
    }

    #[test]
    fn the_range_of_roles_holds_each_kind_and_tells_them_apart() {
        let range = keys().roles();
        let (name, id): (Name, _) = ("n1".parse().unwrap(), MemberId(0x1f));
        assert_eq!(keys().member(id), b"/team/quorate/members/000000000000001f");
        for (key, expected) in [
            (keys().join(&name), RoleKey::Join("n1")),
            (keys().member(id), RoleKey::Member(id)),
            (b"/team/quorate/members/1f".to_vec(), RoleKey::Other),
            (b"/team/quorate/members/000000000000001F".to_vec(), RoleKey::Other),
            (b"/team/quorate/members/+00000000000001f".to_vec(), RoleKey::Other),
            (keys().node(&name), RoleKey::Node("n1")),
            (keys().registration(&name), RoleKey::Other),
            (b"/team/quorate/nodes/".to_vec(), RoleKey::Other),
            (keys().roles_pause(), RoleKey::Pause),
            (keys().last_roles_pause(), RoleKey::LastPause),
            (keys().removed("u"), RoleKey::Removed("u")),
            (keys().status(), RoleKey::Other),
        ] {
            assert_eq!(keys().parse_role(&key), expected);
            assert!(range.start() <= key.as_slice());
            let built = (expected != RoleKey::Other).then_some(key);
            assert_eq!(keys().role(expected), built);
        }
        assert_eq!(keys().parse_role(b"/team/quorate2/nodes/a"), RoleKey::Other);
    }
}
