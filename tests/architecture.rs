//! The rules of ARCHITECTURE.md that the compiler does not know.

use std::path::{Path, PathBuf};

use quorate_dev::workspace::root;

/// Every source file below `src`, by its path from the root.
pub fn sources() -> Vec<(PathBuf, String)> {
    fn walk(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path.strip_prefix(root()).unwrap().to_owned(), text));
            }
        }
    }
    let mut found = Vec::new();
    walk(&root().join("src"), &mut found);
    assert!(found.len() > 40, "only {} source files were found", found.len());
    found
}

/// Lines of code that name one of `words`, comments and unit tests left out.
fn naming<'a>(text: &'a str, words: &'a [&str]) -> impl Iterator<Item = &'a str> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.filter(|line| words.iter().any(|word| line.contains(word)))
}

#[test]
fn a_plan_touches_no_io_no_runtime_and_no_clock() {
    let forbidden = [
        "tokio",
        "etcd_client",
        "kube::Client",
        "crate::kube::KubeClient",
        "tonic::",
        "std::fs",
        "std::net",
        "std::env",
        "Instant::now",
        "SystemTime",
        "Timestamp::now",
        "async ",
        ".await",
    ];
    let pure: Vec<_> = sources()
        .into_iter()
        .filter(|(path, _)| {
            let pure = [
                "src/deallocator/index",
                "src/roles/plan",
                "src/roles/index",
                "src/roles/checks",
                "src/roles/checks.rs",
                "src/roles/quorum.rs",
                "src/roles/transitions.rs",
                "src/roles/controller/prepare.rs",
                "src/roles/writes.rs",
                "src/volumes/plan",
                "src/volumes/index",
                "src/volumes/record.rs",
                "src/volumes/request.rs",
                "src/volumes/retry.rs",
                "src/volumes/drift.rs",
            ];
            let index = path.ends_with("deallocator/index.rs") || path.ends_with("roles/index.rs");
            pure.iter().any(|pure| path.starts_with(pure))
                || index
                || path.ends_with("plan.rs")
                || path.ends_with("releases.rs")
        })
        .collect();
    let names: Vec<_> = pure.iter().map(|(path, _)| path).collect();
    assert!(names.len() >= 12, "plans are missing: {names:?}");
    for (path, text) in &pure {
        let found: Vec<_> = naming(text, &forbidden).collect();
        assert!(
            found.is_empty(),
            "{} is to be pure, but says {found:#?}",
            path.display()
        );
    }
}

#[test]
fn each_outside_library_is_named_in_one_place() {
    // `kube::` alone may be this crate's own module, once that is imported.
    for (words, home) in [
        (&["etcd_client"][..], "src/etcd"),
        (
            &["use kube::", "use ::kube", "kube_client", "kube_core"],
            "src/kube",
        ),
        (&["backoff::"], "src/retry/mod.rs"),
        // Servers of tonic may stand elsewhere: the test plugin is one.
        (
            &[
                "ControllerClient",
                "IdentityClient",
                "transport::{Channel",
                "transport::Channel",
                "transport::Endpoint",
                "hyper_util",
            ],
            "src/csi",
        ),
    ] {
        let mut at_home = 0;
        for (path, text) in &sources() {
            let found: Vec<_> = naming(text, words).collect();
            if path.starts_with(home) {
                at_home += found.len();
            } else {
                assert!(
                    found.is_empty(),
                    "{} names {words:?}, which belongs to {home}: {found:#?}",
                    path.display()
                );
            }
        }
        assert!(
            at_home > 0,
            "nothing in {home} names {words:?}: is the check still right?"
        );
    }
}

#[test]
fn only_the_owners_of_leases_and_commands_write_without_a_fence() {
    let allowed = ["src/etcd/", "src/gate/registration.rs", "src/cli/"];
    for (path, text) in sources() {
        let home = path.to_string_lossy().into_owned();
        if !allowed.iter().any(|allowed| home.starts_with(allowed)) {
            let found: Vec<_> = naming(&text, &[".unfenced("]).collect();
            assert!(found.is_empty(), "{home} writes without a fence: {found:#?}");
        }
    }
}
