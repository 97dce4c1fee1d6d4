//! How many objects a command writes at once: as many as it has sent to etcd without an answer.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use crate::support::base::{Base, document};
use crate::support::proxy::{Network, Proxy};
use crate::support::quorate::program;
use crate::support::wait::{SOON, eventually, same};

/// Objects that are written at once.
const AT_ONCE: usize = 16;

/// Objects in all. With [`LATENCY`], they are written for more than six seconds: the network fails meanwhile, however slow the
/// machine is.
const MANY: usize = 1000;

/// Each piece arrives this much later.
const LATENCY: Duration = Duration::from_millis(50);

/// Runs a command that writes many networks, and loses the replies from the first one on. Then what is under way is written, and
/// nothing is said of it.
async fn expect_at_once(cluster: &Base, args: &[&str], stdin: &str) {
    let (networks, before) = (cluster.store.keys.networks(), cluster.etcd.revision());
    let written = async || {
        let stored = cluster.list(&networks).await.into_iter();
        stored.filter(|kv| kv.mod_revision.0 > before).count()
    };
    let proxy = Proxy::in_front_of(&cluster.etcd.endpoints()[0]);
    proxy.set(Network::Delays(LATENCY));
    let mut running = program()
        .args(args)
        .arg(format!("--etcd-endpoints={}", proxy.url()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut input = running.stdin.take().unwrap();
    input.write_all(stdin.as_bytes()).await.unwrap();
    drop(input);
    let mut said = BufReader::new(running.stdout.take().unwrap()).lines();
    eventually(SOON, "the first is written", async || match written().await {
        0 => Err("none"),
        _ => Ok(()),
    })
    .await;
    proxy.set(Network::LosesReplies);
    let mut lines = 0;
    let what = format!("{args:?}: so many are written without an answer");
    eventually(SOON, &what, async || {
        while let Ok(Ok(Some(_))) = timeout(LATENCY, said.next_line()).await {
            lines += 1;
        }
        same(written().await.saturating_sub(lines), AT_ONCE)
    })
    .await;
}

#[tokio::test]
async fn apply_and_delete_write_sixteen_objects_at_once() {
    let cluster = Base::start().await;
    let names: Vec<String> = (0..MANY).map(|number| format!("net-{number}")).collect();
    let documents: String = names.iter().map(|name| document("Network", name, "{}")).collect();
    expect_at_once(&cluster, &["apply", "-f", "-"], &documents).await;
    cluster.apply(&documents).await;
    let delete = ["delete", "network", "--yes"].into_iter();
    let delete: Vec<&str> = delete.chain(names.iter().map(String::as_str)).collect();
    expect_at_once(&cluster, &delete, "").await;
}
