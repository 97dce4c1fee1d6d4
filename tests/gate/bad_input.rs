//! Command lines and environments that cannot work: each has a clear message and its exit code, and writes nothing.

use std::time::Duration;

use quorate_dev::pki::Authority;
use quorate_dev::ports;
use tokio::time::timeout;

use crate::support::etcd::{PASSWORD, TestEtcd, USER};
use crate::support::quorate::{Finished, program, quorate, quorate_with};

/// Runs both commands that connect to etcd first, with these flags.
async fn both(flags: &[&str]) -> [Finished; 2] {
    // What may pass is tried again for this long: by default half a minute.
    let limit = "--start-limit-ms=1500";
    let run = [
        "run",
        "--no-kubernetes",
        "--listen=127.0.0.1:0",
        "--node-id=a",
        limit,
    ];
    let wait = ["wait-ready", "--timeout=20s"];
    let (run, wait) = (quorate([&run, flags].concat()), quorate([&wait, flags].concat()));
    let (run, wait) = tokio::join!(run, wait);
    [run, wait]
}

/// Asserts that both commands fail with this code and all of these words, and print nothing to stdout.
async fn refused(code: i32, flags: &[&str], words: &[&str]) {
    for finished in both(flags).await {
        assert_eq!(finished.code, code, "{flags:?}: {finished:?}");
        assert!(
            words.iter().all(|word| finished.stderr.contains(word)),
            "{flags:?}: {words:?} are not all in: {}",
            finished.stderr
        );
        assert_eq!(finished.stdout, "", "{flags:?}");
    }
}

#[tokio::test]
async fn a_malformed_flag_is_a_usage_error_that_names_it_and_what_is_expected() {
    refused(
        64,
        &["--prefix=quorate"],
        &["--prefix", "\"quorate\"", "/team-a/quorate"],
    )
    .await;
    refused(64, &["--prefix=/a b"], &["--prefix", "\"/a b\""]).await;
    refused(
        64,
        &["--etcd-endpoints=http://h:99999"],
        &["http://h:99999", "http://10.0.0.1:2379"],
    )
    .await;
    refused(64, &["--etcd-endpoints="], &["no etcd endpoint is given"]).await;
    refused(
        64,
        &["--etcd-endpoints=", "--etcd-cert=c.pem", "--etcd-key=k.pem"],
        &["no etcd endpoint is given"],
    )
    .await;
    refused(64, &["--etcd-endpoints=ftp://h:1"], &["ftp://h:1"]).await;
    refused(
        64,
        &["--etcd-endpoints=https://a:1,http://b:1"],
        &["http://b:1", "https://"],
    )
    .await;
    refused(64, &["--etcd-cert=x.pem"], &["--etcd-key"]).await;
    refused(64, &["--etcd-user=x"], &["--etcd-password-file"]).await;
    refused(64, &["--no-such-flag"], &["--no-such-flag", "Usage"]).await;
}

#[tokio::test]
async fn a_malformed_flag_of_one_command_is_a_usage_error() {
    for (args, words) in [
        (["run", "--node-id=No_Name"], ["--node-id", "RFC 1123"]),
        (["run", "--lease-ttl=1s"], ["--lease-ttl", "2s to 1h"]),
        (["run", "--lease-ttl=2500ms"], ["--lease-ttl", "whole seconds"]),
        (["run", "--lease-ttl=soon"], ["--lease-ttl", "soon"]),
        (
            ["run", "--learner-timeout=0"],
            ["--learner-timeout", "whole seconds, 1s to 168h"],
        ),
        (["run", "--listen=nowhere"], ["--listen", "like 0.0.0.0:8080"]),
        (
            ["run", "--max-voters=0"],
            ["--max-voters", "expected a number of voters"],
        ),
        (
            ["run", "--page-host=http://x"],
            ["--page-host", "without scheme and port"],
        ),
        (
            ["agent", "--etcd-metrics=x"],
            ["--etcd-metrics", "expected ADDRESS:PORT"],
        ),
        (["run", "--log-format=xml"], ["--log-format", "json"]),
        (
            ["run", "--etcd-sync-endpoints=maybe"],
            ["--etcd-sync-endpoints", "maybe"],
        ),
        (["wait-ready", "--timeout=soon"], ["--timeout", "1h30m"]),
        (["wait-ready", "--timeout=-5s"], ["--timeout", "negative"]),
        (
            ["wait-ready", "--release=v1.2"],
            ["--release", "MAJOR.MINOR.PATCH"],
        ),
    ] {
        let finished = quorate(args).await;
        assert_eq!(finished.code, 64, "{finished:?}");
        assert!(
            words.iter().all(|word| finished.stderr.contains(word)),
            "{words:?}: {}",
            finished.stderr
        );
    }
}

#[tokio::test]
async fn a_malformed_variable_is_refused_like_the_flag_that_it_stands_for() {
    let malformed = quorate_with(["wait-ready"], None, &[("QUORATE_PREFIX", "quorate")]).await;
    assert!(malformed.expect_code(64).contains("--prefix"));
    let malformed = quorate_with(["run"], None, &[("QUORATE_LEASE_TTL", "0")]).await;
    assert!(malformed.expect_code(64).contains("--lease-ttl"));
    // With certificates, every endpoint must be https: an empty one is no endpoint at all.
    let empty = [
        ("QUORATE_ETCD_ENDPOINTS", ""),
        ("QUORATE_ETCD_CERT", "c.pem"),
        ("QUORATE_ETCD_KEY", "k.pem"),
    ];
    let empty = quorate_with(["wait-ready"], None, &empty).await;
    assert!(empty.expect_code(64).contains("no etcd endpoint is given"));
}

#[tokio::test]
async fn a_variable_of_etcd_without_its_pair_is_refused_only_by_commands_that_ask_etcd() {
    for (variable, missing) in [
        ("QUORATE_ETCD_USER", "--etcd-password-file"),
        ("QUORATE_ETCD_PASSWORD_FILE", "--etcd-user"),
        ("QUORATE_ETCD_CERT", "--etcd-key"),
        ("QUORATE_ETCD_KEY", "--etcd-cert"),
    ] {
        let alone = [(variable, "x")];
        for args in [["completions", "bash"], ["version", "--client"]] {
            quorate_with(args, None, &alone).await.expect_done();
        }
        for args in [
            ["get", "nodes"],
            ["recover", "plan"],
            ["doctor", "--no-kubernetes"],
        ] {
            let refused = quorate_with(args, None, &alone).await.expect_code(64);
            assert!(refused.contains(&format!("needs {missing}")), "{refused}");
        }
    }
}

#[tokio::test]
async fn an_empty_variable_counts_as_none() {
    let empty = [
        ("QUORATE_ETCD_CACERT", ""),
        ("QUORATE_ETCD_CERT", ""),
        ("QUORATE_ETCD_USER", ""),
        ("QUORATE_KUBECONFIG", ""),
        ("QUORATE_NO_KUBERNETES", ""),
        ("QUORATE_NO_PAGE", ""),
        ("QUORATE_CA_DIR", ""),
        ("QUORATE_ENCRYPTION_KEY_FILE", ""),
    ];
    let run = ["run", "--node-id=No_Name"];
    let refused = quorate_with(run, None, &empty).await.expect_code(64);
    assert!(refused.contains("RFC 1123"), "nothing but the name: {refused}");
}

#[tokio::test]
async fn the_variable_of_a_switch_is_a_word_or_a_number() {
    let with = async |value: &str| {
        let variables = [("QUORATE_NO_PAGE", value), ("QUORATE_APPROVE_JOINS", value)];
        let refused = quorate_with(["run", "--node-id=No_Name"], None, &variables).await;
        refused.expect_code(64)
    };
    for value in ["1", "0", "yes", "No", "true"] {
        let refused = with(value).await;
        assert!(refused.contains("RFC 1123"), "{value}: {refused}");
    }
    let refused = with("maybe").await;
    assert!(refused.contains("expected true, yes, on or 1"), "{refused}");
}

#[tokio::test]
async fn a_typed_choice_about_kubernetes_is_not_refused_for_a_variable_that_says_less() {
    let conflict = "--kubeconfig cannot be used with --no-kubernetes";
    for (typed, variables, refused) in [
        (
            "--kubeconfig=/x",
            &[("QUORATE_NO_KUBERNETES", "false")][..],
            false,
        ),
        ("--no-kubernetes", &[("QUORATE_KUBECONFIG", "/x")][..], false),
        (
            "--no-page",
            &[("QUORATE_NO_KUBERNETES", "false"), ("QUORATE_KUBECONFIG", "/x")][..],
            false,
        ),
        ("--kubeconfig=/x", &[("QUORATE_NO_KUBERNETES", "true")][..], true),
    ] {
        let run = ["run", "--node-id=No_Name", typed];
        let stderr = quorate_with(run, None, variables).await.expect_code(64);
        assert_eq!(
            stderr.contains(conflict),
            refused,
            "{typed} {variables:?}: {stderr}"
        );
        assert_eq!(
            stderr.contains("RFC 1123"),
            !refused,
            "{typed} {variables:?}: {stderr}"
        );
    }
    for command in ["run", "doctor"] {
        let both = quorate([command, "--no-kubernetes", "--kubeconfig=/x"]).await;
        assert!(both.expect_code(64).contains(conflict), "{command}");
    }
}

#[tokio::test]
async fn files_that_are_missing_or_hold_something_else_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let missing = directory.path().join("missing").display().to_string();
    let nothing = file("empty", "\n");
    let no_pem = file("no.pem", "certificate");
    let cases = [
        (vec![format!("--etcd-cacert={missing}")], &missing),
        (vec![format!("--etcd-cacert={no_pem}")], &no_pem),
        (
            vec![
                "--etcd-user=x".to_owned(),
                format!("--etcd-password-file={missing}"),
            ],
            &missing,
        ),
        (
            vec![
                "--etcd-user=x".to_owned(),
                format!("--etcd-password-file={nothing}"),
            ],
            &nothing,
        ),
    ];
    for (flags, named) in cases {
        let mut flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        flags.push("--etcd-endpoints=127.0.0.1:1");
        refused(64, &flags, &[named]).await;
    }
    let diff = ["bundle", "diff", "--kubeconfig", &missing];
    let said = quorate(diff).await.expect_code(64);
    assert!(
        said.contains(&format!("cannot read {missing}: No such file")),
        "{said}"
    );
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("--listen={}", taken.local_addr().unwrap());
    let finished = quorate(["run", "--no-kubernetes", "--node-id=a", &listen]).await;
    let stderr = finished.expect_code(1);
    assert!(
        stderr.contains(&taken.local_addr().unwrap().to_string()) && stderr.contains("--listen"),
        "{stderr}"
    );
}

#[tokio::test]
async fn an_etcd_that_cannot_be_reached_is_named_with_what_to_check() {
    let port = ports::free_port().unwrap();
    let endpoint = format!("--etcd-endpoints=http://127.0.0.1:{port}");
    // It waits for etcd as for the state.
    let wait = quorate(["wait-ready", "--timeout=1s", &endpoint]).await;
    for text in [&wait.stdout, &wait.stderr] {
        assert!(
            text.contains(&format!("http://127.0.0.1:{port}"))
                && text.contains("refused")
                && text.contains("check --etcd-endpoints"),
            "{wait:?}"
        );
    }
    wait.expect_code(2);
    // A replica tries again for half a minute, and logs so at once.
    let wait = quorate([
        "run",
        "--no-kubernetes",
        "--listen=127.0.0.1:0",
        "--node-id=a",
        &endpoint,
    ])
    .await;
    let stderr = wait.expect_code(1);
    assert!(
        stderr.contains("trying again for 30s") && stderr.contains("check --etcd-endpoints"),
        "{stderr}"
    );
}

#[tokio::test]
async fn certificates_of_another_authority_are_refused_on_either_side() {
    let etcd = TestEtcd::with_tls().await;
    let tls = etcd.tls.as_ref().unwrap();
    let elsewhere = etcd.directory().join("other");
    std::fs::create_dir(&elsewhere).unwrap();
    let stranger = Authority::create(&elsewhere, "other").unwrap();
    let endpoints = format!("--etcd-endpoints={}", etcd.endpoints_flag());
    let flag = |name: &str, path: &std::path::Path| format!("--etcd-{name}={}", path.display());
    let own_ca = flag("cacert", &tls.ca);
    let other_ca = flag("cacert", &stranger.certificate_file());
    let (cert, key) = (flag("cert", &tls.client.cert), flag("key", &tls.client.key));
    let hint = "check --etcd-cacert, --etcd-cert and --etcd-key";
    refused(
        1,
        &[&endpoints, &other_ca, &cert, &key],
        &["invalid peer certificate", hint],
    )
    .await;
    refused(1, &[&endpoints, &own_ca], &["received fatal alert", hint]).await;
    // A certificate with the key of another one.
    let other_key = flag("key", &tls.renewed.key);
    refused(1, &[&endpoints, &own_ca, &cert, &other_key], &["--etcd-key"]).await;
    // Plain HTTP to a server with TLS, which hangs up: as a server does that starts, so that wait-ready waits.
    let plain = format!(
        "--etcd-endpoints={}",
        etcd.endpoints_flag().replace("https://", "http://")
    );
    let [run, wait] = both(&[&plain]).await;
    for stderr in [run.expect_code(1), wait.expect_code(2)] {
        assert!(
            stderr.contains("127.0.0.1") && stderr.contains("https://"),
            "{stderr}"
        );
    }
    assert_eq!(etcd.keys("/"), [""; 0], "nothing was written");
}

#[tokio::test]
async fn a_wrong_password_and_a_missing_permission_are_named_with_a_hint() {
    let etcd = TestEtcd::with_password("/q", 60).await;
    let file = etcd.directory().join("password");
    let endpoints = format!("--etcd-endpoints={}", etcd.endpoints_flag());
    let user = format!("--etcd-user={USER}");
    let password = format!("--etcd-password-file={}", file.display());
    std::fs::write(&file, "wrong").unwrap();
    let flags = [&*endpoints, &user, &password, "--prefix=/q"];
    refused(1, &flags, &["invalid user ID or password", "check --etcd-user"]).await;

    std::fs::write(&file, PASSWORD).unwrap();
    let denied = quorate(["wait-ready", &endpoints, &user, &password, "--prefix=/elsewhere"]).await;
    let stderr = denied.expect_code(1);
    assert!(
        stderr.contains("permission denied") && stderr.contains("grant-permission"),
        "{stderr}"
    );
    let anonymous = quorate(["wait-ready", &endpoints, "--prefix=/q"]).await;
    let stderr = anonymous.expect_code(1);
    assert!(stderr.contains("user name is empty"), "{stderr}");
    let written = etcd.etcdctl_as_root(&["get", "--prefix", "--keys-only", "/"]);
    assert_eq!(written, "", "nothing was written");
}

#[tokio::test]
async fn in_a_pod_a_replica_waits_for_an_etcd_that_is_down_at_its_start() {
    let port = ports::free_port().unwrap();
    let endpoint = format!("--etcd-endpoints=http://127.0.0.1:{port}");
    let flags = [
        "run",
        "--no-kubernetes",
        "--listen=127.0.0.1:0",
        "--start-limit-ms=100",
        &endpoint,
    ];
    let mut outside = program().args(flags).arg("--node-id=a").spawn().unwrap();
    assert_eq!(
        outside.wait().await.unwrap().code(),
        Some(1),
        "a supervisor starts it again"
    );
    let mut inside = program();
    inside.args(flags).kill_on_drop(true);
    inside.envs([("POD_NAME", "a"), ("POD_NAMESPACE", "q"), ("POD_UID", "u")]);
    let mut inside = inside.spawn().unwrap();
    let ended = timeout(Duration::from_secs(5), inside.wait()).await;
    assert!(ended.is_err(), "it goes on trying: {ended:?}");
}

#[tokio::test]
async fn a_user_for_an_etcd_without_users_is_refused_with_the_advice_to_leave_it_out() {
    let etcd = TestEtcd::start().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, PASSWORD).unwrap();
    let endpoints = format!("--etcd-endpoints={}", etcd.endpoints_flag());
    let user = format!("--etcd-user={USER}");
    let file = format!("--etcd-password-file={}", file.display());
    refused(
        1,
        &[&endpoints, &user, &file],
        &["authentication is not enabled", "leave out --etcd-user"],
    )
    .await;
}
