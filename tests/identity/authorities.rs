//! `quorate ca`: making the authorities, showing them, issuing certificates. tests/deploy runs a real etcd with what it issues.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{authorities, ca, home};
use crate::support::quorate::quorate_with;

fn files(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn new_authorities_can_sign_and_are_never_overwritten() {
    let home = home();
    let directory = authorities(&home).await;
    let current = Path::new(&directory).join("current");
    assert_eq!(
        files(&current),
        ["etcd-ca.crt", "etcd-ca.key", "node-ca.crt", "node-ca.key"]
    );
    let shown = ca(&["show", "--ca-dir", &directory]).await.expect_done();
    assert_eq!(shown.matches("Can sign:     yes").count(), 2, "{shown}");
    assert_eq!(
        shown.matches("(3650 days left)").count() + shown.matches("(3649 days left)").count(),
        2,
        "{shown}"
    );

    let before = fs::read(current.join("node-ca.key")).unwrap();
    let again = ca(&["init", "-o", &directory]).await.expect_code(5);
    assert!(again.contains("current exists already"), "{again}");
    assert_eq!(fs::read(current.join("node-ca.key")).unwrap(), before);
}

#[tokio::test]
async fn authorities_are_printed_as_a_secret_for_kubectl() {
    let printed = ca(&["init", "-o", "secret"]).await.expect_done();
    let secret: serde_json::Value = serde_saphyr::from_str(&printed).unwrap();
    assert_eq!(secret["kind"], "Secret");
    for (name, begins) in [
        ("node-ca.crt", "-----BEGIN CERTIFICATE-----"),
        ("node-ca.key", "-----BEGIN PRIVATE KEY-----"),
        ("etcd-ca.crt", "-----BEGIN CERTIFICATE-----"),
        ("etcd-ca.key", "-----BEGIN PRIVATE KEY-----"),
    ] {
        let content = secret["stringData"][name].as_str().unwrap();
        assert!(content.starts_with(begins), "{name}: {content}");
    }
}

#[tokio::test]
async fn a_certificate_is_issued_with_its_authority_and_a_key_that_only_its_owner_reads() {
    let home = home();
    let directory = authorities(&home).await;
    let output = home.path().join("made/here").display().to_string();
    let args = ["issue", "etcd-member", "--ca-dir", &directory, "-o", &output];
    let hosts = ["--host", "10.0.0.4,etcd-4.example.com"];
    let args: Vec<&str> = args.into_iter().chain(hosts).collect();
    let done = ca(&args).await.expect_done();
    assert!(done.contains("valid until "), "{done}");
    assert_eq!(files(Path::new(&output)), ["ca.crt", "member.crt", "member.key"]);
    let key = Path::new(&output).join("member.key");
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);

    let before = fs::read(&key).unwrap();
    let variables = [("QUORATE_CA_DIR", directory.as_str())];
    let args = ["ca", "issue", "etcd-member", "-o", &output, "--host", "10.0.0.4"];
    quorate_with(args, None, &variables).await.expect_done();
    assert_ne!(fs::read(&key).unwrap(), before, "a renewal makes a new key");
}

#[tokio::test]
async fn a_certificate_that_cannot_be_written_leaves_the_earlier_one_with_its_key() {
    let home = home();
    let directory = authorities(&home).await;
    let output = home.path().join("made").display().to_string();
    let issue = ["issue", "etcd-client", "--ca-dir", &directory, "-o", &output];
    ca(&issue).await.expect_done();
    let content = || {
        ["ca.crt", "client.key", "client.crt"].map(|name| fs::read(Path::new(&output).join(name)).unwrap())
    };
    let before = content();
    // In the way of the last file that is written.
    let obstacle = Path::new(&output).join("client.crt.new");
    fs::create_dir(&obstacle).unwrap();
    let said = ca(&issue).await.expect_code(1);
    assert!(
        said.contains("cannot write") && said.contains("client.crt"),
        "{said}"
    );
    assert!(
        content() == before,
        "the files of the earlier certificate belong together"
    );
    fs::remove_dir(&obstacle).unwrap();
    assert_eq!(files(Path::new(&output)), ["ca.crt", "client.crt", "client.key"]);
    ca(&issue).await.expect_done();
    assert!(content() != before);
}

#[tokio::test]
async fn wrong_arguments_are_named_and_nothing_is_written() {
    let home = home();
    let directory = authorities(&home).await;
    let output = home.path().join("made").display().to_string();
    let member = ["issue", "etcd-member", "--ca-dir", &directory, "-o", &output];
    let client = ["issue", "etcd-client", "--ca-dir", &directory, "-o", &output];
    for (args, more, expected) in [
        (
            &member,
            &["--host", "10.0.0.4:2379"][..],
            "is not a host: expected a DNS name or an IP address, without a port",
        ),
        (&member, &[][..], "--host <HOST>"),
        (&client, &["--life", "10m"][..], "expected at least 1h"),
        (
            &client,
            &["--common-name", ""][..],
            "expected 1 to 64 printable ASCII characters",
        ),
        (
            &client,
            &["--common-name", "quorate-etcd"][..],
            "would pass at the peer port",
        ),
    ] {
        let args: Vec<&str> = args.iter().chain(more).copied().collect();
        let said = ca(&args).await.expect_code(64);
        assert!(said.contains(expected), "{args:?}: {said}");
    }
    assert!(!Path::new(&output).exists());

    let nowhere = home.path().join("nowhere").display().to_string();
    let said = ca(&["issue", "etcd-client", "--ca-dir", &nowhere, "-o", &output])
        .await
        .expect_code(1);
    assert!(
        said.contains("cannot read") && said.contains("nowhere/current/etcd-ca.crt"),
        "{said}"
    );
    assert!(said.contains("is --ca-dir right?"), "{said}");
}

#[tokio::test]
async fn an_authority_that_cannot_sign_is_shown_with_the_reason_and_signs_nothing() {
    let home = home();
    let directory = authorities(&home).await;
    let current = Path::new(&directory).join("current");
    fs::copy(current.join("node-ca.key"), current.join("etcd-ca.key")).unwrap();
    let shown = ca(&["show", "--ca-dir", &directory]).await;
    assert!(shown.stdout.contains("Can sign:     yes"), "{}", shown.stdout);
    assert!(
        shown
            .stdout
            .contains("etcd-ca.crt: its key is not the key of its first certificate"),
        "{}",
        shown.stdout
    );
    shown.expect_code(1);
    let output = home.path().join("made").display().to_string();
    let said = ca(&["issue", "etcd-client", "--ca-dir", &directory, "-o", &output])
        .await
        .expect_code(1);
    assert!(
        said.contains("its key is not the key of its first certificate"),
        "{said}"
    );
    assert!(!Path::new(&output).exists());
}
