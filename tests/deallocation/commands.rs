//! The commands: refused references, blockers, and waiting for deletions.

use std::ffi::OsStr;
use std::process::Stdio;
use std::time::Duration;

use quorate::proto::task_status::State;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::timeout;

use super::{World, document, history, network, service};
use crate::support::proxy::{Network, Proxy};
use crate::support::quorate::{binary, quorate_with};
use crate::support::wait::{SOON, eventually};

#[tokio::test]
async fn references_to_what_is_missing_or_marked_are_refused_and_all_of_them_named() {
    let world = World::start().await;
    world
        .apply(&(network("marked") + &network("good") + &service("old", "{networks: [marked]}")))
        .await;
    world.mark("network/marked").await;
    world.put("/networks/bad", b"\xff".to_vec()).await;
    let before = world.etcd.revision();
    let documents = service("web", "{networks: [good, missing, marked, bad]}")
        + &document("Task", "t", "{service: nothing, node: nowhere}");
    let error = world
        .run_with(&["apply", "-f", "-"], &documents)
        .await
        .expect_code(4);
    for expected in [
        "nothing was written",
        "(Service web): refused by rule References: network missing does not exist; network marked is marked for \
         deletion; network bad cannot be read",
        "(Task t): refused by rule References: service nothing does not exist; node nowhere does not exist",
    ] {
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(world.etcd.revision(), before);

    // A reference that is older than the mark may stay in a new version of the service.
    let labelled = service("old", "{networks: [marked]}").replace("name: old", "name: old, labels: {a: b}");
    assert_eq!(world.apply(&labelled).await, "service/old configured\n");
    let error = world
        .run_with(
            &["apply", "-f", "-"],
            &service("old", "{networks: [marked], taskNetworks: [missing]}"),
        )
        .await
        .expect_code(4);
    assert!(error.contains("network missing does not exist"), "{error}");
    // Once removed, the reference cannot be added again.
    world.apply(&service("old", "{networks: []}")).await;
    let error = world
        .run_with(&["apply", "-f", "-"], &service("old", "{networks: [marked]}"))
        .await;
    assert!(
        error
            .expect_code(4)
            .contains("network marked is marked for deletion")
    );
    history::check(&world).await;
}

#[tokio::test]
async fn what_a_document_refers_to_may_stand_after_it() {
    let world = World::start().await;
    let documents = document("Task", "t", "{service: web, node: n1}")
        + &service("web", "{taskNetworks: [front]}")
        + &document("Node", "n1", "{}")
        + &network("front");
    assert_eq!(
        world.apply(&documents).await,
        "node/n1 created\nnetwork/front created\nservice/web created\ntask/web/t created\n"
    );
    assert_eq!(
        world
            .apply(&documents.replace("{}", "{desiredRole: worker}").replace(
                "Network\nmetadata: {name: front}\nspec: {desiredRole: worker}",
                "Network\nmetadata: {name: front}"
            ))
            .await,
        "node/n1 unchanged\nnetwork/front unchanged\nservice/web unchanged\ntask/web/t unchanged\n"
    );
    history::check(&world).await;
}

#[tokio::test]
async fn a_service_written_when_its_network_is_being_marked_is_refused_and_says_why() {
    let world = World::start().await;
    world.apply(&network("front")).await;
    // Every document is checked first. The mark comes while they are written, one by one.
    let documents: String = (0..1000)
        .map(|number| service(&format!("s{number:04}"), "{networks: [front]}"))
        .collect();
    let apply_args = ["apply", "-f", "-"];
    let applying = world.run_with(&apply_args, &documents);
    let marking = async {
        eventually(SOON, "the first service is written", async || {
            match world.objects().await.len() > 1 {
                true => Ok(()),
                false => Err("none is"),
            }
        })
        .await;
        let mut stored = world
            .store
            .etcd
            .get(b"/quorate/networks/front")
            .await
            .unwrap()
            .0
            .unwrap();
        // The mark that `delete` sets, written directly.
        let mut marked = super::decode_network(&stored.value).unwrap();
        marked.status.get_or_insert_default().delete_requested = Some(prost_types::Timestamp::default());
        stored.value = prost::Message::encode_to_vec(&marked);
        world.put("/networks/front", stored.value).await
    };
    let (applied, _) = tokio::join!(applying, marking);
    let written = applied.stdout.lines().count();
    let error = applied.expect_code(4);
    assert!(
        error.contains("refused by rule References: network front is marked for deletion"),
        "{error}"
    );
    assert!(
        (1..1000).contains(&written),
        "{written} were written before the mark"
    );
    assert_eq!(world.objects().await.len(), 1 + written);
    history::check(&world).await;
    // The services with an older reference hold the network.
    let leader = world.leader().await;
    world.settled().await;
    assert!(world.objects().await.contains(&"/networks/front".to_owned()));
    leader.resign().await;
}

#[tokio::test]
async fn a_mark_between_the_look_at_a_network_and_the_write_of_its_service_refuses_that() {
    let world = World::start().await;
    world.apply(&network("front")).await;
    let (stored, _) = world.store.etcd.get(b"/quorate/networks/front").await.unwrap();
    let mut marked = super::decode_network(&stored.unwrap().value).unwrap();
    marked.status.get_or_insert_default().delete_requested = Some(prost_types::Timestamp::default());

    let proxy = Proxy::in_front_of(&world.etcd.endpoints()[0]);
    proxy.set(Network::Delays(Duration::from_secs(1)));
    // Networks are written before services.
    let documents = network("first") + &service("web", "{networks: [front]}");
    let endpoints = format!("--etcd-endpoints={}", proxy.url());
    let args = ["apply", "-f", "-", &endpoints].map(OsStr::new);
    let applying = quorate_with(args, Some(&documents), &[]);
    let marking = async {
        eventually(SOON, "the first network is written", async || {
            match world.objects().await.len() > 1 {
                true => Ok(()),
                false => Err("it is not"),
            }
        })
        .await;
        // From here on only the command reads. It reads the network first, and writes two delays later.
        let reads = async || {
            world.etcd.members[0]
                .metric("etcd_mvcc_range_total")
                .await
                .unwrap()
        };
        let before = reads().await;
        eventually(SOON, "the network is looked at", async || {
            match reads().await > before {
                true => Ok(()),
                false => Err("it is not"),
            }
        })
        .await;
        world
            .put("/networks/front", prost::Message::encode_to_vec(&marked))
            .await
    };
    let (applied, _) = tokio::join!(applying, marking);
    assert_eq!(applied.stdout, "network/first created\n");
    let error = applied.expect_code(4);
    let expected = "service/web: refused by rule References: network front is marked for deletion";
    assert!(error.contains(expected), "{error}");
    world
        .expect_objects(&["/networks/first", "/networks/front"])
        .await;
    history::check(&world).await;
}

#[tokio::test]
async fn blockers_are_shown_while_something_is_marked() {
    let world = World::start().await;
    let documents = network("front") + &service("web", "{networks: [front]}") + &document("Node", "n1", "{}");
    world.apply(&documents).await;
    world
        .apply(&document("Task", "t1", "{service: web, node: n1}"))
        .await;
    world.task("web/t2", "", State::Shutdown).await;
    let report = "{apiVersion: quorate.dev/v1, kind: Task, metadata: {name: t1}, spec: {service: web}, status: {state: running}}";
    let reported = world
        .run_with(&["apply", "--subresource", "status", "-f", "-"], report)
        .await;
    assert_eq!(reported.expect_done(), "task/web/t1 configured\n");

    let table = world.run(&["get", "services"]).await.expect_done();
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..5], ["web", "front", "2", "no", "<none>"], "{table}");
    assert_eq!(
        world.mark("service/web").await,
        "service/web marked for deletion\n  service/web: held back by 2 objects: task web/t1 (running on n1) and 1 more\n"
    );
    assert_eq!(
        world.mark("network/front").await,
        "network/front marked for deletion\n  network/front: held back by service web\n"
    );
    let shown = world
        .run(&["get", "service", "web", "-o", "json"])
        .await
        .expect_done();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["status"]["deleting"], true);
    assert_eq!(
        shown["status"]["blockers"],
        serde_json::json!(["task web/t1 (running on n1)", "task web/t2 (shutdown)"])
    );
    let described = world.run(&["describe", "network", "front"]).await.expect_done();
    assert!(
        described.contains("Deleting:          yes, since ")
            && described.contains("Blockers:          service web\n"),
        "{described}"
    );
    // What `get` prints can be applied, and says that the object is being deleted.
    let yaml = world
        .run(&["get", "service", "web", "-o", "yaml"])
        .await
        .expect_done();
    let applied = world.run_with(&["apply", "-f", "-"], &yaml).await;
    assert!(
        applied
            .stderr
            .contains("warning: service/web is marked for deletion"),
        "{applied:?}"
    );
    assert_eq!(applied.expect_done(), "service/web unchanged\n");
}

/// `delete --wait`, and the lines that it prints meanwhile.
fn delete_and_wait(world: &World, id: &str) -> (Child, Lines<BufReader<ChildStderr>>) {
    let mut child = Command::new(binary())
        .args(["delete", id, "--wait", "--yes"])
        .arg(format!("--etcd-endpoints={}", world.etcd.endpoints_flag()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    (child, lines)
}

#[tokio::test]
async fn delete_waits_tells_what_holds_it_back_and_gives_up_in_time() {
    let world = World::start().await;
    world.apply(&service("web", "{}")).await;
    world.task("web/1", "", State::Running).await;
    world.task("web/2", "", State::Running).await;
    let leader = world.leader().await;
    let wait = [
        "delete",
        "service",
        "web",
        "--wait",
        "--timeout",
        "300ms",
        "--yes",
    ];
    let held = "not done after 300ms\n  service/web: held back by 2 objects: task web/1 (running) and 1 more";
    world.times_out_with(&wait, held).await;

    let (child, mut lines) = delete_and_wait(&world, "service/web");
    let mut next = async || timeout(SOON, lines.next_line()).await.unwrap().unwrap();
    assert_eq!(
        next().await.as_deref(),
        Some("waiting: service/web: held back by 2 objects: task web/1 (running) and 1 more")
    );
    world.remove("/tasks/web/1").await;
    assert_eq!(
        next().await.as_deref(),
        Some("waiting: service/web: held back by task web/2 (running)")
    );
    world.remove("/tasks/web/2").await;
    let output = timeout(SOON, child.wait_with_output()).await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "service/web is marked for deletion already\nservice/web deleted\n"
    );
    let gone = world.run(&["delete", "service", "web", "--wait", "--yes"]).await;
    assert!(gone.expect_code(3).contains("service/web: not found"));
    leader.resign().await;
}

#[tokio::test]
async fn a_wait_is_over_when_another_object_has_taken_the_name() {
    let mut world = World::start().await;
    world.apply(&service("web", "{}")).await;
    let (child, mut lines) = delete_and_wait(&world, "service/web");
    let first = timeout(SOON, lines.next_line()).await.unwrap().unwrap();
    assert_eq!(
        first.as_deref(),
        Some("waiting: service/web: nothing holds it back")
    );

    // The command sees neither the deletion nor the creation, only that another object exists now.
    let pid = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    world.etcd.members[0].kill().await.unwrap();
    world.etcd.members[0].start().await.unwrap();
    world.etcd.etcdctl(&["del", "/quorate/services/web"]);
    world.apply(&service("web", "{}")).await;
    world.etcd.compact();
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    let output = timeout(SOON, child.wait_with_output()).await.unwrap().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "service/web marked for deletion\nservice/web deleted\n"
    );
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(world.objects().await, ["/services/web"]);
}

#[tokio::test]
async fn faults_of_documents_are_reported_with_their_paths() {
    let world = World::start().await;
    for (documents, expected) in [
        (
            service("web", "{networks: [A, b, b], taskNetwork: []}"),
            &[
                "spec.networks[0]: \"A\" is not a name",
                "spec.networks[2]: occurs twice",
                "spec.taskNetwork: unknown field (did you mean taskNetworks?)",
            ][..],
        ),
        (
            document("Task", "t", "{node: n1}"),
            &["spec.service: missing: a task is addressed as SERVICE/NAME"],
        ),
        (
            document("Task", "t", "{service: web}") + "status: {state: runing}\n",
            &[
                "status.state: \"runing\" is not one of new,",
                "(did you mean running?)",
            ],
        ),
        (
            network("n").replace("{}", "{subnet: x}"),
            &["spec.subnet: unknown field"],
        ),
    ] {
        let documents = documents.replace("---\nstatus", "status");
        let error = world
            .run_with(&["apply", "-f", "-"], &documents)
            .await
            .expect_code(64);
        for expected in expected {
            assert!(error.contains(expected), "{error}");
        }
    }
    for (args, code, expected) in [
        (&["get", "task", "t"][..], 64, "expected SERVICE/NAME"),
        (&["get", "task", "web/t"], 3, "task/web/t not found"),
        (&["delete", "network", "n", "--timeout", "1s"], 64, "--wait"),
    ] {
        let error = world.run(args).await.expect_code(code);
        assert!(error.contains(expected), "{error}");
    }
}
