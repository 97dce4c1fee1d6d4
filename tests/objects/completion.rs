//! Names of objects in the completion script of bash.

use tokio::process::Command;

use crate::support::base::{Base, document};
use crate::support::quorate::binary;
use crate::support::wait::{SOON, eventually, same};

/// Calls the function of the script as bash does for the last of these words.
const COMPLETE: &str = r#"
source <("$0" completions bash)
COMP_WORDS=("$0" "$@")
COMP_CWORD=$#
_quorate_named "$0" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;

async fn completed(endpoints: &str, words: &[&str]) -> Vec<String> {
    let ended = Command::new("bash")
        .args(["--norc", "-c", COMPLETE])
        .arg(binary())
        .args(words)
        .env("QUORATE_ETCD_ENDPOINTS", endpoints)
        .env("QUORATE_PREFIX", "/quorate")
        .output()
        .await
        .unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.success() && said.is_empty(), "{said}");
    let shown = String::from_utf8(ended.stdout).unwrap();
    shown.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn bash_completes_the_names_of_objects() {
    let cluster = Base::start().await;
    let networks = ["back", "front", "free"].map(|name| document("Network", name, "{}"));
    cluster.apply(&networks.concat()).await;
    // No name, and a command to a shell that expands it.
    let key = [
        &cluster.store.keys.network(&"front".parse().unwrap())[..],
        b"$(exit 1)",
    ]
    .concat();
    cluster.put(&key, "").await;
    let endpoints = cluster.etcd.endpoints_flag();
    for (words, names) in [
        (&["get", "networks", "fr"][..], &["free", "front"][..]),
        (&["describe", "net/b"], &["net/back"]),
        (&["delete", "network", "back", "fro"], &["front"]),
    ] {
        // On a busy machine etcd may not answer within the second that the script waits.
        eventually(SOON, "the names", async || {
            let mut shown = completed(&endpoints, words).await;
            shown.sort();
            same(shown, names.iter().map(ToString::to_string).collect())
        })
        .await;
    }
}

#[tokio::test]
async fn without_etcd_bash_completes_what_the_program_knows_by_itself_and_says_nothing() {
    let shown = completed("http://127.0.0.1:1", &["get", "net"]).await;
    assert!(shown.contains(&"networks".to_owned()), "{shown:?}");
    completed("http://127.0.0.1:1", &["get", "networks", "f"]).await;
}
