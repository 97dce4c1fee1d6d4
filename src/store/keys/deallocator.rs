//! The keys of services, networks and tasks: with nodes, the input of the deallocator.

use super::Keys;
use super::space::key_space;
use crate::etcd::KeyRange;

key_space!(
    SERVICES,
    "/services/",
    "Service",
    service,
    services,
    parse_service
);
key_space!(
    NETWORKS,
    "/networks/",
    "Network",
    network,
    networks,
    parse_network
);
key_space!(TASKS, "/tasks/", "Task", task, tasks, parse_task, tasks_of);

/// A key of [`Keys::deallocator_range`]. Names are as in the key, valid or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeallocatorKey<'a> {
    /// `/services/<name>`
    Service(&'a [u8]),
    /// `/networks/<name>`
    Network(&'a [u8]),
    /// `/tasks/<service>/<name>`
    Task {
        /// The name of the service.
        service: &'a [u8],
        /// Everything after the service's slash, further slashes included.
        name: &'a [u8],
    },
    /// `/nodes/<name>`, but no key below it
    Node(&'a [u8]),
    /// Any other key, such as that of a plugin. The deallocator skips it.
    Other,
}

impl Keys {
    /// Networks, nodes, services and tasks in one range, so that one watch brings their changes in the order in which
    /// they happened. Keys of other kinds lie between them: [`DeallocatorKey::Other`].
    pub fn deallocator_range(&self) -> KeyRange {
        self.networks().through(self.tasks())
    }

    /// Parses a key of [`Keys::deallocator_range`]. Every key below `/services/`, `/networks/` and `/tasks/<service>/` is
    /// a service, a network or a task, whatever its name: transactions that prove a range empty do not look at names
    /// either.
    pub fn parse_deallocator<'a>(&self, key: &'a [u8]) -> DeallocatorKey<'a> {
        let Some((kind, rest)) = key
            .strip_prefix(self.prefix().as_str().as_bytes())
            .and_then(|below| below.strip_prefix(b"/"))
            .and_then(|below| split(below))
        else {
            return DeallocatorKey::Other;
        };
        match (kind, split(rest)) {
            (b"services", _) => DeallocatorKey::Service(rest),
            (b"networks", _) => DeallocatorKey::Network(rest),
            (b"nodes", None) => DeallocatorKey::Node(rest),
            (b"tasks", Some((service, name))) => DeallocatorKey::Task { service, name },
            _ => DeallocatorKey::Other,
        }
    }

    /// The bytes of a key that [`Keys::parse_deallocator`] returned; `None` for [`DeallocatorKey::Other`].
    pub fn deallocator(&self, key: DeallocatorKey<'_>) -> Option<Vec<u8>> {
        let parts: &[&[u8]] = match key {
            DeallocatorKey::Service(name) => &[b"/services/", name],
            DeallocatorKey::Network(name) => &[b"/networks/", name],
            DeallocatorKey::Task { service, name } => &[b"/tasks/", service, b"/", name],
            DeallocatorKey::Node(name) => &[b"/nodes/", name],
            DeallocatorKey::Other => return None,
        };
        Some([&[self.prefix().as_str().as_bytes()], parts].concat().concat())
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
    use crate::store::Name;

    fn keys() -> Keys {
        Keys::new("/team/quorate".parse().unwrap())
    }

    #[test]
    fn the_range_of_the_deallocator_holds_each_kind_and_tells_them_apart() {
        let range = keys().deallocator_range();
        let name: Name = "web".parse().unwrap();
        for (key, expected) in [
            (keys().service(&name), DeallocatorKey::Service(b"web")),
            (keys().network(&name), DeallocatorKey::Network(b"web")),
            (keys().node(&name), DeallocatorKey::Node(b"web")),
            (keys().registration(&name), DeallocatorKey::Other),
            (
                keys().task(&name, &name),
                DeallocatorKey::Task {
                    service: b"web",
                    name: b"web",
                },
            ),
            (
                b"/team/quorate/services/a/b".to_vec(),
                DeallocatorKey::Service(b"a/b"),
            ),
            (
                b"/team/quorate/tasks/a/b/c".to_vec(),
                DeallocatorKey::Task {
                    service: b"a",
                    name: b"b/c",
                },
            ),
            (b"/team/quorate/tasks/a".to_vec(), DeallocatorKey::Other),
            (b"/team/quorate/secrets/a".to_vec(), DeallocatorKey::Other),
        ] {
            assert_eq!(keys().parse_deallocator(&key), expected);
            let built = keys().deallocator(expected);
            assert_eq!(built, (expected != DeallocatorKey::Other).then_some(key.clone()));
            assert!(range.start() <= key.as_slice());
        }
        assert_eq!(keys().parse_task(&keys().task(&name, &name)), Some("web/web"));
        assert_eq!(
            keys().parse_deallocator(b"/team/quorate2/services/a"),
            DeallocatorKey::Other
        );
    }
}
