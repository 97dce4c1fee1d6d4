//! `kubectl kustomize` on a copy of `deploy/` with the files that an operator adds to the overlays.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use quorate_dev::pki::Authority;
use quorate_dev::workspace;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::directory::directory;
use crate::support::quorate::binary;

/// Every folder that an operator can apply, but the one for workers, whose pods are privileged.
pub const OVERLAYS: [&str; 6] = [
    "overlays/external-etcd",
    "overlays/bundled-etcd",
    "plugins/sidecar",
    "plugins/over-tcp",
    "agents/control",
    "secrets/encryption",
];

/// `deploy/` of this repository.
pub fn shipped() -> PathBuf {
    workspace::root().join("deploy")
}

/// A copy of `deploy/` with certificates, in a directory of its own.
pub struct Deploy {
    directory: TempDir,
}

impl Deploy {
    /// Copies `deploy/`, and follows the instructions at the top of the overlays.
    pub fn prepared() -> Self {
        let directory = directory();
        copy(&shipped(), directory.path());
        let deploy = Self { directory };

        let tls = deploy.folder("overlays/external-etcd").join("tls");
        fs::create_dir_all(&tls).unwrap();
        let authority = Authority::create(&tls, "etcd").unwrap();
        let client = authority.client("tls").unwrap();
        assert_eq!(client.cert, tls.join("tls.crt"));

        for folder in ["overlays/bundled-etcd", "agents/control"] {
            deploy.run_instructions(folder, "quorate ca");
        }
        fs::write(deploy.folder("agents/workers").join("worker.token"), "token").unwrap();
        // As openssl would print it.
        let key = deploy.folder("secrets/encryption").join("encryption.key");
        fs::write(key, format!("{}=\n", "A".repeat(43))).unwrap();
        if kubectl_minor() < 21 {
            deploy.rewrite_for_old_kustomize();
        }
        deploy
    }

    /// Runs, in a folder, the commands in the comment of its kustomization that begin with these words.
    pub fn run_instructions(&self, folder: &str, words: &str) {
        let folder = self.folder(folder);
        let text = fs::read_to_string(folder.join("kustomization.yaml")).unwrap();
        let commands: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("#   "))
            .filter(|line| line.starts_with(words))
            .collect();
        assert!(!commands.is_empty(), "{text}");
        let programs = binary().parent().unwrap().display().to_string();
        let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
        for command in commands {
            run(Command::new("sh")
                .args(["-c", command])
                .env("PATH", &path)
                .current_dir(&folder));
        }
    }

    /// A folder of the copy, by its path below `deploy/`.
    pub fn folder(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    /// The objects that `kubectl apply -k` of a folder would apply.
    pub fn objects(&self, path: &str) -> Vec<Value> {
        let yaml = run(Command::new("kubectl").arg("kustomize").arg(self.folder(path)));
        let mut objects: Vec<Value> =
            serde_saphyr::from_multiple(&yaml).unwrap_or_else(|error| panic!("{path}: {error}"));
        // kustomize breaks base64 into lines. Kubernetes ignores the line breaks, other readers do not.
        for object in objects.iter_mut().filter(|object| object["kind"] == "Secret") {
            for value in object["data"].as_object_mut().unwrap().values_mut() {
                *value = value.as_str().unwrap().replace('\n', "").into();
            }
        }
        objects
    }

    /// Follows the comment in the overlays about a bundle of one's own.
    pub fn choose_the_example_bundle(&self, overlay: &str) {
        let file = self.folder(overlay).join("kustomization.yaml");
        let text = fs::read_to_string(&file).unwrap();
        let literals = "    literals:\n";
        assert!(text.contains("  - ../../bundles/builtin\n") && text.contains(literals));
        let text = text
            .replace("  - ../../bundles/builtin\n", "  - ../../bundles/example\n")
            .replace(
                literals,
                &format!("{literals}      - QUORATE_BUNDLE=/etc/quorate/bundle\n"),
            );
        fs::write(&file, text).unwrap();
    }

    /// An overlay with a component, as the comment in the component says; its folder.
    pub fn with_component(&self, overlay: &str, component: &str) -> &'static str {
        const FOLDER: &str = "overlays/with-component";
        let lists = if kubectl_minor() < 21 {
            // Its kustomize knows no components. What one adds, a base adds as well.
            let file = self.folder(component).join("kustomization.yaml");
            let text = fs::read_to_string(&file).unwrap();
            let text = text.replace("kind: Component", "kind: Kustomization");
            fs::write(&file, text.replace("/v1alpha1", "/v1beta1")).unwrap();
            format!("bases:\n  - ../../{overlay}\n  - ../../{component}\n")
        } else {
            format!("resources:\n  - ../../{overlay}\ncomponents:\n  - ../../{component}\n")
        };
        let folder = self.folder(FOLDER);
        fs::create_dir_all(&folder).unwrap();
        let head = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n";
        fs::write(folder.join("kustomization.yaml"), format!("{head}{lists}")).unwrap();
        FOLDER
    }

    /// Rewrites the overlays for kubectl before 1.21: its kustomize accepts folders only as `bases` and patches only as
    /// `patchesStrategicMerge`. Newer versions warn of these fields.
    fn rewrite_for_old_kustomize(&self) {
        for overlay in OVERLAYS {
            let file = self.folder(overlay).join("kustomization.yaml");
            let text = fs::read_to_string(&file).unwrap();
            let text = text
                .replace("patches:\n", "patchesStrategicMerge:\n")
                .replace("  - path: ", "  - ");
            let (folders, rest): (Vec<&str>, Vec<&str>) =
                text.lines().partition(|line| line.starts_with("  - ../../"));
            let mut rest = rest.join("\n");
            if rest.contains("resources:\npatches") {
                rest = rest.replace("resources:\n", "");
            }
            let text = format!("{rest}\nbases:\n{}\n", folders.join("\n"));
            fs::write(&file, text).unwrap();
        }
    }
}

/// Kind and name for messages: `Deployment quorate`.
pub fn name_of(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or("?");
    format!("{} {}", text("/kind"), text("/metadata/name"))
}

/// The pod templates among the objects, with the names of their owners.
pub fn pod_specs(objects: &[Value]) -> Vec<(String, &Value)> {
    objects
        .iter()
        .filter_map(|object| Some((name_of(object), object.pointer("/spec/template/spec")?)))
        .collect()
}

/// Runs a command and returns its stdout. Panics with its stderr if it fails.
pub fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn kubectl_minor() -> u32 {
    let version = run(Command::new("kubectl").args(["version", "--client", "-o", "json"]));
    let version: Value = serde_json::from_str(&version).unwrap();
    let minor = version["clientVersion"]["minor"].as_str().unwrap();
    minor.trim_end_matches('+').parse().unwrap()
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_name() == "tls" {
            // Skips an operator's own certificates.
        } else if entry.file_type().unwrap().is_dir() {
            fs::create_dir(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}
