//! Commands as a page or a plan has them, as a person types them.

use std::path::Path;
use std::process::Output;

use tokio::process::Command;
use tokio::time::timeout;

use super::etcd::{ClientTls, TestEtcd};
use super::quorate::binary;
use super::wait::{SOON, eventually};

/// Runs a command as it stands in this directory, with `quorate` and the `etcdctl` of this etcd at hand, and returns what it printed.
/// Panics where it fails.
pub async fn typed(etcd: &TestEtcd, directory: &Path, line: &str) -> String {
    let mut shell = shell(etcd, directory);
    run(shell.args(["-c", line]), line).await
}

/// The same with what both programs need to reach this etcd in their environment.
pub async fn typed_on(etcd: &TestEtcd, directory: &Path, line: &str) -> String {
    let mut shell = shell(etcd, directory);
    shell.env("ETCDCTL_API", "3");
    for prefix in ["QUORATE_ETCD", "ETCDCTL"] {
        shell.env(format!("{prefix}_ENDPOINTS"), etcd.endpoints_flag());
        if let Some(ClientTls { ca, client, .. }) = &etcd.tls {
            shell
                .env(format!("{prefix}_CACERT"), ca)
                .env(format!("{prefix}_CERT"), &client.cert)
                .env(format!("{prefix}_KEY"), &client.key);
        }
    }
    run(shell.args(["-c", line]), line).await
}

fn shell(etcd: &TestEtcd, directory: &Path) -> Command {
    let programs = [binary(), etcd.version.program("etcdctl")];
    let folders = programs
        .iter()
        .filter_map(|program| program.parent().map(Path::to_owned));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(folders.chain(std::env::split_paths(&path))).unwrap();
    let mut shell = Command::new("sh");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("QUORATE_") {
            shell.env_remove(name);
        }
    }
    shell.env("PATH", path).current_dir(directory);
    shell
}

/// Runs it again where it says so itself: a member that has just become a voter can answer a read with what the store was before
/// (etcd before 3.5.28), which a command takes for a restore.
async fn run(shell: &mut Command, line: &str) -> String {
    let ended = eventually(SOON, line, async || {
        let ended = output(shell, line).await;
        match String::from_utf8_lossy(&ended.stderr).contains("Start it again") {
            true => Err(format!("{ended:?}")),
            false => Ok(ended),
        }
    })
    .await;
    assert!(ended.status.success(), "{line}: {ended:?}");
    String::from_utf8(ended.stdout).unwrap()
}

async fn output(shell: &mut Command, line: &str) -> Output {
    let ended = timeout(2 * SOON, shell.kill_on_drop(true).output()).await;
    ended
        .unwrap_or_else(|_| panic!("{line}: it does not end"))
        .unwrap()
}
