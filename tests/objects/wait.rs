//! `wait`: until an object is as a script needs it.

use super::{keys, node};
use crate::support::base::Base;
use crate::support::etcd::{PASSWORD, TestEtcd, USER};
use crate::support::quorate::quorate_on;

#[tokio::test]
async fn a_command_waits_until_an_object_is_as_a_script_needs_it() {
    let cluster = Base::start().await;
    let role = "--for=jsonpath={.spec.availability}=drain";
    let absent = cluster.run(&["wait", "node", "n1", role]).await.expect_code(3);
    assert!(absent.contains("node/n1 not found"), "{absent}");

    let worker = node("n1", "{desiredRole: worker}");
    let (created, _) = tokio::join!(
        cluster.done(&["wait", "node/n1", "--for=create", "--timeout=60s"]),
        cluster.apply(&worker),
    );
    assert_eq!(created, "node/n1 exists\n");

    let late = ["wait", "node", "n1", role, "--timeout=1s"];
    let said = cluster
        .times_out_with(&late, "node/n1: the field is active")
        .await;
    assert!(said.contains("not done after 1s"), "{said}");

    let drained = node("n1", "{desiredRole: worker, availability: drain}");
    let until_drained = ["wait", "node", "n1", role, "--timeout=60s"];
    let (met, _) = tokio::join!(cluster.done(&until_drained), cluster.apply(&drained),);
    assert_eq!(met, "node/n1 condition met\n");

    cluster.apply(&node("n2", "{desiredRole: worker}")).await;
    let (gone, _) = tokio::join!(
        cluster.done(&["wait", "nodes", "n1", "n2", "--for=delete", "--timeout=60s"]),
        cluster.done(&["delete", "node", "n1", "n2", "--yes"]),
    );
    assert_eq!(gone, "node/n1 deleted\nnode/n2 deleted\n");
}

#[tokio::test]
async fn an_object_that_is_deleted_while_something_else_is_waited_for_ends_the_command() {
    let cluster = Base::start().await;
    cluster.apply(&node("n1", "{desiredRole: worker}")).await;
    let waiting = ["wait", "node", "n1", "--for=condition=Blocked", "--timeout=60s"];
    let (ended, _) = tokio::join!(
        cluster.run(&waiting),
        cluster.done(&["delete", "node", "n1", "--yes"]),
    );
    let said = ended.expect_code(3);
    assert!(said.contains("node/n1 not found"), "{said}");
}

#[tokio::test]
async fn what_cannot_be_waited_for_is_refused() {
    let cluster = Base::start().await;
    for (args, why) in [
        (
            &["wait", "nodes", "--for=create"][..],
            "name the nodes to wait for",
        ),
        (
            &["wait", "node", "n1", "--for=ready"],
            "expected create, delete, condition=TYPE[=STATUS] or jsonpath=PATH[=VALUE]",
        ),
        (&["wait", "node", "n1"], "--for <WHAT>"),
        (
            &["wait", "member", "m1", "--for=create"],
            "etcd reports no change of how its members are",
        ),
    ] {
        let said = cluster.run(args).await.expect_code(64);
        assert!(said.contains(why), "{args:?}: {said}");
    }
}

/// They are more than are followed by a range each, and the range that covers them all is refused.
#[tokio::test]
async fn a_user_of_etcd_who_may_read_some_objects_alone_can_wait_for_them() {
    let etcd = TestEtcd::with_password("/nothing", 60).await;
    let candidates = String::from_utf8(keys().candidates().start().to_vec()).unwrap();
    let may_read = |key: &str, more: &[&str]| {
        let grant = [&["role", "grant-permission"][..], more, &[USER, "read", key][..]].concat();
        etcd.etcdctl_as_root(&grant);
    };
    may_read(&candidates, &["--prefix=true"]);
    // Every command reads it first.
    may_read("/quorate/kubernetes/reconciler/status", &[]);
    let ids: Vec<String> = (0..20).map(|number| format!("v{number}/n1")).collect();
    for id in &ids {
        let key = format!("/quorate/publications/{id}");
        etcd.etcdctl_as_root(&["put", &key, "a value"]);
        may_read(&key, &[]);
    }
    let directory = tempfile::tempdir().unwrap();
    let password = directory.path().join("password");
    std::fs::write(&password, PASSWORD).unwrap();
    let user = format!("--etcd-user={USER}");
    let password = format!("--etcd-password-file={}", password.display());
    let mut args = vec!["wait", "publications", "--for=create", "--timeout=60s"];
    args.extend([&*user, &*password]);
    args.extend(ids.iter().map(String::as_str));
    let waited = quorate_on(&etcd, &args, "").await.expect_done();
    let met: String = ids
        .iter()
        .map(|id| format!("publication/{id} exists\n"))
        .collect();
    assert_eq!(waited, met);
}
