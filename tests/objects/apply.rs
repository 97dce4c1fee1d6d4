//! `apply`: what it writes, what it refuses, and its messages.

use quorate::proto::Role;
use quorate::proto::node_spec::Availability;

use super::node;
use crate::support::base::{Base, document};

#[tokio::test]
async fn a_node_is_created_configured_and_left_unchanged() {
    let cluster = Base::start().await;
    let both = node("n1", "{desiredRole: manager}") + &node("n2", "{}");
    assert_eq!(cluster.apply(&both).await, "node/n1 created\nnode/n2 created\n");
    let created = cluster.node("n1").await;
    let metadata = created.metadata.clone().unwrap();
    assert_eq!(metadata.generation, 1);
    assert_eq!(metadata.uid.len(), 36, "{}", metadata.uid);
    let age = jiff::Timestamp::now().as_second() - metadata.creation_time.unwrap().seconds;
    assert!((0..60).contains(&age), "{age}");
    assert_eq!(created.spec.unwrap().desired_role(), Role::Manager);
    assert_eq!(created.status.unwrap().role(), Role::Worker);

    let again =
        node("n1", "{desiredRole: manager}") + &node("n2", "{desiredRole: worker, availability: drain}");
    assert_eq!(
        cluster.apply(&again).await,
        "node/n1 unchanged\nnode/n2 configured\n"
    );
    assert_eq!(cluster.node("n1").await.metadata.unwrap(), metadata);
    let configured = cluster.node("n2").await;
    assert_eq!(configured.spec.unwrap().availability(), Availability::Drain);
    assert_eq!(configured.metadata.unwrap().generation, 2);
}

#[tokio::test]
async fn what_get_prints_can_be_applied_again() {
    let cluster = Base::start().await;
    cluster
        .apply(&(node("n1", "{desiredRole: manager}") + &node("n2", "{}")))
        .await;
    for format in ["yaml", "json"] {
        let printed = cluster.run(&["get", "nodes", "-o", format]).await.expect_done();
        assert_eq!(
            cluster.apply(&printed).await,
            "node/n1 unchanged\nnode/n2 unchanged\n"
        );
    }
}

#[tokio::test]
async fn everything_that_get_prints_is_unchanged_when_it_is_applied() {
    let cluster = Base::start().await;
    let volume = "{driver: {name: disk}, accessMode: {scope: singleNode, sharing: none, mount: {}}, \
                  capacity: {required: 1Gi}}";
    let documents = [
        document("Node", "n1", "{availability: drain, outOfService: true}"),
        document("Network", "front", "{}"),
        document("Service", "web", "{networks: [front]}"),
        document("Task", "t1", "{service: web, node: n1}"),
        document("Plugin", "disk", "{endpoint: \"http://127.0.0.1:1\"}"),
        document(
            "Plugin",
            "slow",
            "{endpoint: \"http://127.0.0.1:1\", concurrency: 2, timeout: 1500ms}",
        ),
        document("Volume", "data", volume),
    ];
    cluster.apply(&documents.concat()).await;
    for kind in ["nodes", "networks", "services", "tasks", "plugins", "volumes"] {
        for format in ["yaml", "json"] {
            let printed = cluster.run(&["get", kind, "-o", format]).await.expect_done();
            let applied = cluster.apply(&printed).await;
            let changed: Vec<&str> = applied
                .lines()
                .filter(|line| !line.ends_with(" unchanged"))
                .collect();
            assert_eq!(changed, [""; 0], "{kind} as {format}");
        }
    }
}

#[tokio::test]
async fn the_largest_object_that_etcd_takes_is_written_and_a_larger_one_refused_with_the_limit() {
    let cluster = Base::start().await;
    // etcd takes requests of 1.5 MiB; what is not the value takes some hundred bytes.
    const LIMIT: usize = 1_572_864;
    let secret = |size: usize| {
        format!(
            "apiVersion: quorate.dev/v1\nkind: Secret\nmetadata: {{name: s}}\nstringData: {{k: {}}}\n",
            "x".repeat(size)
        )
    };
    let apply = ["apply", "-f", "-"];
    let applied = cluster
        .run_with(&apply, &secret(LIMIT - 2048))
        .await
        .expect_done();
    assert_eq!(applied, "secret/s created\n");
    let applied = cluster
        .run_with(&apply, &secret(LIMIT - 2048))
        .await
        .expect_done();
    assert_eq!(applied, "secret/s unchanged\n");
    for size in [LIMIT, 1_700_000, 3_000_000] {
        let refused = cluster.run_with(&apply, &secret(size)).await.expect_code(1);
        assert!(refused.contains("--max-request-bytes"), "{size}: {refused}");
    }
}

#[tokio::test]
async fn files_and_directories_are_read_and_all_their_faults_are_reported_at_once() {
    let cluster = Base::start().await;
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    file(
        "a.yaml",
        &(node("n1", "{}") + &node("n2", "{desiredRol: worker}")),
    );
    file(
        "b.json",
        "{\"apiVersion\": \"quorate.dev/v1\", \"kind\": \"Node\", \"metadata\": {\"name\": \"N3\", \"labels\": {\"a\": 1}}}",
    );
    file("c.yml", "kind: [\n");
    file("notes.txt", "neither");
    let path = directory.path().to_str().unwrap();
    let before = cluster.contents().await;
    let error = cluster.run(&["apply", "-f", path]).await.expect_code(64);
    let error = error.replace(path, "DIR");
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines[0], "error: 4 faults, nothing was written");
    assert_eq!(
        lines[1],
        "  DIR/a.yaml: document 2 (Node n2): spec.desiredRol: unknown field (did you mean desiredRole?)"
    );
    assert!(lines[2].starts_with("  DIR/b.json: document 1 (Node N3): metadata.name: \"N3\" is not a name"));
    assert_eq!(
        lines[3],
        "  DIR/b.json: document 1 (Node N3): metadata.labels.a: expected a string, found the number 1 (put it in quotes)"
    );
    assert!(lines[4].starts_with("  DIR/c.yml: not valid YAML: "), "{error}");
    assert_eq!(cluster.contents().await, before);

    file("a.yaml", &node("n1", "{}"));
    std::fs::remove_file(directory.path().join("b.json")).unwrap();
    file("c.yml", &node("n2", "{}"));
    let applied = cluster.run(&["apply", "-f", path]).await.expect_done();
    assert_eq!(applied, "node/n1 created\nnode/n2 created\n");
}

#[tokio::test]
async fn each_wrong_input_has_its_message_and_code_and_writes_nothing() {
    let cluster = Base::start().await;
    cluster
        .apply(&node("n1", "{desiredRole: worker, availability: drain}"))
        .await;
    let uid = cluster.node("n1").await.metadata.unwrap().uid;
    let before = cluster.contents().await;
    let with_metadata = |metadata: &str| {
        format!(
            "apiVersion: quorate.dev/v1\nkind: Node\nmetadata: {{{metadata}}}\n\
             spec: {{desiredRole: worker, availability: active}}\n"
        )
    };
    for (text, code, expected) in [
        (String::new(), 64, "no documents in standard input"),
        ("kind: Pod\n".to_owned(), 64, "kind: \"Pod\" is not one of Node"),
        ("just words\n".to_owned(), 64, "document 1: expected an object"),
        // A template whose variable was not set leaves a null.
        (
            node("n2", "{}") + &with_metadata("name: "),
            64,
            "document 2 (Node): metadata.name: missing",
        ),
        ("{\"kind\": \"Node\",\n".to_owned(), 64, "not valid JSON"),
        (with_metadata("name: n2, name: n3"), 64, "not valid YAML"),
        (
            node("n2", "{desiredRole: boss}"),
            64,
            "spec.desiredRole: \"boss\" is not one of worker, manager",
        ),
        (
            node("n1", "{availability: drain}"),
            64,
            "spec.desiredRole: missing",
        ),
        (
            node("n1", "{desiredRole: worker}"),
            64,
            "spec.availability: missing",
        ),
        (
            node("n2", "{}") + &node("n2", "{}"),
            64,
            "document 2 (Node n2): the same object as in",
        ),
        (
            with_metadata("name: n1, resourceVersion: '1'"),
            5,
            "metadata.resourceVersion is 1, but the object is at",
        ),
        (
            with_metadata("name: n1, uid: other"),
            5,
            "it was deleted and created again",
        ),
        (
            with_metadata(&format!("name: n9, uid: {uid}")),
            5,
            "no such object exists",
        ),
        // A good document is not written before a bad one is found.
        (node("n2", "{}") + &node("n1", "{}"), 64, "nothing was written"),
    ] {
        let error = cluster
            .run_with(&["apply", "-f", "-"], &text)
            .await
            .expect_code(code);
        assert!(error.contains(expected), "{text}: {error}");
        assert_eq!(cluster.contents().await, before, "{text}");
    }
    let error = cluster
        .run(&["apply", "-f", "/does/not/exist"])
        .await
        .expect_code(64);
    assert!(error.contains("cannot read /does/not/exist"), "{error}");
    cluster.run(&["apply"]).await.expect_code(64);
}

#[tokio::test]
async fn a_status_report_writes_the_reporters_part_alone() {
    let cluster = Base::start().await;
    cluster.apply(&node("n1", "{desiredRole: manager}")).await;
    let report = "apiVersion: quorate.dev/v1\nkind: Node\nmetadata: {name: n1, labels: {ignored: x}}\n\
                  spec: {desiredRole: worker}\n\
                  status: {release: 1.2.0, controller: true, role: manager, csi: [{plugin: p, nodeID: id-1}]}\n";
    let status = |text: &'static str| {
        let cluster = &cluster;
        async move {
            cluster
                .run_with(&["apply", "--subresource", "status", "-f", "-"], text)
                .await
        }
    };
    assert_eq!(status(report).await.expect_done(), "node/n1 configured\n");
    let node = cluster.node("n1").await;
    let metadata = node.metadata.unwrap();
    assert_eq!((metadata.generation, metadata.labels.len()), (1, 0));
    assert_eq!(node.spec.unwrap().desired_role(), Role::Manager);
    let reported = node.status.unwrap();
    assert_eq!(reported.role(), Role::Worker);
    assert!(reported.controller);
    assert_eq!(reported.csi[0].node_id, "id-1");
    assert_eq!(status(report).await.expect_done(), "node/n1 unchanged\n");

    let error = status("{apiVersion: quorate.dev/v1, kind: Node, metadata: {name: n2}, status: {}}").await;
    assert!(error.expect_code(3).contains("not found"));
    let error = status(
        "{apiVersion: quorate.dev/v1, kind: Node, metadata: {name: n1}, status: {csi: [{plugin: p, nodeID: ''}]}}",
    );
    assert!(
        error
            .await
            .expect_code(64)
            .contains("status.csi[0].nodeID: must not be empty")
    );
}

#[tokio::test]
async fn a_malformed_stored_node_is_named_and_not_overwritten() {
    let cluster = Base::start().await;
    cluster.etcd.etcdctl(&["put", "/quorate/nodes/n1", "garbage"]);
    let before = cluster.contents().await;
    let error = cluster
        .run_with(&["apply", "-f", "-"], &node("n1", "{desiredRole: worker}"))
        .await
        .expect_code(1);
    assert!(
        error.contains("(Node n1): the stored value is malformed"),
        "{error}"
    );
    assert_eq!(cluster.contents().await, before);
}
