//! `edit`: an object in an editor, which is a script here.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::node;
use crate::support::base::Base;
use crate::support::quorate::{Finished, quorate_with};

/// A directory for drafts, and an etcd with n1.
struct Desk {
    cluster: Base,
    directory: TempDir,
}

impl Desk {
    async fn new() -> Self {
        let cluster = Base::start().await;
        cluster.apply(&node("n1", "{desiredRole: worker}")).await;
        let directory = tempfile::tempdir().unwrap();
        Self { cluster, directory }
    }

    /// Edits n1 by a shell script, whose $1 is the file.
    async fn edit(&self, script: &str) -> Finished {
        let editor = self.directory.path().join("editor");
        fs::write(&editor, format!("set -e\n{script}\n")).unwrap();
        // The variable may hold arguments.
        let editor = format!("sh -u {}", editor.display());
        self.edit_with(&editor, &["edit", "node", "n1"]).await
    }

    async fn edit_with(&self, editor: &str, args: &[&str]) -> Finished {
        let endpoints = format!("--etcd-endpoints={}", self.cluster.etcd.endpoints_flag());
        let args = args.iter().copied().chain([endpoints.as_str()]);
        let drafts = self.drafts().display().to_string();
        let variables = [("VISUAL", ""), ("EDITOR", editor), ("TMPDIR", &drafts)];
        quorate_with(args, None, &variables).await
    }

    fn drafts(&self) -> PathBuf {
        let drafts = self.directory.path().join("drafts");
        fs::create_dir_all(&drafts).unwrap();
        drafts
    }

    /// The files that are kept.
    fn kept(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.drafts()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    async fn availability(&self) -> String {
        self.cluster
            .node("n1")
            .await
            .spec
            .unwrap()
            .availability()
            .as_str_name()
            .to_owned()
    }
}

const TO_DRAIN: &str = "sed -i 's/availability: active/availability: drain/' \"$1\"";

#[tokio::test]
async fn what_was_saved_in_the_editor_is_applied() {
    let desk = Desk::new().await;
    let mode = "test \"$(stat -c %a \"$1\")\" = 600";
    let edited = desk.edit(&format!("{mode}\n{TO_DRAIN}")).await;
    assert_eq!(edited.expect_done(), "node/n1 configured\n");
    assert!(desk.availability().await.ends_with("DRAIN"));
    assert_eq!(desk.kept(), [""; 0].map(PathBuf::from));
}

#[tokio::test]
async fn nothing_is_written_where_nothing_was_changed_or_the_editor_failed() {
    let desk = Desk::new().await;
    let contents = desk.cluster.contents().await;
    for script in ["true", ": > \"$1\""] {
        let edited = desk.edit(script).await;
        assert!(edited.stderr.contains("nothing was changed"), "{}", edited.stderr);
        assert_eq!(edited.expect_done(), "");
        assert_eq!(desk.kept(), [""; 0].map(PathBuf::from));
    }
    let failed = desk.edit(&format!("{TO_DRAIN}\nexit 3")).await.expect_code(1);
    assert!(
        failed.contains("the editor") && failed.contains("nothing was written"),
        "{failed}"
    );
    let kept = desk.kept();
    assert!(
        fs::read_to_string(&kept[0])
            .unwrap()
            .contains("availability: drain")
    );
    let nowhere = "/nowhere/editor";
    let failed = desk.edit_with(nowhere, &["edit", "node/n1"]).await.expect_code(1);
    assert!(
        failed.contains(nowhere) && failed.contains("VISUAL or EDITOR names another"),
        "{failed}"
    );
    assert_eq!(desk.kept(), kept, "an unchanged text is not kept");
    assert_eq!(desk.cluster.contents().await, contents);
}

#[tokio::test]
async fn a_refused_document_is_opened_again_with_the_reason_and_kept_if_it_is_closed_so() {
    let desk = Desk::new().await;
    // The first time it makes a mistake, the second time it mends what the head says.
    let script = "if grep -q '^# .*not one of' \"$1\"; then sed -i 's/availability: asleep/availability: drain/' \"$1\"
        else sed -i 's/availability: active/availability: asleep/' \"$1\"; fi";
    assert_eq!(desk.edit(script).await.expect_done(), "node/n1 configured\n");
    assert!(desk.availability().await.ends_with("DRAIN"));

    // The second time it changes nothing, or saves an empty file.
    let mistake = "sed -i 's/availability: drain/availability: asleep/' \"$1\"";
    for script in [
        mistake,
        &format!("if grep -q asleep \"$1\"; then : > \"$1\"; else {mistake}; fi"),
    ] {
        let said = desk.edit(script).await.expect_code(64);
        let kept = desk.kept();
        assert_eq!(kept.len(), 1);
        assert!(
            said.contains("asleep") && said.contains(&kept[0].display().to_string()),
            "{said}"
        );
        let text = fs::read_to_string(&kept[0]).unwrap();
        assert!(text.contains("availability: asleep"), "{text}");
        fs::remove_file(&kept[0]).unwrap();
    }
}

#[tokio::test]
async fn labels_that_are_removed_in_the_editor_are_removed() {
    let desk = Desk::new().await;
    let labelled = "apiVersion: quorate.dev/v1\nkind: Node\nmetadata: {name: n1, labels: {zone: a}}\nspec: {desiredRole: worker}\n";
    desk.cluster.apply(labelled).await;
    let unlabel = "sed -i -e '/^ *labels:/d' -e '/^ *zone: a/d' \"$1\"";
    assert_eq!(desk.edit(unlabel).await.expect_done(), "node/n1 configured\n");
    let node = desk.cluster.node("n1").await;
    assert!(node.metadata.unwrap().labels.is_empty());
}

#[tokio::test]
async fn another_name_is_no_edit_and_a_write_meanwhile_is_a_conflict() {
    let desk = Desk::new().await;
    let renamed = desk
        .edit("sed -i 's/name: n1/name: n2/' \"$1\"")
        .await
        .expect_code(64);
    assert!(renamed.contains("its kind and name cannot change"), "{renamed}");

    let program = crate::support::quorate::binary().display().to_string();
    let endpoints = desk.cluster.etcd.endpoints_flag();
    let document = desk.directory.path().join("paused.yaml");
    fs::write(
        &document,
        node("n1", "{desiredRole: worker, availability: pause}"),
    )
    .unwrap();
    let meanwhile = format!(
        "{program} apply --etcd-endpoints={endpoints} -f {}",
        document.display()
    );
    let conflict = desk
        .edit(&format!("{meanwhile}\n{TO_DRAIN}"))
        .await
        .expect_code(5);
    assert!(conflict.contains("what was edited is kept in"), "{conflict}");
    assert!(desk.availability().await.ends_with("PAUSE"));
}

#[tokio::test]
async fn only_an_object_that_a_person_writes_is_edited() {
    let desk = Desk::new().await;
    for (args, code, why) in [
        (
            &["edit", "secret", "a"][..],
            64,
            "the values of a secret are never shown",
        ),
        (
            &["edit", "member", "a"],
            64,
            "members are written by Quorate alone",
        ),
        (&["edit", "nodes"], 64, "name one node to edit"),
        (&["edit", "node", "n1", "n2"], 64, "name one node to edit"),
        (&["edit", "node", "n9"], 3, "node/n9 not found"),
    ] {
        let said = desk.edit_with("true", args).await.expect_code(code);
        assert!(said.contains(why), "{args:?}: {said}");
    }
}
