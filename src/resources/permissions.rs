//! The least permissions that keep a bundle in place. Pure.
//!
//! Every write is a request to the object's own URL, creations included (server-side apply). So every permission to write
//! can be restricted to names; one to create by POST could not. Lists and watches cover a whole kind.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::bundle::{Bundle, Manifest, Recreate, may_be_pruned};
use super::kinds::{self, RBAC};
use super::recreate::PREFLIGHT;
use super::upgrade::annotations;
use crate::kube::{ObjectRef, Permission};

/// A rule without its names. Grants that differ only in their names become one rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Grant {
    group: String,
    resource: String,
    verbs: Vec<&'static str>,
}

/// Rules with the names that they are restricted to; no names for a rule about the whole kind.
type Grants = BTreeMap<Grant, BTreeSet<String>>;

/// The permissions of one service account for a bundle.
#[derive(Clone, Debug)]
pub struct Permissions {
    bundle: String,
    /// By namespace; `None` is the cluster scope.
    scopes: BTreeMap<Option<String>, Grants>,
    /// Resources whose plural is a guess; only the server knows it.
    guessed: BTreeSet<String>,
}

impl Permissions {
    /// The permissions to keep `bundle` in place, and to prune the objects that only `before` holds.
    pub fn of(bundle: &Bundle, before: Option<&Bundle>) -> Self {
        let mut permissions = Self {
            bundle: bundle.name.clone(),
            scopes: BTreeMap::new(),
            guessed: BTreeSet::new(),
        };
        let former = before.map_or(&[][..], |before| &before.manifests);
        let all: Vec<&Manifest> = bundle.manifests.iter().chain(former).collect();
        let plurals = defined_plurals(&all);
        let created = created_namespaces(&all);
        // A Role cannot be created before its namespace. Objects in a namespace that the bundle creates are therefore
        // permitted by name at the cluster scope.
        let scope = |namespace: Option<&str>| {
            let existing = namespace.filter(|name| !created.contains(name));
            existing.map(str::to_owned)
        };
        for ((group, kind), namespaces) in namespaces_by_kind(&all) {
            let resource = permissions.plural(group, kind, &plurals);
            // The reconciler lists one namespace if all objects of the kind are in it, and all namespaces otherwise.
            let only = match namespaces.iter().collect::<Vec<_>>()[..] {
                [namespace] => *namespace,
                _ => None,
            };
            permissions.grant(scope(only), group, &resource, &["list", "watch"], None);
        }
        for (index, manifest) in all.iter().enumerate() {
            let object = &manifest.object;
            let resource = permissions.plural(&object.group, &object.kind, &plurals);
            let scope = scope(object.namespace.as_deref());
            let wanted = index < bundle.manifests.len();
            let verbs = verbs(manifest, wanted);
            permissions.grant(
                scope.clone(),
                &object.group,
                &resource,
                &verbs,
                Some(&object.name),
            );
            if wanted && manifest.recreate != Recreate::Never {
                permissions.grant(
                    scope.clone(),
                    &object.group,
                    &resource,
                    &["create", "patch"],
                    Some(PREFLIGHT),
                );
            }
            if wanted && object.group == RBAC {
                permissions.grant_rbac(manifest, scope);
            }
        }
        permissions
    }

    /// Writing a role that grants more than the writer holds needs `escalate` on the role. Writing such a binding needs
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

    /// The ClusterRole and Roles, each with its binding to the service account.
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

    /// Every permission by itself: one verb on one object, or on a whole kind.
    pub fn each(&self) -> Vec<Permission> {
        let grants = self.scopes.iter().flat_map(|(scope, grants)| {
            let grants = grants.iter();
            grants.map(move |(grant, names)| (scope, grant, names))
        });
        let mut each = Vec::new();
        for (scope, grant, names) in grants {
            let resource = match grant.group.as_str() {
                "" => grant.resource.clone(),
                group => format!("{}.{group}", grant.resource),
            };
            let whole_kind = names.is_empty().then(String::new);
            for name in names.iter().cloned().chain(whole_kind) {
                each.extend(grant.verbs.iter().map(|verb| Permission {
                    verb: (*verb).to_owned(),
                    resource: resource.clone(),
                    name: name.clone(),
                    namespace: scope.clone(),
                }));
            }
        }
        each
    }

    /// The resources whose plural is a guess, as `PLURAL.GROUP`.
    pub fn guessed(&self) -> impl Iterator<Item = &str> {
        self.guessed.iter().map(String::as_str)
    }
}

/// The verbs on one object, by name.
fn verbs(manifest: &Manifest, wanted: bool) -> Vec<&'static str> {
    let mut verbs = vec!["get"];
    if wanted {
        verbs.extend(["create", "patch"]);
    }
    if manifest.recreate != Recreate::Never || may_be_pruned(&manifest.object, &annotations(manifest)) {
        verbs.push("delete");
    }
    verbs
}

/// The names of the namespaces that the bundles create.
fn created_namespaces<'a>(manifests: &[&'a Manifest]) -> BTreeSet<&'a str> {
    let objects = manifests.iter().map(|manifest| &manifest.object);
    objects
        .filter(|object| kinds::is_namespace(&object.group, &object.kind))
        .map(|object| object.name.as_str())
        .collect()
}

/// The namespaces of the objects of each kind, by group and kind.
fn namespaces_by_kind<'a>(
    manifests: &[&'a Manifest],
) -> BTreeMap<(&'a str, &'a str), BTreeSet<Option<&'a str>>> {
    let mut namespaces: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for ObjectRef {
        group,
        kind,
        namespace,
        ..
    } in manifests.iter().map(|manifest| &manifest.object)
    {
        namespaces
            .entry((group.as_str(), kind.as_str()))
            .or_default()
            .insert(namespace.as_deref());
    }
    namespaces
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

/// The plurals of the kinds that the bundles define, by group and kind.
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

    /// Each rule as one line: `scope: verbs group/resources names`.
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
                "kube-system: create,patch rbac.authorization.k8s.io/rolebindings quorate-preflight",
                "kube-system: get,create,patch,delete rbac.authorization.k8s.io/rolebindings b",
                "kube-system: list,watch rbac.authorization.k8s.io/rolebindings ",
            ]
        );
        assert_eq!(
            permissions.guessed().collect::<Vec<_>>(),
            ["policies.example.com"]
        );
        let each: Vec<String> = permissions.each().iter().map(ToString::to_string).collect();
        assert_eq!(each.len(), 4 + 2 + 3 + 2 + 4 + 2 + 1 + 4 + 2 + 1 + 2 + 4 + 2);
        for expected in [
            "list configmaps",
            "delete configmaps \"c\"",
            "patch policies.example.com \"p\"",
            "bind clusterroles.rbac.authorization.k8s.io \"view\" in namespace kube-system",
        ] {
            assert!(each.contains(&expected.to_owned()), "{expected}: {each:?}");
        }
    }

    #[test]
    fn objects_of_only_the_former_bundle_may_be_deleted_but_not_written() {
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
