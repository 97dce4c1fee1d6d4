//! The permissions that keeping a bundle in place takes, and not one more. Pure.
//!
//! Every write is a request to the object's own URL, creations too (server-side apply), so that all of them can be
//! restricted to names; a creation by POST could not. Lists and watches are of a kind as a whole.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::bundle::{Bundle, Manifest, may_be_pruned};
use super::kinds::{self, RBAC};
use super::upgrade::annotations;

/// A rule, but for its names: what is the same in all but those is one rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Grant {
    group: String,
    resource: String,
    verbs: Vec<&'static str>,
}

/// Rules with the names that they are restricted to; none for the kind as a whole.
type Grants = BTreeMap<Grant, BTreeSet<String>>;

/// The permissions of one service account for a bundle.
#[derive(Clone, Debug)]
pub struct Permissions {
    bundle: String,
    /// By namespace; those at the cluster scope under `None`.
    scopes: BTreeMap<Option<String>, Grants>,
    /// Resources whose plural is a guess, as only the server knows.
    guessed: BTreeSet<String>,
}

impl Permissions {
    /// What keeping `bundle` in place takes, and pruning what only `before` held.
    pub fn of(bundle: &Bundle, before: Option<&Bundle>) -> Self {
        let mut permissions = Self {
            bundle: bundle.name.clone(),
            scopes: BTreeMap::new(),
            guessed: BTreeSet::new(),
        };
        let former = before.map_or(&[][..], |before| &before.manifests);
        let all: Vec<&Manifest> = bundle.manifests.iter().chain(former).collect();
        let plurals = defined_plurals(&all);
        let mut made: BTreeSet<&str> = BTreeSet::new();
        let mut namespaces: BTreeMap<(&str, &str), BTreeSet<Option<&str>>> = BTreeMap::new();
        for manifest in &all {
            let object = &manifest.object;
            if kinds::is_namespace(&object.group, &object.kind) {
                made.insert(&object.name);
            }
            let kind = (object.group.as_str(), object.kind.as_str());
            namespaces
                .entry(kind)
                .or_default()
                .insert(object.namespace.as_deref());
        }
        // A Role cannot be made before its namespace: what lies in one that the bundle makes is permitted by name at
        // the cluster scope.
        let scope =
            |namespace: Option<&str>| namespace.filter(|name| !made.contains(name)).map(str::to_owned);

        for ((group, kind), namespaces) in &namespaces {
            let resource = permissions.plural(group, kind, &plurals);
            // As the reconciler lists: one namespace if all objects of the kind lie in it, else all.
            let only = match namespaces.iter().collect::<Vec<_>>()[..] {
                [namespace] => *namespace,
                _ => None,
            };
            permissions.grant(scope(only), group, &resource, &["list", "watch"], None);
        }
        for (index, manifest) in all.iter().enumerate() {
            let object = &manifest.object;
            let resource = permissions.plural(&object.group, &object.kind, &plurals);
            let wanted = index < bundle.manifests.len();
            let mut verbs = vec!["get"];
            if wanted {
                verbs.extend(["create", "patch"]);
            }
            if manifest.recreate || may_be_pruned(object, &annotations(manifest)) {
                verbs.push("delete");
            }
            let namespace = object.namespace.as_deref();
            permissions.grant(
                scope(namespace),
                &object.group,
                &resource,
                &verbs,
                Some(&object.name),
            );
            if wanted && object.group == RBAC {
                permissions.grant_rbac(manifest, scope(namespace));
            }
        }
        permissions
    }

    /// To write a role that grants what its writer does not hold takes `escalate` on it; to write such a binding takes
    /// `bind` on the role that it refers to.
    fn grant_rbac(&mut self, manifest: &Manifest, scope: Option<String>) {
        let name = manifest.object.name.as_str();
        match manifest.object.kind.as_str() {
            "ClusterRole" => self.grant(scope, RBAC, "clusterroles", &["escalate"], Some(name)),
            "Role" => self.grant(scope, RBAC, "roles", &["escalate"], Some(name)),
            _ => {
                let role = &manifest.body["roleRef"];
                let resource = match role["kind"].as_str() {
                    Some("ClusterRole") => "clusterroles",
                    _ => "roles",
                };
                if let Some(name) = role["name"].as_str() {
                    self.grant(scope, RBAC, resource, &["bind"], Some(name));
                }
            }
        }
    }

    fn grant(
        &mut self,
        scope: Option<String>,
        group: &str,
        resource: &str,
        verbs: &[&'static str],
        name: Option<&str>,
    ) {
        let grant = Grant {
            group: group.to_owned(),
            resource: resource.to_owned(),
            verbs: verbs.to_vec(),
        };
        let names = self.scopes.entry(scope).or_default().entry(grant).or_default();
        names.extend(name.map(str::to_owned));
    }

    fn plural(&mut self, group: &str, kind: &str, defined: &BTreeMap<(&str, &str), &str>) -> String {
        if let Some(plural) = defined.get(&(group, kind)) {
            return (*plural).to_owned();
        }
        let plural = kinds::plural(kind);
        if kinds::is_namespaced(group, kind).is_none() {
            self.guessed.insert(format!("{plural}.{group}"));
        }
        plural
    }

    /// ClusterRole, Roles, and their bindings to a service account.
    pub fn objects(&self, namespace: &str, service_account: &str) -> Vec<Value> {
        let name = format!(
            "quorate-bundle-{}",
            self.bundle.to_ascii_lowercase().replace('_', "-")
        );
        let subject = json!({"kind": "ServiceAccount", "namespace": namespace, "name": service_account});
        let mut objects = Vec::new();
        for (scope, grants) in &self.scopes {
            let (role, binding) = match scope {
                None => ("ClusterRole", "ClusterRoleBinding"),
                Some(_) => ("Role", "RoleBinding"),
            };
            let mut metadata = json!({"name": name});
            if let Some(scope) = scope {
                metadata["namespace"] = scope.as_str().into();
            }
            objects.push(json!({
                "apiVersion": format!("{RBAC}/v1"),
                "kind": role,
                "metadata": metadata,
                "rules": grants.iter().map(rule).collect::<Vec<_>>(),
            }));
            objects.push(json!({
                "apiVersion": format!("{RBAC}/v1"),
                "kind": binding,
                "metadata": metadata,
                "roleRef": {"apiGroup": RBAC, "kind": role, "name": name},
                "subjects": [subject],
            }));
        }
        objects
    }

    /// Resources, as `PLURAL.GROUP`, whose plural only the server knows for sure.
    pub fn guessed(&self) -> impl Iterator<Item = &str> {
        self.guessed.iter().map(String::as_str)
    }
}

fn rule((grant, names): (&Grant, &BTreeSet<String>)) -> Value {
    let mut rule = json!({
        "apiGroups": [grant.group],
        "resources": [grant.resource],
        "verbs": grant.verbs,
    });
    if !names.is_empty() {
        rule["resourceNames"] = names.iter().map(String::as_str).collect();
    }
    rule
}

/// Plurals of the kinds that CustomResourceDefinitions of the bundles define.
fn defined_plurals<'a>(manifests: &[&'a Manifest]) -> BTreeMap<(&'a str, &'a str), &'a str> {
    manifests
        .iter()
        .filter(|manifest| kinds::is_definition(&manifest.object.group, &manifest.object.kind))
        .filter_map(|manifest| {
            let spec = &manifest.body["spec"];
            let kind = (spec["group"].as_str()?, spec["names"]["kind"].as_str()?);
            Some((kind, spec["names"]["plural"].as_str()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(manifests: &str) -> Bundle {
        let directory = tempfile::tempdir().unwrap();
        let description =
            "name: web\nrelease: 1.0.0\nminReconcilerRelease: 1.0.0\nminApiserverRelease: 1.0.0\n";
        std::fs::write(directory.path().join("bundle.yaml"), description).unwrap();
        std::fs::write(directory.path().join("m.yaml"), manifests).unwrap();
        Bundle::load(directory.path()).unwrap()
    }

    /// Every rule in one line: `scope: verbs group/resources names`.
    fn rules(permissions: &Permissions) -> Vec<String> {
        let list = |value: &Value| {
            let items = value.as_array().into_iter().flatten().filter_map(Value::as_str);
            items.collect::<Vec<_>>().join(",")
        };
        permissions
            .objects("quorate-system", "quorate")
            .iter()
            .flat_map(|role| {
                let scope = role["metadata"]["namespace"].as_str().unwrap_or("*").to_owned();
                role["rules"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default()
                    .into_iter()
                    .map(move |rule| {
                        format!(
                            "{scope}: {} {}/{} {}",
                            list(&rule["verbs"]),
                            list(&rule["apiGroups"]),
                            list(&rule["resources"]),
                            list(&rule["resourceNames"])
                        )
                    })
            })
            .collect()
    }

    const MANIFESTS: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: r}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: b, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
---
apiVersion: v1
kind: Namespace
metadata: {name: team}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: c, namespace: team}
---
apiVersion: example.com/v1
kind: Policy
metadata: {name: p}
";

    #[test]
    fn writes_are_restricted_to_names_and_lists_to_kinds() {
        let permissions = Permissions::of(&bundle(MANIFESTS), None);
        assert_eq!(
            rules(&permissions),
            [
                "*: get,create,patch,delete /configmaps c",
                "*: list,watch /configmaps ",
                "*: get,create,patch /namespaces team",
                "*: list,watch /namespaces ",
                "*: get,create,patch,delete example.com/policies p",
                "*: list,watch example.com/policies ",
                "*: escalate rbac.authorization.k8s.io/clusterroles r",
                "*: get,create,patch,delete rbac.authorization.k8s.io/clusterroles r",
                "*: list,watch rbac.authorization.k8s.io/clusterroles ",
                "kube-system: bind rbac.authorization.k8s.io/clusterroles view",
                "kube-system: get,create,patch,delete rbac.authorization.k8s.io/rolebindings b",
                "kube-system: list,watch rbac.authorization.k8s.io/rolebindings ",
            ]
        );
        assert_eq!(
            permissions.guessed().collect::<Vec<_>>(),
            ["policies.example.com"]
        );
    }

    #[test]
    fn what_only_the_former_bundle_held_may_be_deleted_but_not_written() {
        let old = bundle("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: old, namespace: a}\n");
        let new = bundle("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: new, namespace: a}\n");
        assert_eq!(
            rules(&Permissions::of(&new, Some(&old))),
            [
                "a: get,create,patch,delete /configmaps new",
                "a: get,delete /configmaps old",
                "a: list,watch /configmaps ",
            ]
        );
    }

    #[test]
    fn the_built_in_bundle_needs_escalate_and_bind_on_named_roles_only() {
        let permissions = Permissions::of(&Bundle::builtin(), None);
        for rule in rules(&permissions) {
            let named = !rule.ends_with(' ');
            assert!(named || rule.starts_with("*: list,watch "), "{rule}");
            assert!(
                !rule.contains(" * ") && !rule.contains('*') || rule.starts_with("*: "),
                "{rule}"
            );
        }
        assert_eq!(permissions.guessed().count(), 0);
    }
}
