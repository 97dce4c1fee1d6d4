//! A bundle: a versioned set of Kubernetes objects, from a directory or built in.

mod fault;
mod manifest;
mod yaml;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

pub use fault::{BadBundle, Fault, Place};
pub use manifest::{ADOPT, LABEL, Manifest, PRUNE, RECREATE, Recreate, may_be_pruned};

use crate::kube::ObjectRef;
use crate::release::{Release, Version, own_version};

/// A set of objects to keep in place, and the releases that can work with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Bundle {
    /// Value of the label [`LABEL`] on its objects.
    pub name: String,
    /// The version of the bundle, which is also the version of the replica that runs it.
    pub version: Version,
    /// A replica of this release is ready only once a bundle of at least this release was reconciled.
    pub min_reconciler_release: Release,
    /// The oldest release that can work with this bundle.
    pub min_apiserver_release: Release,
    /// The objects in the order of files and documents.
    pub manifests: Vec<Manifest>,
    /// Files of the directory that are not manifests.
    pub ignored: Vec<String>,
}

/// The file with the name and the releases of the bundle.
const DESCRIPTION: &str = "bundle.yaml";

/// The name of the built-in bundle, also on the command line.
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
    /// The bundle of this build. Its release is the crate's.
    pub fn builtin() -> Self {
        let mut faults = Vec::new();
        let manifests = read_manifests(
            BUILTIN,
            BUILTIN_FILES
                .iter()
                .map(|(file, text)| ((*file).to_owned(), (*text).to_owned())),
            &mut faults,
        );
        // A test checks the same files, so no build has a fault in them.
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

    /// Reads a directory: `bundle.yaml`, and the manifests in all `.yaml`, `.yml` and `.json` files, including those of
    /// subdirectories. Skips hidden entries, which a mounted ConfigMap contains.
    ///
    /// # Errors
    /// [`BadBundle`] with all faults.
    pub fn load(directory: &Path) -> Result<Self, BadBundle> {
        let mut faults = Vec::new();
        let mut files = Vec::new();
        let mut ignored = Vec::new();
        let name = directory.display().to_string();
        let only = |file: &str, what: &str| BadBundle {
            name: name.clone(),
            faults: vec![Fault::new(whole_file(file), "", what)],
        };
        if directory.is_file() {
            return Err(only(&name, "must be a directory, with bundle.yaml and manifests"));
        }
        // Looked for first: a directory without it may be any directory, and a large one.
        if directory.is_dir() && !directory.join(DESCRIPTION).exists() {
            let what = "is required; it holds name, release, minReconcilerRelease and minApiserverRelease";
            return Err(only(DESCRIPTION, what));
        }
        find_files(directory, Path::new(""), &mut files, &mut ignored, &mut faults);
        let mut texts = Vec::new();
        for file in files {
            let shown = file.display().to_string();
            match std::fs::read_to_string(directory.join(&file)) {
                Ok(text) => texts.push((shown, text)),
                Err(error) => faults.push(unreadable(&shown, &error)),
            }
        }
        let read = Self::read(texts, ignored, &mut faults);
        match faults.is_empty() {
            true => Ok(read),
            false => Err(BadBundle { name, faults }),
        }
    }

    /// Reads the texts of these files. `name` is that of their directory.
    ///
    /// # Errors
    /// [`BadBundle`] with all faults.
    pub fn parse(name: &str, texts: Vec<(String, String)>) -> Result<Self, BadBundle> {
        let mut faults = Vec::new();
        let read = Self::read(texts, Vec::new(), &mut faults);
        let name = name.to_owned();
        match faults.is_empty() {
            true => Ok(read),
            false => Err(BadBundle { name, faults }),
        }
    }

    fn read(mut texts: Vec<(String, String)>, ignored: Vec<String>, faults: &mut Vec<Fault>) -> Self {
        let description = texts.iter().position(|(file, _)| file == DESCRIPTION);
        let description = description.map(|at| texts.remove(at).1);
        let described = match description {
            Some(text) => Description::read(&text, faults),
            None => Description::default(),
        };
        let name = described.name.unwrap_or_default();
        let manifests = read_manifests(&name, texts.into_iter(), faults);
        Self {
            name,
            version: described.release.unwrap_or_default().into(),
            min_reconciler_release: described.min_reconciler_release.unwrap_or_default(),
            min_apiserver_release: described.min_apiserver_release.unwrap_or_default(),
            manifests,
            ignored,
        }
    }

    /// The release of the bundle, which the gate compares.
    pub fn release(&self) -> Release {
        self.version.release
    }
}

fn whole_file(file: &str) -> Place {
    Place {
        file: file.to_owned(),
        document: None,
    }
}

fn unreadable(file: &str, error: &std::io::Error) -> Fault {
    Fault::new(whole_file(file), "", format!("cannot read: {error}"))
}

fn find_files(
    root: &Path,
    below: &Path,
    files: &mut Vec<PathBuf>,
    ignored: &mut Vec<String>,
    faults: &mut Vec<Fault>,
) {
    // Joined to nothing, the root would have a slash at its end.
    let directory: PathBuf = [root, below]
        .iter()
        .filter(|part| **part != Path::new(""))
        .collect();
    let entries = std::fs::read_dir(&directory).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut entries = match entries {
        Ok(entries) => entries,
        Err(error) => {
            return faults.push(unreadable(&directory.display().to_string(), &error));
        }
    };
    // Sorted by name, so that the order is the same on every machine.
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        if name.to_string_lossy().starts_with('.') {
            continue;
        }
        let file = below.join(&name);
        // Follows symbolic links: the files of a mounted ConfigMap are links.
        if root.join(&file).is_dir() {
            find_files(root, &file, files, ignored, faults);
            continue;
        }
        match file.extension().and_then(|extension| extension.to_str()) {
            // Reading a pipe would wait for its writer.
            Some("yaml" | "yml" | "json") if !root.join(&file).is_file() => faults.push(Fault::new(
                whole_file(&file.display().to_string()),
                "",
                "is not a regular file",
            )),
            Some("yaml" | "yml" | "json") => files.push(file),
            _ => ignored.push(file.display().to_string()),
        }
    }
}

/// Reads all manifests, and reports objects that are defined twice.
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
                    faults.push(Fault::new(place, "", format!("cannot parse: {error}")));
                    continue;
                }
            };
            for object in items(content) {
                let Some(manifest) = manifest::read(object, bundle, &place, faults) else {
                    continue;
                };
                if let Some(first) = places.get(&manifest.object) {
                    let what = format!("{} is defined twice, first in {first}", manifest.object);
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

/// The items of a `kind: List`, or the object itself.
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

/// The contents of `bundle.yaml`. A missing or malformed field is `None`, and a fault.
#[derive(Default)]
struct Description {
    name: Option<String>,
    release: Option<Release>,
    min_reconciler_release: Option<Release>,
    min_apiserver_release: Option<Release>,
}

impl Description {
    fn read(text: &str, faults: &mut Vec<Fault>) -> Self {
        let mut documents = yaml::documents(text);
        let what = match (documents.pop(), documents.is_empty()) {
            (Some(document), true) => match document.content {
                Ok(Value::Object(fields)) => return Fields { fields, faults }.read(),
                Ok(_) => "must be an object".to_owned(),
                Err(error) => format!("cannot parse: {error}"),
            },
            _ => "must be one document".to_owned(),
        };
        faults.push(Fault::new(whole_file(DESCRIPTION), "", what));
        Self::default()
    }
}

/// The fields of `bundle.yaml` that are not read yet.
struct Fields<'a> {
    fields: Map<String, Value>,
    faults: &'a mut Vec<Fault>,
}

impl Fields<'_> {
    fn read(mut self) -> Description {
        let description = Description {
            name: self.name(),
            release: self.release("release"),
            min_reconciler_release: self.release("minReconcilerRelease"),
            min_apiserver_release: self.release("minApiserverRelease"),
        };
        for (key, minimum) in [
            ("minReconcilerRelease", description.min_reconciler_release),
            ("minApiserverRelease", description.min_apiserver_release),
        ] {
            if let (Some(minimum), Some(release)) = (minimum, description.release)
                && minimum > release
            {
                let what =
                    format!("{minimum} is above the bundle's own release {release}; it would exclude itself");
                self.fault(key, what);
            }
        }
        for key in std::mem::take(&mut self.fields).keys() {
            self.fault(key, "is unknown");
        }
        description
    }

    fn fault(&mut self, key: &str, what: impl Into<String>) {
        self.faults.push(Fault::new(whole_file(DESCRIPTION), key, what));
    }

    fn text(&mut self, key: &str) -> Option<String> {
        match self.fields.remove(key) {
            Some(Value::String(text)) => Some(text),
            Some(other) => {
                // To YAML, `release: 1.2` is a number.
                self.fault(key, format!("is {other}; must be a string in quotes"));
                None
            }
            None => {
                self.fault(key, "is required");
                None
            }
        }
    }

    fn name(&mut self) -> Option<String> {
        let name = self.text("name")?;
        if manifest::is_label_value(&name) {
            return Some(name);
        }
        let what = format!(
            "\"{name}\" is not a valid label value: it must have at most 63 letters, digits, '-', '_' and '.', and begin and \
             end with a letter or digit"
        );
        self.fault("name", what);
        None
    }

    fn release(&mut self, key: &str) -> Option<Release> {
        match self.text(key)?.parse::<Release>() {
            Ok(release) => Some(release),
            Err(error) => {
                self.fault(key, error.to_string());
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
