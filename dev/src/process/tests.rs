use super::*;
use std::path::Path;

fn shell(directory: &Path, script: &str) -> Program {
    Program {
        name: "script".to_owned(),
        path: PathBuf::from("/bin/sh"),
        args: vec!["-c".into(), script.into()],
        env: vec![("GREETING".to_owned(), "hello".into())],
        hidden_env: "CARGO",
        log: directory.join("script.log"),
    }
}

fn exists(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[tokio::test]
async fn a_process_that_handles_sigterm_is_stopped_by_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut process = shell(
        directory.path(),
        "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done",
    )
    .start()
    .unwrap();
    while !process.output().unwrap().contains("ready") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let status = process.stop(Duration::from_secs(10)).await.unwrap();
    assert_eq!(status.code(), Some(7));
}

#[tokio::test]
async fn a_process_that_ignores_sigterm_is_killed_after_the_limit() {
    let directory = tempfile::tempdir().unwrap();
    let mut process = shell(
        directory.path(),
        "trap '' TERM; echo ready; while :; do sleep 0.01; done",
    )
    .start()
    .unwrap();
    while !process.output().unwrap().contains("ready") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let status = process.stop(Duration::from_millis(100)).await.unwrap();
    assert!(was_killed(status), "{status}");
}

#[tokio::test]
async fn a_dropped_process_is_gone_with_its_children_and_leaves_no_zombie() {
    let directory = tempfile::tempdir().unwrap();
    let process = shell(directory.path(), "sleep 600 & echo child $!; wait")
        .start()
        .unwrap();
    let pid = process.pid();
    let grandchild = loop {
        let output = process.output().unwrap();
        if let Some(rest) = output.strip_prefix("child ")
            && rest.ends_with('\n')
        {
            break rest.trim().parse::<i32>().unwrap();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(exists(pid) && exists(grandchild));
    drop(process);
    assert!(!exists(pid), "a zombie would still be listed");
    // The grandchild got SIGKILL, too. It dies when it is next scheduled, and is a zombie until its new parent reaps it.
    let limit = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        let state = std::fs::read_to_string(format!("/proc/{grandchild}/stat")).unwrap_or_default();
        if state.is_empty() || state.contains(") Z") {
            break;
        }
        assert!(std::time::Instant::now() < limit, "it still runs: {state}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_process_that_ends_while_it_is_waited_for_is_reported_with_its_last_lines() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("script.log"), "from an earlier run\n").unwrap();
    let mut process = shell(directory.path(), "echo $GREETING; exit 3").start().unwrap();
    let error = process
        .wait_until(Duration::from_secs(30), || async {
            Err("nothing yet".to_owned())
        })
        .await
        .unwrap_err();
    let message = error.to_string();
    assert!(message.contains("exit status: 3"), "{message}");
    assert!(message.contains("    hello"), "{message}");
    assert!(!message.contains("earlier run"), "{message}");
}

#[tokio::test]
async fn a_process_that_does_not_serve_in_time_is_reported_with_the_last_answer() {
    let directory = tempfile::tempdir().unwrap();
    let mut process = shell(directory.path(), "sleep 600").start().unwrap();
    let error = process
        .wait_until(Duration::from_millis(60), || async { Err("503".to_owned()) })
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::NotServing { seen, .. } if seen == "503"),
        "{error}"
    );
}

#[tokio::test]
async fn hidden_variables_do_not_reach_the_process() {
    // Cargo sets CARGO_MANIFEST_DIR for every test.
    assert!(env::var_os("CARGO_MANIFEST_DIR").is_some());
    let directory = tempfile::tempdir().unwrap();
    let mut process = shell(directory.path(), "echo \"<$CARGO_MANIFEST_DIR>\"")
        .start()
        .unwrap();
    process.exited().await.unwrap();
    assert_eq!(process.output().unwrap(), "<>\n");
}
