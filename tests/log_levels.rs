//! `quorate log-level`: what all replicas write to their logs, changed while they run.

use quorate::etcd::KeyRange;

use crate::support::base::Base;
use crate::support::etcd::{PASSWORD, TestEtcd, USER};
use crate::support::quorate::{Launch, Replicas, TestReplica, quorate};
use crate::support::traced::traces_libraries;
use crate::support::wait::{QUIET, SOON, eventually, stays};

/// The library that carries each message to etcd, so that a replica has lines of it all the time.
const MODULE: &str = "h2=trace";

/// What its log says since the levels were last changed.
fn since_change(replica: &mut TestReplica) -> String {
    let log = replica.log();
    let (_, since) = log.rsplit_once("log levels: ").unwrap_or(("", ""));
    since.to_owned()
}

async fn start(base: &Base, names: &[&str]) -> Replicas {
    let mut replicas = Launch::on(&base.etcd).start_all(names);
    for replica in &mut replicas.0 {
        replica.wait_ready().await;
    }
    replicas
}

/// Waits until it writes everything of the library.
async fn traces(replica: &mut TestReplica) {
    replica.wait_for_log(&format!("log levels: {MODULE}")).await;
    eventually(SOON, "it traces its messages", async || {
        match traces_libraries(&since_change(replica)) {
            true => Ok(()),
            false => Err("no line of the library"),
        }
    })
    .await;
}

/// Waits until it writes as at its start, and goes on so.
async fn traces_no_more(replica: &mut TestReplica) {
    eventually(SOON, "the level has ended", async || {
        let since = since_change(replica);
        match since.starts_with("as at the start") {
            true => Ok(()),
            false => Err(since.lines().next().unwrap_or_default().to_owned()),
        }
    })
    .await;
    // A request that was under way at the change may end with a line.
    let before = replica.log().len();
    stays(
        QUIET,
        "no more lines of the library",
        async || match traces_libraries(&replica.log()[before..]) {
            true => Err("it traces its messages"),
            false => Ok(()),
        },
    )
    .await;
}

#[tokio::test]
async fn all_replicas_and_a_later_one_take_a_level_up_and_go_back_when_its_time_is_over() {
    let base = Base::start().await;
    let mut replicas = start(&base, &["a", "b"]).await;
    for replica in &mut replicas.0 {
        assert!(!traces_libraries(&replica.log()), "{}", replica.log());
    }
    let said = base.done(&["log-level", MODULE, "--for", "1h"]).await;
    assert_eq!(said, "h2 is at trace for 1h\n");
    for replica in &mut replicas.0 {
        traces(replica).await;
    }
    replicas.0.extend(start(&base, &["c"]).await.0);
    traces(&mut replicas.0[2]).await;
    // The same level for another time: the first lease is left to itself.
    base.done(&["log-level", MODULE, "--for", "2s"]).await;
    for replica in &mut replicas.0 {
        traces_no_more(replica).await;
    }
    let range = base.store.keys.log_levels();
    assert_eq!(base.list(&range).await, [], "etcd has ended it");
}

#[tokio::test]
async fn levels_are_shown_with_their_end_and_taken_back_one_by_one_or_all_at_once() {
    let base = Base::start().await;
    let mut replicas = start(&base, &["a"]).await;
    let replica = &mut replicas.0[0];
    let shown = base.run(&["log-level"]).await;
    assert!(shown.stderr.contains("no log levels are set"), "{shown:?}");
    assert_eq!(shown.stdout, "");
    base.done(&["log-level", "quorate::roles=debug", "--for=1h"])
        .await;
    let said = base.done(&["log-level", "quorate=warn", MODULE]).await;
    assert_eq!(
        said,
        "quorate is at warn until quorate log-level --reset\nh2 is at trace until quorate log-level --reset\n"
    );
    let shown = base.done(&["log-level"]).await;
    let rows: Vec<Vec<&str>> = shown
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows[0], ["MODULE", "LEVEL", "ENDS"]);
    assert_eq!(rows[1], ["h2", "trace", "with", "--reset"]);
    assert_eq!(rows[2], ["quorate", "warn", "with", "--reset"]);
    assert_eq!(rows[3][..3], ["quorate::roles", "debug", "in"]);
    assert!(
        rows.len() == 4 && (rows[3][3] == "1h" || rows[3][3].starts_with("59m")),
        "{shown}"
    );
    // The change itself is said, although nothing else is at info.
    replica.wait_for_log("log levels: h2=trace quorate=warn").await;
    eventually(SOON, "it traces its messages", async || {
        match traces_libraries(&replica.log()) {
            true => Ok(()),
            false => Err("no line of the library"),
        }
    })
    .await;
    base.done(&["log-level", "--reset", "quorate", "quorate::roles"])
        .await;
    replica.wait_for_log("log levels: h2=trace; all others").await;
    base.done(&["log-level", "--reset"]).await;
    traces_no_more(replica).await;
}

#[tokio::test]
async fn what_is_no_module_and_no_level_is_a_usage_error_and_nothing_is_written() {
    let base = Base::start().await;
    for (args, why) in [
        (&["quorate::rolls=debug"][..], "did you mean quorate::roles?"),
        (&["roles=debug"], "is no module"),
        (&["quorate=debug", "quorate=loud"], "\"loud\" is not a level"),
        (&["quorate=debug,h2=trace"], "is not a level"),
        (
            &["quorate=debug", "h2=info", "quorate=info"],
            "quorate is given twice",
        ),
        (&["quorate"], "expected MODULE=LEVEL"),
        (&["--reset", "quorate=debug"], "is no module"),
        (&["--reset", "--for=5s", "quorate"], "cannot be used with"),
        (&["--for=5s"], "MODULE=LEVEL"),
        (&["quorate=debug", "--for=1s"], "expected whole seconds"),
        (&["quorate=debug", "--for=soon"], "expected whole seconds"),
    ] {
        let stderr = base
            .run(&[&["log-level"][..], args].concat())
            .await
            .expect_code(64);
        assert!(stderr.contains(why), "{args:?}: {stderr}");
    }
    assert_eq!(base.list(&KeyRange::prefix(*b"/")).await, []);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_named_and_the_others_count() {
    let base = Base::start().await;
    let keys = &base.store.keys;
    base.put(&keys.log_level("quorate::roles"), *b"\xff\xff").await;
    base.put(&keys.log_level("a=b,c"), *b"").await;
    let mut replicas = start(&base, &["a"]).await;
    let replica = &mut replicas.0[0];
    base.done(&["log-level", MODULE]).await;
    traces(replica).await;
    for key in ["/quorate/log-levels/quorate::roles", "/quorate/log-levels/a=b,c"] {
        replica
            .wait_for_log(&format!("{key} cannot be read, and is ignored"))
            .await;
        let shown = base.run(&["log-level"]).await;
        assert!(shown.stderr.contains(key), "{shown:?}");
        assert!(shown.stdout.contains("h2 "), "{shown:?}");
    }
    base.done(&["log-level", "--reset"]).await;
    assert_eq!(base.list(&keys.log_levels()).await, []);
}

#[tokio::test]
async fn a_user_that_may_not_write_is_refused_by_etcd_and_may_look() {
    let etcd = TestEtcd::with_password("/quorate", 60).await;
    let root = |args: &[&str]| etcd.etcdctl_as_root(args);
    root(&["role", "add", "reader"]);
    let permission = [
        "role",
        "grant-permission",
        "reader",
        "read",
        "--prefix=true",
        "/quorate",
    ];
    root(&permission);
    root(&["user", "grant-role", USER, "reader"]);
    root(&["user", "revoke-role", USER, USER]);
    let file = etcd.directory().join("password");
    std::fs::write(&file, PASSWORD).unwrap();
    let flags = [
        format!("--etcd-endpoints={}", etcd.endpoints_flag()),
        format!("--etcd-user={USER}"),
        format!("--etcd-password-file={}", file.display()),
    ];
    let run = async |args: &[&str]| {
        let flags = flags.iter().map(String::as_str);
        quorate(args.iter().copied().chain(flags)).await
    };
    for args in [
        &["log-level", "quorate=debug", "--for=1m"][..],
        &["log-level", "quorate=debug"],
        &["log-level", "--reset"],
    ] {
        let stderr = run(args).await.expect_code(1);
        assert!(stderr.contains("permission denied"), "{args:?}: {stderr}");
    }
    let shown = run(&["log-level"]).await;
    assert_eq!((shown.code, &*shown.stdout), (0, ""), "{shown:?}");
}
