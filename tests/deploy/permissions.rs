//! The shipped permissions are the ones that the bundles need.

use std::fs;

use super::kustomize::shipped;
use crate::support::quorate::quorate;

/// The bundles of `deploy/`: the folder, and the argument of `quorate bundle`.
fn bundles() -> [(&'static str, String); 2] {
    let example = shipped().join("bundles/example/bundle");
    [
        ("builtin", "builtin".to_owned()),
        ("example", example.display().to_string()),
    ]
}

#[tokio::test]
async fn the_shipped_permissions_are_exactly_those_that_the_bundles_need() {
    for (folder, bundle) in bundles() {
        let file = shipped().join("bundles").join(folder).join("rbac.yaml");
        let derived = quorate(["bundle", "rbac", &bundle]).await.expect_done();
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            derived,
            "write the output of `quorate bundle rbac` to {}",
            file.display()
        );
    }
}

#[tokio::test]
async fn the_example_bundle_has_no_fault() {
    for (_, bundle) in bundles() {
        quorate(["bundle", "check", &bundle]).await.expect_done();
    }
}

#[test]
fn every_permission_to_write_is_restricted_to_names() {
    for (folder, _) in bundles() {
        let text = fs::read_to_string(shipped().join("bundles").join(folder).join("rbac.yaml")).unwrap();
        let objects: Vec<serde_json::Value> = serde_saphyr::from_multiple(&text).unwrap();
        let rules = objects[0]["rules"].as_array().unwrap();
        for rule in rules {
            let verbs: Vec<&str> = rule["verbs"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(|verb| verb.as_str())
                .collect();
            assert!(!verbs.contains(&"*"), "{folder}: {rule}");
            if verbs != ["list", "watch"] {
                let names = rule["resourceNames"].as_array();
                assert!(names.is_some_and(|names| !names.is_empty()), "{folder}: {rule}");
            }
        }
    }
}
