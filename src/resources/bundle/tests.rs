use super::*;
use crate::kube::Dependants;

const DESCRIBED: &str =
    "name: web\nrelease: 1.2.0\nminReconcilerRelease: 1.0.0\nminApiserverRelease: 1.1.0\n";

const MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: default}\ndata: {k: v}\n";

fn load(files: &[(&str, &str)]) -> Result<Bundle, BadBundle> {
    let directory = tempfile::tempdir().unwrap();
    for (file, text) in files {
        let path = directory.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    Bundle::load(directory.path())
}

fn faults(files: &[(&str, &str)]) -> Vec<String> {
    let bad = load(files).unwrap_err();
    bad.faults.iter().map(ToString::to_string).collect()
}

/// The faults of one manifest in a bundle that is otherwise good.
fn manifest_faults(manifest: &str) -> Vec<String> {
    faults(&[("bundle.yaml", DESCRIBED), ("m.yaml", manifest)])
}

#[test]
fn the_built_in_bundle_has_no_fault_and_describes_every_object() {
    let mut faults = Vec::new();
    let files = BUILTIN_FILES
        .iter()
        .map(|(file, text)| ((*file).to_owned(), (*text).to_owned()));
    read_manifests(BUILTIN, files, &mut faults);
    assert_eq!(faults, []);
    let bundle = Bundle::builtin();
    assert_eq!(bundle.version, own_version());
    assert!(bundle.min_reconciler_release <= bundle.release());
    let kinds: std::collections::BTreeSet<_> = bundle
        .manifests
        .iter()
        .map(|manifest| manifest.object.kind.as_str())
        .collect();
    let expected = [
        "CSIDriver",
        "ClusterRole",
        "ClusterRoleBinding",
        "RuntimeClass",
        "StorageClass",
    ];
    assert_eq!(kinds, expected.into());
    for manifest in &bundle.manifests {
        let description = &manifest.body["metadata"]["annotations"]["kubernetes.io/description"];
        assert!(
            description.as_str().is_some_and(|text| text.len() > 20),
            "{}",
            manifest.object
        );
        // Kubernetes 1.20 and every later release so far serve these kinds as v1.
        assert_eq!(manifest.version, "v1", "{}", manifest.object);
    }
}

/// A cluster may have no provisioner for it, and another default class.
#[test]
fn the_built_in_storage_class_is_not_the_default_one() {
    let bundle = Bundle::builtin();
    let class = |manifest: &&Manifest| manifest.object.kind == "StorageClass";
    let class = bundle.manifests.iter().find(class).unwrap();
    let default = &class.body["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"];
    assert_eq!(default, &Value::Null);
}

#[test]
fn a_directory_is_read_with_its_subdirectories_in_the_order_of_names() {
    let second = MAP.replace("name: a", "name: b");
    let list = format!(
        "{{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [{}]}}",
        r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}"#
    );
    let bundle = load(&[
        ("bundle.yaml", DESCRIBED),
        ("z/b.yml", &second),
        ("a.yaml", MAP),
        ("list.json", &list),
        ("README.md", "# not a manifest"),
        ("..data/a.yaml", MAP),
        (".hidden.yaml", MAP),
    ])
    .unwrap();
    let objects: Vec<String> = bundle
        .manifests
        .iter()
        .map(|manifest| manifest.object.to_string())
        .collect();
    assert_eq!(
        objects,
        ["ConfigMap default/a", "Namespace n", "ConfigMap default/b"]
    );
    assert_eq!(bundle.ignored, ["README.md"]);
    assert_eq!(bundle.name, "web");
    assert_eq!(bundle.release(), Release::new(1, 2, 0));
    assert_eq!(bundle.min_reconciler_release, Release::new(1, 0, 0));
    assert_eq!(bundle.min_apiserver_release, Release::new(1, 1, 0));
}

#[test]
fn every_manifest_gets_the_label_and_loses_the_fields_of_the_server() {
    let text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, creationTimestamp: null, labels: {x: y}}\nstatus: {phase: Active}\n";
    let bundle = load(&[("bundle.yaml", DESCRIBED), ("m.yaml", text)]).unwrap();
    let expected = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "a", "labels": {"x": "y", "quorate.dev/bundle": "web"}},
    });
    assert_eq!(bundle.manifests[0].body, expected);
}

#[test]
fn annotations_allow_to_adopt_and_to_recreate() {
    let read = |kind: &str, annotations: &str| {
        let text =
            format!("apiVersion: v1\nkind: {kind}\nmetadata: {{name: a, annotations: {{{annotations}}}}}\n");
        let bundle = load(&[("bundle.yaml", DESCRIBED), ("m.yaml", &text)]).unwrap();
        (bundle.manifests[0].adopt, bundle.manifests[0].recreate)
    };
    assert_eq!(read("Node", ""), (false, Recreate::Never));
    assert_eq!(
        read("Namespace", "quorate.dev/recreate: \"true\""),
        (false, Recreate::Annotated(Dependants::Deleted))
    );
    assert_eq!(
        read("Node", "quorate.dev/recreate: orphan"),
        (false, Recreate::Annotated(Dependants::Orphaned))
    );
    assert_eq!(
        read(
            "Node",
            "quorate.dev/recreate: \"false\", quorate.dev/adopt: \"true\""
        ),
        (true, Recreate::Never)
    );
}

#[test]
fn all_faults_are_reported_at_once_with_their_places() {
    let found = faults(&[
        (
            "bundle.yaml",
            "name: \"-\"\nrelease: 1.0\nminReconcilerRelease: 2.0.0\ncolour: red\n",
        ),
        ("a.yaml", "apiVersion: v1\n---\nkind: [1\n---\n- 1\n"),
        ("b.yaml", MAP),
        ("sub/c.yaml", MAP),
    ]);
    let expected = [
        "bundle.yaml: name \"-\" is not a valid label value: ",
        "bundle.yaml: release is 1.0; must be a string in quotes",
        "bundle.yaml: minApiserverRelease is required",
        "bundle.yaml: colour is unknown",
        "a.yaml, document 1: kind is required",
        "a.yaml, document 1: metadata is required",
        "a.yaml, document 2: cannot parse: line ",
        "a.yaml, document 3: must be an object with apiVersion, kind and metadata",
        "sub/c.yaml, document 1: ConfigMap default/a is defined twice, first in b.yaml, document 1",
    ];
    for text in expected {
        assert!(
            found.iter().any(|fault| fault.starts_with(text)),
            "missing {text:?} in {found:#?}"
        );
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
}

#[test]
fn a_missing_directory_is_one_fault() {
    let bad = Bundle::load(Path::new("/nowhere/at/all")).unwrap_err();
    assert_eq!(
        bad.to_string(),
        "invalid bundle /nowhere/at/all:\n  /nowhere/at/all: cannot read: No such file or directory (os error 2)"
    );
}

#[test]
fn a_file_is_no_bundle() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let bad = Bundle::load(file.path()).unwrap_err();
    let name = file.path().display();
    assert_eq!(
        bad.to_string(),
        format!("invalid bundle {name}:\n  {name}: must be a directory, with bundle.yaml and manifests")
    );
}

#[test]
fn a_bundle_without_manifests_is_good() {
    let empty = load(&[("bundle.yaml", DESCRIBED), ("empty.yaml", "# nothing\n")]).unwrap();
    assert_eq!(empty.manifests, []);
}

#[test]
fn string_data_of_a_secret_is_applied_as_data() {
    let secret = |fields: &str| {
        format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: a, namespace: b}}\n{fields}\n")
    };
    let text = secret("stringData: {plain: text}\ndata: {encoded: dGV4dA==}");
    let bundle = load(&[("bundle.yaml", DESCRIBED), ("m.yaml", &text)]).unwrap();
    let body = &bundle.manifests[0].body;
    assert_eq!(
        body["data"],
        serde_json::json!({"plain": "dGV4dA==", "encoded": "dGV4dA=="})
    );
    assert_eq!(body["stringData"], Value::Null);
    let faults = manifest_faults(&secret(
        "stringData: {twice: text, number: 1}\ndata: {twice: dGV4dA==}",
    ));
    assert_eq!(
        faults,
        [
            "m.yaml, document 1: stringData.number is 1; must be a string",
            "m.yaml, document 1: stringData.twice is in data, too",
        ]
    );
}

#[test]
fn a_pipe_is_refused_and_not_read() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("bundle.yaml"), DESCRIBED).unwrap();
    let pipe = directory.path().join("pipe.yaml");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let bad = Bundle::load(directory.path()).unwrap_err();
    assert_eq!(bad.faults.len(), 1);
    assert_eq!(bad.faults[0].to_string(), "pipe.yaml: is not a regular file");
}

#[test]
fn a_bundle_without_description_is_refused_before_anything_else_is_read() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("m.yaml"), "kind: [").unwrap();
    let bad = Bundle::load(directory.path()).unwrap_err();
    assert_eq!(bad.faults.len(), 1, "{bad}");
}

#[test]
fn a_bundle_without_description_is_refused() {
    assert_eq!(
        faults(&[("m.yaml", MAP)]),
        ["bundle.yaml: is required; it holds name, release, minReconcilerRelease and minApiserverRelease"]
    );
}

#[test]
fn a_minimum_above_the_own_release_is_refused() {
    let description = DESCRIBED.replace("minApiserverRelease: 1.1.0", "minApiserverRelease: 1.3.0");
    assert_eq!(
        faults(&[("bundle.yaml", &description), ("m.yaml", MAP)]),
        [
            "bundle.yaml: minApiserverRelease 1.3.0 is above the bundle's own release 1.2.0; it would exclude itself"
        ]
    );
    let description = DESCRIBED.replace("1.2.0", "1.2");
    assert_eq!(
        faults(&[("bundle.yaml", &description), ("m.yaml", MAP)]),
        ["bundle.yaml: release is 1.2; must be a string in quotes"]
    );
    let description = DESCRIBED.replace("1.2.0", "v1.2.0");
    assert_eq!(
        faults(&[("bundle.yaml", &description), ("m.yaml", MAP)]),
        ["bundle.yaml: release \"v1.2.0\" is not a release: expected MAJOR.MINOR.PATCH, for example 1.4.0"]
    );
}

#[test]
fn each_fault_of_a_manifest_has_its_message() {
    for (manifest, expected) in [
        (
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: ''}\n",
            "metadata.name must not be empty",
        ),
        (
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: 7}\n",
            "metadata.name must be a string",
        ),
        (
            "apiVersion: v1\nkind: Namespace\nmetadata: {}\n",
            "metadata.name is required",
        ),
        (
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: a/b}\n",
            "metadata.name \"a/b\" is not a valid name",
        ),
        (
            "apiVersion: a/b/c\nkind: Namespace\nmetadata: {name: a}\n",
            "apiVersion \"a/b/c\" is not GROUP/VERSION or VERSION",
        ),
        (
            "apiVersion: v1\nkind: Namespace\nmetadata: [a]\n",
            "metadata must be an object",
        ),
        (
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, uid: x}\n",
            "metadata.uid is set by the server; remove it",
        ),
        (
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, resourceVersion: '7'}\n",
            "metadata.resourceVersion is set by the server; remove it",
        ),
        (
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, generateName: b}\n",
            "metadata.generateName is not allowed; set metadata.name",
        ),
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
            "metadata.namespace is required: ConfigMap is namespaced",
        ),
        (
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, namespace: b}\n",
            "metadata.namespace must be omitted: Namespace is cluster-scoped",
        ),
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: B}\n",
            "metadata.namespace \"B\" is not a valid namespace",
        ),
        (
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, annotations: {quorate.dev/adopt: true}}\n",
            "metadata.annotations[quorate.dev/adopt] is true; must be the string \"true\" or \"false\"",
        ),
        (
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, annotations: {quorate.dev/adpot: 'true'}}\n",
            "metadata.annotations[quorate.dev/adpot] is unknown; known are quorate.dev/adopt, quorate.dev/prune and quorate.dev/recreate",
        ),
        (
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, labels: {quorate.dev/prune: 'true'}}\n",
            "metadata.labels[quorate.dev/prune] is an annotation, not a label",
        ),
        (
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, labels: {quorate.dev/bundle: other}}\n",
            "metadata.labels[quorate.dev/bundle] is \"other\", but the name of the bundle is \"web\"; remove it",
        ),
        (
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, labels: x}\n",
            "metadata.labels must be an object",
        ),
    ] {
        let found = manifest_faults(manifest);
        assert!(
            found.contains(&format!("m.yaml, document 1: {expected}")),
            "{manifest}: {found:#?}"
        );
    }
}
