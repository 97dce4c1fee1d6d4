//! What is known of one kind's objects: a list, and the changes since then.

use std::collections::HashMap;
use std::time::Instant;

use super::RELIST;
use crate::kube::{Meta, ObjectList, ObjectRef, Resource};

/// Namespace and name of an object.
type Name = (Option<String>, String);

/// The objects of a kind that have the bundle label.
#[derive(Debug)]
pub(in crate::resources) struct Known {
    pub(in crate::resources) resource: Resource,
    /// The namespace that was listed; `None` for all.
    pub(in crate::resources) namespace: Option<String>,
    objects: HashMap<Name, Meta>,
    /// The version at which an object was deleted after the list. A write that ended before may be answered after it.
    deleted: HashMap<Name, String>,
    listed: Instant,
    /// The version of the list.
    version: String,
    /// The version of the list, until a watch continues from there.
    pub(in crate::resources) watch_from: Option<String>,
    /// Whether the watch failed or missed changes, so that only a list shows the objects.
    pub(in crate::resources) is_doubtful: bool,
}

impl Known {
    /// The list of a kind. What `before` holds of later versions stays: our own writes, and what its watch delivered. `asked_at` is the
    /// latest version that was known when the list was asked for: a list of an earlier one is of a server that was restored, and
    /// nothing of `before` stays.
    pub(in crate::resources) fn of_list(
        resource: Resource,
        namespace: Option<String>,
        list: ObjectList,
        asked_at: Option<&str>,
        before: Option<Self>,
    ) -> Self {
        let ObjectList {
            items,
            resource_version: version,
        } = list;
        let went_back = asked_at.is_some_and(|asked_at| is_newer(asked_at, &version));
        let before = before.filter(|_| !went_back);
        let mut objects: HashMap<Name, Meta> = items.into_iter().map(|meta| (name(&meta), meta)).collect();
        let (written, mut deleted) = before
            .map(|before| (before.objects, before.deleted))
            .unwrap_or_default();
        deleted.retain(|_, at| is_newer(at, &version));
        objects.retain(|name, _| !deleted.contains_key(name));
        for (name, meta) in written {
            if is_newer(&meta.resource_version, &version) {
                objects.insert(name, meta);
            }
        }
        Self {
            resource,
            namespace,
            objects,
            deleted,
            listed: Instant::now(),
            watch_from: Some(version.clone()),
            version,
            is_doubtful: false,
        }
    }

    /// The latest version that is known.
    pub(in crate::resources) fn latest(&self) -> &str {
        let objects = self.objects.values().map(|meta| &meta.resource_version);
        let versions = objects.chain(self.deleted.values());
        versions.fold(&self.version, |latest, version| match is_newer(version, latest) {
            true => version,
            false => latest,
        })
    }

    /// Whether what is known is of this resource and namespace, and recent.
    pub(in crate::resources) fn is_current(&self, resource: &Resource, namespace: Option<&String>) -> bool {
        self.resource == *resource
            && self.namespace.as_ref() == namespace
            && !self.is_doubtful
            && self.listed.elapsed() < RELIST
    }

    /// Whether the list covers this object.
    pub(in crate::resources) fn covers(&self, object: &ObjectRef) -> bool {
        self.namespace.is_none() || self.namespace == object.namespace
    }

    pub(in crate::resources) fn get(&self, object: &ObjectRef) -> Option<&Meta> {
        self.objects.get(&(object.namespace.clone(), object.name.clone()))
    }

    /// Whether this version of an object is later than what is known of it.
    pub(in crate::resources) fn is_news(&self, meta: &Meta) -> bool {
        let name = name(meta);
        let known = match self.objects.get(&name) {
            Some(known) => &known.resource_version,
            // The object did not exist then.
            None => self.deleted.get(&name).unwrap_or(&self.version),
        };
        *known != meta.resource_version && !is_newer(known, &meta.resource_version)
    }

    /// Notes a change, if it is news. Returns whether it is.
    pub(in crate::resources) fn note(&mut self, meta: &Meta, deleted: bool) -> bool {
        let news = self.is_news(meta);
        if news && deleted {
            self.objects.remove(&name(meta));
            self.deleted.insert(name(meta), meta.resource_version.clone());
        } else if news {
            self.deleted.remove(&name(meta));
            self.objects.insert(name(meta), meta.clone());
        }
        news
    }

    /// Notes that an object was deleted.
    pub(in crate::resources) fn remove(&mut self, object: &ObjectRef) {
        self.objects
            .remove(&(object.namespace.clone(), object.name.clone()));
    }
}

fn name(meta: &Meta) -> Name {
    (meta.namespace.clone(), meta.name.clone())
}

/// Whether one version is later than another. Versions are etcd's revisions; of a server that has others nothing is known,
/// and what comes last counts.
pub(in crate::resources) fn is_newer(version: &str, than: &str) -> bool {
    match (version.parse::<u64>(), than.parse::<u64>()) {
        (Ok(version), Ok(than)) => version > than,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(name: &str, version: &str) -> Meta {
        Meta {
            name: name.to_owned(),
            resource_version: version.to_owned(),
            ..Meta::default()
        }
    }

    fn known(items: Vec<Meta>, version: &str, before: Option<Known>) -> Known {
        let resource = Resource {
            group: String::new(),
            version: "v1".to_owned(),
            kind: "Namespace".to_owned(),
            plural: "namespaces".to_owned(),
            namespaced: false,
        };
        let list = ObjectList {
            items,
            resource_version: version.to_owned(),
        };
        let asked_at = before.as_ref().map(|before| before.version.clone());
        Known::of_list(resource, None, list, asked_at.as_deref(), before)
    }

    fn versions(known: &Known) -> Vec<String> {
        let mut versions: Vec<String> = known
            .objects
            .values()
            .map(|meta| format!("{}@{}", meta.name, meta.resource_version))
            .collect();
        versions.sort();
        versions
    }

    #[test]
    fn an_event_of_an_earlier_version_changes_nothing() {
        let mut known = known(vec![meta("a", "5")], "9", None);
        // Our own write is known before its event and those before it come.
        assert!(known.note(&meta("a", "12"), false));
        assert!(!known.note(&meta("a", "11"), false));
        assert!(!known.note(&meta("a", "12"), false), "our own write comes back");
        assert!(!known.note(&meta("a", "11"), true));
        assert_eq!(versions(&known), ["a@12"]);
        assert!(known.note(&meta("a", "13"), true));
        assert_eq!(versions(&known), [""; 0]);
    }

    #[test]
    fn a_write_that_is_answered_late_brings_no_deleted_object_back() {
        let mut known = known(vec![meta("a", "5")], "9", None);
        assert!(known.note(&meta("a", "14"), true));
        assert!(
            !known.note(&meta("a", "12"), false),
            "deleted since it was written"
        );
        assert_eq!(versions(&known), [""; 0]);
        // The watch of the list before the deletion delivers it once more.
        let mut after = self::known(vec![meta("a", "5")], "13", Some(known));
        assert_eq!(versions(&after), [""; 0]);
        assert!(!after.note(&meta("a", "12"), false));
        assert!(after.note(&meta("a", "15"), false), "created again");
        assert_eq!(versions(&after), ["a@15"]);
    }

    #[test]
    fn a_write_before_a_list_that_lacks_its_object_is_no_news() {
        let mut known = known(Vec::new(), "14", None);
        assert!(!known.note(&meta("a", "12"), false));
        assert!(known.note(&meta("a", "15"), false));
        assert_eq!(versions(&known), ["a@15"]);
    }

    /// As where the etcd of Kubernetes was restored, and the versions began again at that of the snapshot.
    #[test]
    fn nothing_stays_of_what_is_later_than_a_list_that_was_asked_for_after_it() {
        let written = || {
            let mut known = known(vec![meta("a", "5")], "9", None);
            known.note(&meta("a", "12"), false);
            known.note(&meta("gone", "13"), true);
            known
        };
        let restored = |items: Vec<Meta>, version: &str| {
            let before = written();
            assert_eq!(before.latest(), "13");
            let (resource, asked_at) = (before.resource.clone(), before.latest().to_owned());
            let list = ObjectList {
                items,
                resource_version: version.to_owned(),
            };
            Known::of_list(resource, None, list, Some(&asked_at), Some(before))
        };
        let mut after = restored(vec![meta("a", "4")], "10");
        assert_eq!(versions(&after), ["a@4"]);
        assert!(after.note(&meta("gone", "11"), false), "created in this history");
        assert_eq!(versions(&restored(Vec::new(), "6")), [""; 0]);
        assert_eq!(versions(&restored(vec![meta("a", "12")], "13")), ["a@12"]);
    }

    #[test]
    fn a_list_replaces_all_but_what_was_written_after_it() {
        let mut before = known(vec![meta("gone", "3"), meta("kept", "4")], "9", None);
        before.note(&meta("written", "12"), false);
        let after = known(vec![meta("kept", "4"), meta("written", "8")], "10", Some(before));
        assert_eq!(versions(&after), ["kept@4", "written@12"]);
        assert_eq!(after.watch_from.as_deref(), Some("10"));
    }
}
