//! The keys of services, networks and tasks: with nodes, what decides about deletions.

use super::{Keys, Name};
use crate::etcd::KeyRange;

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

impl Keys {
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
            .strip_prefix(self.prefix().as_str().as_bytes())
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
}

/// Before and after the first slash.
fn split(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == b'/')?;
    Some((&text[..at], &text[at + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys::new("/team/quorate".parse().unwrap())
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
}
