//! A bundle: a versioned set of Kubernetes objects, from a directory or built in.

mod fault;
mod manifest;
mod yaml;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

pub use fault::{BadBundle, Fault, Place};
pub use manifest::{ADOPT, LABEL, Manifest, PRUNE, RECREATE, may_be_pruned};

use crate::kube::ObjectRef;
use crate::release::{Release, Version, own_version};

/// A set of objects that is kept in place, and the releases that can work with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Bundle {
    /// Value of the label [`LABEL`] on its objects.
    pub name: String,
    /// Its version, and so that of the replica that runs it.
    pub version: Version,
    /// What a replica of its release needs to find in place: no set older than this one.
    pub min_reconciler_release: Release,
    /// The oldest release that can work with this set.
    pub min_apiserver_release: Release,
    /// In the order of files and documents.
    pub manifests: Vec<Manifest>,
    /// Files of the directory that are no manifests.
    pub ignored: Vec<String>,
}

/// The file that says what the directory is.
const DESCRIPTION: &str = "bundle.yaml";

/// The name of the built-in bundle, and what the command line calls it.
pub const BUILTIN: &str = "builtin";

/// The oldest release that the built-in bundle works with.
const BUILTIN_MINIMUM: Release = Release::new(0, 1, 0);

/// The built-in manifests.
const BUILTIN_FILES: &[(&str, &str)] = &[
    (
        "network-services.yaml",
        include_str!("../builtin/network-services.yaml"),
    ),
    ("rbac.yaml", include_str!("../builtin/rbac.yaml")),
    (
        "runtime-classes.yaml",
        include_str!("../builtin/runtime-classes.yaml"),
    ),
    ("storage.yaml", include_str!("../builtin/storage.yaml")),
];

impl Bundle {
    /// The bundle of this build: its release is the crate's.
    pub fn builtin() -> Self {
        let mut faults = Vec::new();
        let manifests = read_manifests(
            BUILTIN,
            BUILTIN_FILES
                .iter()
                .map(|(file, text)| ((*file).to_owned(), (*text).to_owned())),
            &mut faults,
        );
        // A test reads the same files, so that no build has a fault in them.
        debug_assert!(faults.is_empty(), "{faults:?}");
        Self {
            name: BUILTIN.to_owned(),
            version: own_version(),
            min_reconciler_release: BUILTIN_MINIMUM,
            min_apiserver_release: BUILTIN_MINIMUM,
            manifests,
            ignored: Vec::new(),
        }
    }

    /// Reads a directory: `bundle.yaml`, and manifests in all its files that end in `.yaml`, `.yml` or `.json`, those
    /// of subdirectories too. Hidden entries are skipped (a mounted ConfigMap has some).
    ///
    /// # Errors
    /// [`BadBundle`] with everything that is wrong.
    pub fn load(directory: &Path) -> Result<Self, BadBundle> {
        let mut faults = Vec::new();
        let mut files = Vec::new();
        let mut ignored = Vec::new();
        find_files(directory, Path::new(""), &mut files, &mut ignored, &mut faults);
        let mut texts = Vec::new();
        let mut description = None;
        for file in files {
            let shown = file.display().to_string();
            match std::fs::read_to_string(directory.join(&file)) {
                Ok(text) if shown == DESCRIPTION => description = Some(text),
                Ok(text) => texts.push((shown, text)),
                Err(error) => faults.push(Fault::new(whole(&shown), "", format!("cannot be read: {error}"))),
            }
        }
        let reachable = directory.is_dir();
        let described = match description {
            Some(text) => Description::read(&text, &mut faults),
            None => {
                if reachable {
                    faults.push(Fault::new(
                        whole(DESCRIPTION),
                        "",
                        "is missing: expected name, release, minReconcilerRelease and minApiserverRelease in it",
                    ));
                }
                Description::default()
            }
        };
        let name = described.name.unwrap_or_default();
        let manifests = read_manifests(&name, texts.into_iter(), &mut faults);
        if manifests.is_empty() && faults.is_empty() {
            faults.push(Fault::new(whole(DESCRIPTION), "", "the bundle holds no manifest"));
        }
        if !faults.is_empty() {
            return Err(BadBundle {
                name: directory.display().to_string(),
                faults,
            });
        }
        Ok(Self {
            name,
            version: described.release.unwrap_or_default().into(),
            min_reconciler_release: described.min_reconciler_release.unwrap_or_default(),
            min_apiserver_release: described.min_apiserver_release.unwrap_or_default(),
            manifests,
            ignored,
        })
    }

    /// What the gate compares.
    pub fn release(&self) -> Release {
        self.version.release
    }
}

fn whole(file: &str) -> Place {
    Place {
        file: file.to_owned(),
        document: None,
    }
}

fn find_files(
    root: &Path,
    below: &Path,
    files: &mut Vec<PathBuf>,
    ignored: &mut Vec<String>,
    faults: &mut Vec<Fault>,
) {
    let directory = root.join(below);
    let entries = std::fs::read_dir(&directory).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut entries = match entries {
        Ok(entries) => entries,
        Err(error) => {
            let shown = directory.display().to_string();
            return faults.push(Fault::new(whole(&shown), "", format!("cannot be read: {error}")));
        }
    };
    // One order on every machine: that of the names.
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        if name.to_string_lossy().starts_with('.') {
            continue;
        }
        let file = below.join(&name);
        // Follows symbolic links, which a mounted ConfigMap consists of.
        if root.join(&file).is_dir() {
            find_files(root, &file, files, ignored, faults);
            continue;
        }
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("yaml" | "yml" | "json") => files.push(file),
            _ => ignored.push(file.display().to_string()),
        }
    }
}

/// Reads all manifests, and finds objects that are there twice.
fn read_manifests(
    bundle: &str,
    files: impl Iterator<Item = (String, String)>,
    faults: &mut Vec<Fault>,
) -> Vec<Manifest> {
    let mut manifests: Vec<Manifest> = Vec::new();
    let mut places: HashMap<ObjectRef, Place> = HashMap::new();
    for (file, text) in files {
        for document in yaml::documents(&text) {
            let place = Place {
                file: file.clone(),
                document: Some(document.number),
            };
            let content = match document.content {
                Ok(content) => content,
                Err(error) => {
                    faults.push(Fault::new(place, "", format!("cannot be read: {error}")));
                    continue;
                }
            };
            for object in items(content) {
                let Some(manifest) = manifest::read(object, bundle, &place, faults) else {
                    continue;
                };
                if let Some(first) = places.get(&manifest.object) {
                    let what = format!("{} is in the bundle twice: first in {first}", manifest.object);
                    faults.push(Fault::new(place.clone(), "", what));
                    continue;
                }
                places.insert(manifest.object.clone(), place.clone());
                manifests.push(manifest);
            }
        }
    }
    manifests
}

/// The members of a `kind: List`, or the object itself.
fn items(content: Value) -> Vec<Value> {
    match content {
        Value::Object(mut list) if list.get("kind").and_then(Value::as_str) == Some("List") => {
            match list.remove("items") {
                Some(Value::Array(items)) => items,
                _ => Vec::new(),
            }
        }
        object => vec![object],
    }
}

/// What `bundle.yaml` says.
#[derive(Default)]
struct Description {
    name: Option<String>,
    release: Option<Release>,
    min_reconciler_release: Option<Release>,
    min_apiserver_release: Option<Release>,
}

impl Description {
    fn read(text: &str, faults: &mut Vec<Fault>) -> Self {
        let place = whole(DESCRIPTION);
        let mut documents = yaml::documents(text);
        let fields = match (documents.pop(), documents.is_empty()) {
            (Some(document), true) => match document.content {
                Ok(Value::Object(fields)) => fields,
                Ok(_) => {
                    faults.push(Fault::new(place, "", "expected an object"));
                    return Self::default();
                }
                Err(error) => {
                    faults.push(Fault::new(place, "", format!("cannot be read: {error}")));
                    return Self::default();
                }
            },
            _ => {
                faults.push(Fault::new(place, "", "expected one document"));
                return Self::default();
            }
        };
        Self::take(fields, &place, faults)
    }

    fn take(mut fields: Map<String, Value>, place: &Place, faults: &mut Vec<Fault>) -> Self {
        let mut text = |key: &str, faults: &mut Vec<Fault>| {
            let fault = |what: String| Fault::new(place.clone(), key, what);
            match fields.remove(key) {
                Some(Value::String(text)) => Some(text),
                Some(other) => {
                    // `release: 1.2` is a number to YAML.
                    faults.push(fault(format!("is {other}: expected a text, in quotes")));
                    None
                }
                None => {
                    faults.push(fault("is missing".to_owned()));
                    None
                }
            }
        };
        let name = text("name", faults).filter(|name| {
            let good = manifest::is_label_value(name);
            if !good {
                let what = format!(
                    "\"{name}\" cannot be the value of a label: expected letters, digits, '-', '_' and '.', first and \
                     last a letter or digit, at most 63"
                );
                faults.push(Fault::new(place.clone(), "name", what));
            }
            good
        });
        let mut release = |key: &str, faults: &mut Vec<Fault>| {
            let parsed = text(key, faults)?.parse::<Release>();
            parsed
                .map_err(|error| faults.push(Fault::new(place.clone(), key, format!("{error}"))))
                .ok()
        };
        let description = Self {
            name,
            release: release("release", faults),
            min_reconciler_release: release("minReconcilerRelease", faults),
            min_apiserver_release: release("minApiserverRelease", faults),
        };
        for (key, minimum) in [
            ("minReconcilerRelease", description.min_reconciler_release),
            ("minApiserverRelease", description.min_apiserver_release),
        ] {
            if let (Some(minimum), Some(release)) = (minimum, description.release)
                && minimum > release
            {
                let what =
                    format!("{minimum} is above the bundle's own release {release}: it would exclude itself");
                faults.push(Fault::new(place.clone(), key, what));
            }
        }
        for key in fields.keys() {
            faults.push(Fault::new(place.clone(), key, "is unknown"));
        }
        description
    }
}

#[cfg(test)]
mod tests;
