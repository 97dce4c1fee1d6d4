//! `quorate dev` is carried out by another program, quorate-dev: how it is found, and what it is given.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;
use tokio::process::Command;

use crate::support::quorate::{programs, quorate};

/// A folder that holds this program under this name, in the target directory, so that a link will do for a copy.
fn folder_with(program: &Path, name: &str) -> TempDir {
    let folder = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
    std::fs::hard_link(program, folder.path().join(name)).unwrap();
    folder
}

/// Exit code, stdout and stderr of a program with this `PATH`.
async fn run(program: PathBuf, args: &[&str], path: &Path) -> (Option<i32>, String, String) {
    let output = Command::new(program)
        .args(args)
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[tokio::test]
async fn without_quorate_dev_it_says_where_it_looked_and_how_to_get_it() {
    let alone = folder_with(&programs().quorate, "quorate");
    let empty = tempfile::tempdir().unwrap();
    let (code, stdout, stderr) = run(alone.path().join("quorate"), &["dev"], empty.path()).await;
    assert_eq!((code, &*stdout), (Some(1), ""));
    let beside = alone.path().canonicalize().unwrap();
    for part in [
        format!(
            "quorate-dev, which is neither in {} nor on PATH",
            beside.display()
        ),
        "cargo build --workspace".to_owned(),
    ] {
        assert!(stderr.contains(&part), "{part:?} is missing: {stderr}");
    }
}

#[tokio::test]
async fn quorate_dev_on_path_is_found() {
    let alone = folder_with(&programs().quorate, "quorate");
    let path = folder_with(&programs().quorate_dev, "quorate-dev");
    let (code, stdout, stderr) = run(alone.path().join("quorate"), &["dev", "--help"], path.path()).await;
    assert_eq!((code, &*stderr), (Some(0), ""));
    assert!(stdout.contains("--csi-demo"), "{stdout}");
}

#[tokio::test]
async fn the_one_beside_comes_before_the_one_on_path() {
    let both = folder_with(&programs().quorate, "quorate");
    std::fs::hard_link(programs().quorate_dev, both.path().join("quorate-dev")).unwrap();
    let wrong = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/bin/false", wrong.path().join("quorate-dev")).unwrap();
    let (code, stdout, _) = run(both.path().join("quorate"), &["dev", "--help"], wrong.path()).await;
    assert_eq!(code, Some(0));
    assert!(stdout.contains("--csi-demo"), "{stdout}");
}

#[tokio::test]
async fn help_and_errors_name_the_command_that_the_user_called() {
    let help = quorate(["dev", "--help"]).await.expect_done();
    assert!(help.contains("Usage: quorate dev [OPTIONS]"), "{help}");
    assert!(help.contains("--members <N>"), "{help}");
    let error = quorate(["dev", "--member=3"]).await.expect_code(64);
    assert!(error.contains("--members"), "no suggestion: {error}");
    // A flag of every command may stand on both sides.
    let error = quorate(["--prefix=bad", "dev"]).await.expect_code(64);
    assert!(error.contains("cannot be a prefix"), "{error}");
}

#[tokio::test]
async fn quorate_dev_without_the_product_says_so() {
    let alone = folder_with(&programs().quorate_dev, "quorate-dev");
    let empty = tempfile::tempdir().unwrap();
    let (code, stdout, stderr) = run(alone.path().join("quorate-dev"), &["dev"], empty.path()).await;
    assert_eq!((code, &*stdout), (Some(1), ""));
    assert!(
        stderr.contains("quorate is neither beside quorate-dev nor on PATH"),
        "{stderr}"
    );
}
