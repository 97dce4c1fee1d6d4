//! The keys of the reconciler: status, election, inventory.

use super::{KeySpace, Keys};
use crate::etcd::KeyRange;

/// Stands for the core group, whose name is empty. No API group has this name, as their names contain a dot.
const CORE_GROUP: &str = "core";

/// Stands for the namespace of a cluster-scoped object. It is no valid name of a namespace.
const NO_NAMESPACE: &str = "_";

impl KeySpace {
    /// The keys of the inventory.
    pub const INVENTORY: Self = Self {
        folder: "/kubernetes/reconciler/inventory/",
        suffix: "",
        takes: |id| parse_object(id).is_some(),
    };
}

/// Group, kind, namespace and name in what follows the folder in an inventory key, if that is how [`Keys::inventory`] writes them: an
/// object has one key.
pub fn parse_object(id: &str) -> Option<(&str, &str, Option<&str>, &str)> {
    let mut parts = id.splitn(4, '/');
    let (group, kind) = (parts.next()?, parts.next()?);
    let (namespace, name) = (parts.next()?, parts.next()?);
    if [group, kind, namespace, name].contains(&"") || name.contains('/') {
        return None;
    }
    let group = if group == CORE_GROUP { "" } else { group };
    Some((
        group,
        kind,
        (namespace != NO_NAMESPACE).then_some(namespace),
        name,
    ))
}

impl Keys {
    /// `/kubernetes/reconciler/status`: a `KubernetesReconcilerStatus`.
    pub fn status(&self) -> Vec<u8> {
        self.below(format_args!("/kubernetes/reconciler/status"))
    }

    /// `/kubernetes/reconciler/status.json`: the status as JSON, for people.
    pub fn status_json(&self) -> Vec<u8> {
        self.below(format_args!("/kubernetes/reconciler/status.json"))
    }

    /// The range of the reconciler's status, election and inventory.
    pub fn reconciler(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/kubernetes/reconciler/")))
    }

    /// `/kubernetes/reconciler/leader`: the election's prefix, as `etcdctl elect` takes it.
    pub fn election(&self) -> String {
        format!("{}/kubernetes/reconciler/leader", self.0)
    }

    /// The range of the candidates' keys. The leader's is the one with the lowest create revision.
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

    /// The range of the whole inventory.
    pub fn all_inventory(&self) -> KeyRange {
        KeySpace::INVENTORY.all(self)
    }

    /// Group, kind, namespace and name of an inventory key.
    pub fn parse_inventory<'a>(&self, key: &'a [u8]) -> Option<(&'a str, &'a str, Option<&'a str>, &'a str)> {
        parse_object(KeySpace::INVENTORY.name(self, key)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys::new("/team/quorate".parse().unwrap())
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

    /// As the entry of an object it would hide the real one, and the leader's writes would compare its revision.
    #[test]
    fn a_key_that_nothing_builds_names_no_object() {
        for below in [
            "/Secret/kube-system/x",
            "core//kube-system/x",
            "core/Secret//x",
            "core/Secret/kube-system/",
            "core/Secret/kube-system/x/y",
            "core/Secret/kube-system",
        ] {
            let key = format!("/team/quorate/kubernetes/reconciler/inventory/{below}");
            assert_eq!(keys().parse_inventory(key.as_bytes()), None, "{below}");
        }
    }
}
