//! The keys of etcd, built and taken apart here and nowhere else.

use std::fmt;
use std::str::FromStr;

use crate::etcd::{KeyRange, MemberId};

mod volumes;

/// The prefix of every key: begins with a slash, does not end with one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(String);

/// Why a text is not a prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" cannot be a prefix: expected like /quorate or /team-a/quorate, with a slash first, none last, none doubled, and no spaces"
)]
pub struct BadPrefix(String);

impl FromStr for Prefix {
    type Err = BadPrefix;

    fn from_str(text: &str) -> Result<Self, BadPrefix> {
        let good = text.strip_prefix('/').is_some_and(|rest| {
            rest.split('/')
                .all(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_graphic()))
        });
        if good {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadPrefix(text.to_owned()))
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of an object: an RFC 1123 subdomain, as in Kubernetes. Safe as an element of a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is not a name: expected an RFC 1123 subdomain (lower-case letters, digits, '-' and '.', first and last a letter or digit, at most 253 characters)"
)]
pub struct BadName(String);

impl FromStr for Name {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let label = |label: &str| {
            let inner = label
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
            inner && !label.is_empty() && !label.starts_with('-') && !label.ends_with('-')
        };
        // Lengths from RFC 1123 section 2.1, as Kubernetes applies them.
        if text.len() <= 253 && text.split('.').all(label) {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadName(text.to_owned()))
        }
    }
}

impl Name {
    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What an object is called among those of its kind: by its name, or, where each belongs to an object of another kind,
/// by both: `web/1` is task 1 of service web.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    /// The object that it belongs to.
    pub owner: Option<Name>,
    /// Its own name.
    pub name: Name,
}

impl From<Name> for Id {
    fn from(name: Name) -> Self {
        Self { owner: None, name }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.owner {
            Some(owner) => write!(f, "{owner}/{}", self.name),
            None => self.name.fmt(f),
        }
    }
}

/// Builds every key below one prefix.
#[derive(Clone, Debug)]
pub struct Keys(Prefix);

/// A key below `/nodes/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKey<'a> {
    /// `/nodes/<name>`
    Node(&'a str),
    /// `/nodes/<name>/release`
    Registration(&'a str),
    /// Anything else there: nothing that this release knows.
    Other,
}

/// A key between `/networks/` and the last of `/tasks/`, by what decides about deletions. Names are as they stand there,
/// good or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InUse<'a> {
    /// `/services/<name>`
    Service(&'a [u8]),
    /// `/networks/<name>`
    Network(&'a [u8]),
    /// `/tasks/<service>/<name>`
    Task {
        /// The service.
        service: &'a [u8],
        /// The rest.
        name: &'a [u8],
    },
    /// `/nodes/<name>`, not what lies below it
    Node(&'a [u8]),
    /// Anything else.
    Other,
}

/// A key between `/joins/` and the last of `/removed/`, by what decides about roles. Names are as they stand there, good
/// or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleKey<'a> {
    /// `/joins/<node>`
    Join(&'a str),
    /// `/members/<member id>`
    Member(MemberId),
    /// `/nodes/<name>`, not what lies below it
    Node(&'a str),
    /// `/removed/<uid>`
    Removed(&'a str),
    /// Anything else.
    Other,
}

/// Before and after the first slash.
fn split(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == b'/')?;
    Some((&text[..at], &text[at + 1..]))
}

impl Keys {
    /// The keys below this prefix.
    pub fn new(prefix: Prefix) -> Self {
        Self(prefix)
    }

    /// The prefix.
    pub fn prefix(&self) -> &Prefix {
        &self.0
    }

    fn below(&self, rest: fmt::Arguments<'_>) -> Vec<u8> {
        format!("{}{rest}", self.0).into_bytes()
    }

    /// `/nodes/<name>`: a `Node`.
    pub fn node(&self, name: &Name) -> Vec<u8> {
        self.below(format_args!("/nodes/{name}"))
    }

    /// `/nodes/<name>/release`: a `Registration`.
    pub fn registration(&self, name: &Name) -> Vec<u8> {
        self.below(format_args!("/nodes/{name}/release"))
    }

    /// All nodes and registrations: the range that the gate's transaction proves unchanged (INV-4).
    pub fn nodes(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/nodes/")))
    }

    /// What a key of [`Keys::nodes`] is.
    pub fn parse_node<'a>(&self, key: &'a [u8]) -> NodeKey<'a> {
        let name = std::str::from_utf8(key)
            .ok()
            .and_then(|key| key.strip_prefix(self.0.0.as_str())?.strip_prefix("/nodes/"));
        match name.map(|name| {
            name.split_once('/')
                .map_or((name, None), |(name, rest)| (name, Some(rest)))
        }) {
            Some((name, None)) if !name.is_empty() => NodeKey::Node(name),
            Some((name, Some("release"))) if !name.is_empty() => NodeKey::Registration(name),
            _ => NodeKey::Other,
        }
    }

    /// `/alive/<name>`: a session id; there while the node is ready.
    pub fn alive(&self, name: &Name) -> Vec<u8> {
        self.below(format_args!("/alive/{name}"))
    }

    /// All of them.
    pub fn all_alive(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/alive/")))
    }

    /// The name in a key of [`Keys::all_alive`].
    pub fn parse_alive<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        self.parse_below(key, "/alive/")
    }

    /// `/removed/<uid>`: a `RemovedNode`.
    pub fn removed(&self, uid: &str) -> Vec<u8> {
        self.below(format_args!("/removed/{uid}"))
    }

    /// All of them.
    pub fn all_removed(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/removed/")))
    }

    /// `/joins/<node>`: a `Join`.
    pub fn join(&self, node: &Name) -> Vec<u8> {
        self.below(format_args!("/joins/{node}"))
    }

    /// All joins.
    pub fn joins(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/joins/")))
    }

    /// `/members/<member id>`: a `Member`.
    pub fn member(&self, id: MemberId) -> Vec<u8> {
        self.below(format_args!("/members/{id}"))
    }

    /// All member records.
    pub fn members(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/members/")))
    }

    /// Joins, member records, nodes and removed nodes in one range, so that one watch brings their changes in the order
    /// in which they happened. What else lies between is [`RoleKey::Other`].
    pub fn roles(&self) -> KeyRange {
        self.joins().through(self.all_removed())
    }

    /// What a key of [`Keys::roles`] is.
    pub fn parse_role<'a>(&self, key: &'a [u8]) -> RoleKey<'a> {
        let parts = std::str::from_utf8(key)
            .ok()
            .and_then(|key| key.strip_prefix(self.0.0.as_str())?.strip_prefix('/'))
            .and_then(|below| below.split_once('/'))
            .filter(|(_, name)| !name.is_empty() && !name.contains('/'));
        match parts {
            Some(("joins", node)) => RoleKey::Join(node),
            Some(("members", id)) => parse_member_id(id).map_or(RoleKey::Other, RoleKey::Member),
            Some(("nodes", name)) => RoleKey::Node(name),
            Some(("removed", uid)) => RoleKey::Removed(uid),
            _ => RoleKey::Other,
        }
    }

    /// `/services/<name>`: a `Service`.
    pub fn service(&self, name: &Name) -> Vec<u8> {
        self.below(format_args!("/services/{name}"))
    }

    /// All services.
    pub fn services(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/services/")))
    }

    /// `/networks/<name>`: a `Network`.
    pub fn network(&self, name: &Name) -> Vec<u8> {
        self.below(format_args!("/networks/{name}"))
    }

    /// All networks.
    pub fn networks(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/networks/")))
    }

    /// `/tasks/<service>/<name>`: a `Task`.
    pub fn task(&self, service: &Name, name: &Name) -> Vec<u8> {
        self.below(format_args!("/tasks/{service}/{name}"))
    }

    /// All tasks of a service: the range that the deletion of the service proves empty (INV-7).
    pub fn tasks_of(&self, service: &Name) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/tasks/{service}/")))
    }

    /// All tasks.
    pub fn tasks(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/tasks/")))
    }

    /// Networks, nodes, services and tasks in one range, so that one watch brings their changes in the order in which
    /// they happened. What else lies between is [`InUse::Other`].
    pub fn in_use(&self) -> KeyRange {
        self.networks().through(self.tasks())
    }

    /// What a key of [`Keys::in_use`] is. Every key below `/services/`, `/networks/` and `/tasks/<service>/` is one of
    /// those, whatever its name: the ranges that transactions look at tell no good names from bad ones either.
    pub fn parse_in_use<'a>(&self, key: &'a [u8]) -> InUse<'a> {
        let Some((kind, rest)) = key
            .strip_prefix(self.0.0.as_bytes())
            .and_then(|below| below.strip_prefix(b"/"))
            .and_then(|below| split(below))
        else {
            return InUse::Other;
        };
        match (kind, split(rest)) {
            (b"services", _) => InUse::Service(rest),
            (b"networks", _) => InUse::Network(rest),
            (b"nodes", None) => InUse::Node(rest),
            (b"tasks", Some((service, name))) => InUse::Task { service, name },
            _ => InUse::Other,
        }
    }

    /// The name in a key of [`Keys::services`].
    pub fn parse_service<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        match self.parse_in_use(key) {
            InUse::Service(name) => std::str::from_utf8(name).ok(),
            _ => None,
        }
    }

    /// The name in a key of [`Keys::networks`].
    pub fn parse_network<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        match self.parse_in_use(key) {
            InUse::Network(name) => std::str::from_utf8(name).ok(),
            _ => None,
        }
    }

    /// `<service>/<name>` in a key of [`Keys::tasks`].
    pub fn parse_task<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        self.parse_below(key, "/tasks/").filter(|id| id.contains('/'))
    }

    /// What follows `folder` in a key below the prefix.
    fn parse_below<'a>(&self, key: &'a [u8], folder: &str) -> Option<&'a str> {
        std::str::from_utf8(key)
            .ok()?
            .strip_prefix(self.0.0.as_str())?
            .strip_prefix(folder)
    }

    /// `/kubernetes/reconciler/status`: a `KubernetesReconcilerStatus`.
    pub fn status(&self) -> Vec<u8> {
        self.below(format_args!("/kubernetes/reconciler/status"))
    }

    /// `/kubernetes/reconciler/status.json`: the same for people.
    pub fn status_json(&self) -> Vec<u8> {
        self.below(format_args!("/kubernetes/reconciler/status.json"))
    }

    /// Everything about the reconciler: status, election, inventory.
    pub fn reconciler(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/kubernetes/reconciler/")))
    }

    /// `/kubernetes/reconciler/leader`: the election's prefix, as `etcdctl elect` takes it.
    pub fn election(&self) -> String {
        format!("{}/kubernetes/reconciler/leader", self.0)
    }

    /// The candidates' keys: the one that came to be first is the leader's.
    pub fn candidates(&self) -> KeyRange {
        KeyRange::prefix(format!("{}/", self.election()))
    }

    /// `/kubernetes/reconciler/inventory/<group>/<kind>/<namespace or _>/<name>`: an `Applied`. The core group
    /// is written `core`. Kubernetes allows no slash in any of the parts.
    pub fn inventory(&self, group: &str, kind: &str, namespace: Option<&str>, name: &str) -> Vec<u8> {
        let group = if group.is_empty() { CORE_GROUP } else { group };
        let namespace = namespace.unwrap_or(NO_NAMESPACE);
        self.below(format_args!(
            "/kubernetes/reconciler/inventory/{group}/{kind}/{namespace}/{name}"
        ))
    }

    /// The whole inventory.
    pub fn all_inventory(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/kubernetes/reconciler/inventory/")))
    }

    /// Group, kind, namespace and name of an inventory key.
    pub fn parse_inventory<'a>(&self, key: &'a [u8]) -> Option<(&'a str, &'a str, Option<&'a str>, &'a str)> {
        let parts = std::str::from_utf8(key)
            .ok()?
            .strip_prefix(self.0.0.as_str())?
            .strip_prefix("/kubernetes/reconciler/inventory/")?;
        let mut parts = parts.splitn(4, '/');
        let (group, kind) = (parts.next()?, parts.next()?);
        let (namespace, name) = (parts.next()?, parts.next()?);
        let group = if group == CORE_GROUP { "" } else { group };
        Some((
            group,
            kind,
            (namespace != NO_NAMESPACE).then_some(namespace),
            name,
        ))
    }
}

/// Exactly as [`MemberId`] prints, so that no member has two keys.
fn parse_member_id(text: &str) -> Option<MemberId> {
    let id = MemberId(u64::from_str_radix(text, 16).ok()?);
    (id.to_string() == text).then_some(id)
}

/// Stands for the core group, whose name is empty; no API group can be called so, as they hold a dot.
const CORE_GROUP: &str = "core";

/// Stands for the namespace of a cluster-scoped object; no namespace can be called so.
const NO_NAMESPACE: &str = "_";

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys::new("/team/quorate".parse().unwrap())
    }

    #[test]
    fn the_keys_are_those_of_the_contract() {
        let name: Name = "n1.example".parse().unwrap();
        let text = |key: Vec<u8>| String::from_utf8(key).unwrap();
        assert_eq!(text(keys().node(&name)), "/team/quorate/nodes/n1.example");
        assert_eq!(
            text(keys().registration(&name)),
            "/team/quorate/nodes/n1.example/release"
        );
        assert_eq!(text(keys().alive(&name)), "/team/quorate/alive/n1.example");
        assert_eq!(
            text(keys().status()),
            "/team/quorate/kubernetes/reconciler/status"
        );
        assert_eq!(
            text(keys().status_json()),
            "/team/quorate/kubernetes/reconciler/status.json"
        );
        assert_eq!(keys().election(), "/team/quorate/kubernetes/reconciler/leader");
        assert_eq!(
            text(keys().inventory("", "Secret", Some("kube-system"), "x")),
            "/team/quorate/kubernetes/reconciler/inventory/core/Secret/kube-system/x"
        );
    }

    #[test]
    fn an_inventory_key_parses_back_to_what_built_it() {
        for (group, kind, namespace, name) in [
            ("", "Namespace", None, "a"),
            ("", "ConfigMap", Some("default"), "b.c"),
            (
                "rbac.authorization.k8s.io",
                "ClusterRole",
                None,
                "system:quorate:x",
            ),
        ] {
            let key = keys().inventory(group, kind, namespace, name);
            assert_eq!(keys().parse_inventory(&key), Some((group, kind, namespace, name)));
        }
        assert_eq!(
            keys().parse_inventory(b"/other/kubernetes/reconciler/inventory/core/A/_/b"),
            None
        );
    }

    #[test]
    fn a_node_key_is_told_from_its_registration_and_from_what_is_unknown() {
        assert_eq!(keys().parse_node(b"/team/quorate/nodes/a"), NodeKey::Node("a"));
        assert_eq!(
            keys().parse_node(b"/team/quorate/nodes/a/release"),
            NodeKey::Registration("a")
        );
        assert_eq!(keys().parse_node(b"/team/quorate/nodes/a/later"), NodeKey::Other);
        assert_eq!(keys().parse_node(b"/team/quorate/nodes/\xff"), NodeKey::Other);
        assert_eq!(keys().parse_node(b"/team/quorate2/nodes/a"), NodeKey::Other);
    }

    #[test]
    fn the_name_of_an_alive_node_is_read_from_its_key() {
        let name: Name = "n1".parse().unwrap();
        assert_eq!(keys().parse_alive(&keys().alive(&name)), Some("n1"));
        assert_eq!(keys().parse_alive(&keys().node(&name)), None);
    }

    #[test]
    fn the_range_of_what_is_in_use_holds_each_kind_and_tells_them_apart() {
        let range = keys().in_use();
        let name: Name = "web".parse().unwrap();
        for (key, expected) in [
            (keys().service(&name), InUse::Service(b"web")),
            (keys().network(&name), InUse::Network(b"web")),
            (keys().node(&name), InUse::Node(b"web")),
            (keys().registration(&name), InUse::Other),
            (
                keys().task(&name, &name),
                InUse::Task {
                    service: b"web",
                    name: b"web",
                },
            ),
            (b"/team/quorate/services/a/b".to_vec(), InUse::Service(b"a/b")),
            (
                b"/team/quorate/tasks/a/b/c".to_vec(),
                InUse::Task {
                    service: b"a",
                    name: b"b/c",
                },
            ),
            (b"/team/quorate/tasks/a".to_vec(), InUse::Other),
            (b"/team/quorate/secrets/a".to_vec(), InUse::Other),
        ] {
            assert_eq!(keys().parse_in_use(&key), expected);
            assert!(range.start() <= key.as_slice());
        }
        assert_eq!(keys().parse_task(&keys().task(&name, &name)), Some("web/web"));
        assert_eq!(keys().parse_in_use(b"/team/quorate2/services/a"), InUse::Other);
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
            (keys().removed("u"), RoleKey::Removed("u")),
            (keys().status(), RoleKey::Other),
        ] {
            assert_eq!(keys().parse_role(&key), expected);
            assert!(range.start() <= key.as_slice());
        }
        assert_eq!(keys().parse_role(b"/team/quorate2/nodes/a"), RoleKey::Other);
    }

    #[test]
    fn names_and_prefixes_that_would_make_other_keys_are_refused() {
        for bad in ["", "A", "a/b", "-a", "a-", "a..b", "a b", "ä", &"a".repeat(254)] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
        for bad in ["", "/", "quorate", "/quorate/", "//q", "/a b"] {
            assert!(bad.parse::<Prefix>().is_err(), "{bad:?}");
        }
    }
}
