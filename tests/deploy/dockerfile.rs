//! The Dockerfile. No test builds an image; the tests check everything that the Dockerfile names.

use std::fs;
use std::process::Command;

use quorate_dev::workspace;

use super::kustomize::{Deploy, pod_specs, run, shipped};

/// Logical lines: without comments, with continued lines joined.
fn instructions() -> Vec<Vec<String>> {
    let text = fs::read_to_string(shipped().join("Dockerfile")).unwrap();
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .collect();
    lines
        .join("\n")
        .replace("\\\n", " ")
        .lines()
        .map(|line| line.split_whitespace().map(str::to_owned).collect())
        .collect()
}

/// `(from, sources, target)` of every COPY; `from` is the stage to copy from.
fn copies() -> Vec<(Option<String>, Vec<String>, String)> {
    instructions()
        .into_iter()
        .filter(|words| words[0] == "COPY")
        .map(|words| {
            let from = words[1].strip_prefix("--from=").map(str::to_owned);
            let mut paths = words[1 + usize::from(from.is_some())..].to_vec();
            let target = paths.pop().unwrap();
            (from, paths, target)
        })
        .collect()
}

#[test]
fn every_file_that_the_dockerfile_copies_exists_and_is_in_the_build_context() {
    let root = workspace::root();
    let context = fs::read_to_string(shipped().join("Dockerfile.dockerignore")).unwrap();
    let (mut own, mut stages) = (0, Vec::new());
    for words in instructions() {
        if words[0] == "FROM" {
            stages.push(words.last().unwrap().clone());
        }
    }
    for (from, sources, _) in copies() {
        match from {
            Some(stage) => assert!(stages.contains(&stage), "no stage {stage}"),
            None => {
                for source in sources {
                    assert!(root.join(&source).exists(), "{source} does not exist");
                    let allowed = context.lines().any(|line| line == format!("!{source}"));
                    assert!(allowed, "{source} is not in the build context");
                    own += 1;
                }
            }
        }
    }
    assert!(own >= 5, "only {own} copied files were found");
}

#[test]
fn the_copied_files_are_a_complete_package_for_cargo() {
    let root = workspace::root();
    let context = tempfile::tempdir().unwrap();
    for (from, sources, _) in copies() {
        if from.is_none() {
            for source in sources {
                run(Command::new("cp")
                    .arg("-r")
                    .arg(root.join(&source))
                    .arg(context.path()));
            }
        }
    }
    // Reads the package as a build does, and fails if a target of Cargo.toml is missing.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    run(Command::new(env!("CARGO"))
        .args(["fetch", "--locked", "--offline", "--target", &platform])
        .current_dir(context.path()));
}

#[test]
fn the_images_run_as_the_user_of_the_manifests_and_start_a_copied_program() {
    let instructions = instructions();
    let all = |name: &str| -> Vec<String> {
        instructions
            .iter()
            .filter(|words| words[0] == name)
            .map(|words| words[1..].join(" "))
            .collect()
    };
    let deploy = Deploy::prepared();
    let objects = deploy.objects("overlays/bundled-etcd");
    let pods = pod_specs(&objects);
    let stages = all("USER");
    assert_eq!(stages.len(), pods.len(), "there is one image per pod");
    for (owner, pod) in pods {
        let context = &pod["securityContext"];
        let user = format!("{}:{}", context["runAsUser"], context["runAsGroup"]);
        assert!(
            stages.iter().all(|stage| *stage == user),
            "{owner} runs as {user}, {stages:?}"
        );
    }
    let targets: Vec<String> = copies().into_iter().map(|(_, _, target)| target).collect();
    let entry_points = all("ENTRYPOINT");
    assert_eq!(entry_points.last().unwrap(), "[\"/usr/local/bin/quorate\"]");
    assert!(targets.iter().any(|target| target == "/usr/local/bin/quorate"));
}

#[test]
fn the_manifests_name_images_of_this_release() {
    let deploy = Deploy::prepared();
    let objects = deploy.objects("overlays/bundled-etcd");
    let images: Vec<&str> = pod_specs(&objects)
        .into_iter()
        .map(|(_, pod)| pod["containers"][0]["image"].as_str().unwrap())
        .collect();
    let release = env!("CARGO_PKG_VERSION");
    assert_eq!(
        images,
        [format!("quorate:{release}"), format!("quorate-etcd:{release}")]
    );
}
