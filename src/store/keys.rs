//! The keys of etcd. Only this module builds and parses them.

use std::fmt;

mod deallocator;
mod identity;
mod log_level;
mod name;
mod node;
mod reconciler;
mod role;
mod space;
mod volumes;

pub use deallocator::DeallocatorKey;
pub use identity::{CertificationKey, Joiner};
pub use name::{BadName, BadPrefix, Id, Name, Prefix};
pub use node::NodeKey;
pub use reconciler::parse_object;
pub use role::RoleKey;
pub use space::KeySpace;

/// Builds every key below one prefix.
#[derive(Clone, Debug)]
pub struct Keys(Prefix);

impl Keys {
    /// The keys below this prefix.
    pub fn new(prefix: Prefix) -> Self {
        Self(prefix)
    }

    /// The prefix of every key.
    pub fn prefix(&self) -> &Prefix {
        &self.0
    }

    fn below(&self, rest: fmt::Arguments<'_>) -> Vec<u8> {
        format!("{}{rest}", self.0).into_bytes()
    }

    /// What follows `folder` in a key below the prefix.
    fn parse_below<'a>(&self, key: &'a [u8], folder: &str) -> Option<&'a str> {
        std::str::from_utf8(key)
            .ok()?
            .strip_prefix(self.0.as_str())?
            .strip_prefix(folder)
    }
}

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
}
