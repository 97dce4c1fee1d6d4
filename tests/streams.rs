//! A stdout or stderr that is full, closed or not read ends, blocks and panics nothing, and changes no exit code.

use std::fs::OpenOptions;
use std::io::{PipeReader, Write, pipe};
use std::process::Stdio;

use quorate_dev::{http, ports};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tokio::time::timeout;

use crate::support::etcd::TestEtcd;
use crate::support::metrics;
use crate::support::quorate::program;
use crate::support::wait::{SOON, eventually, grows};

/// What a pipe holds before a write to it waits (pipe(7)).
const PIPE_CAPACITY: usize = 64 * 1024;

/// A stream that takes nothing.
#[derive(Clone, Copy, Debug)]
enum Stream {
    /// Each write fails: no space is left.
    Full,
    /// Each write fails: the reader is gone.
    Closed,
    /// Each write waits: the pipe is full, and its reader reads nothing.
    Unread,
}

const STREAMS: [Stream; 3] = [Stream::Full, Stream::Closed, Stream::Unread];

impl Stream {
    /// The stream for a process, and the reader that has to stay.
    fn open(self) -> (Stdio, Option<PipeReader>) {
        if let Self::Full = self {
            let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
            return (full.into(), None);
        }
        let (reader, mut writer) = pipe().unwrap();
        if let Self::Closed = self {
            return (writer.into(), None);
        }
        writer.write_all(&[b'\n'; PIPE_CAPACITY]).unwrap();
        (writer.into(), Some(reader))
    }
}

fn start(etcd: &TestEtcd, args: &[&str], stdout: Stdio, stderr: Stdio) -> Child {
    program()
        .args(args)
        .arg(format!("--etcd-endpoints={}", etcd.endpoints_flag()))
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr)
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

fn signal(child: &Child, signal: Signal) {
    let id = Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    kill_process(id, signal).unwrap();
}

async fn exit_code(what: &str, child: &mut Child) -> i32 {
    let ended = timeout(SOON, child.wait()).await;
    let status = ended.unwrap_or_else(|_| panic!("{what}: not ended within {SOON:?}"));
    let status = status.unwrap();
    status.code().unwrap_or_else(|| panic!("{what}: {status}"))
}

#[tokio::test]
async fn a_replica_whose_log_is_not_taken_keeps_its_lead_and_gives_it_back_at_its_end() {
    let etcd = TestEtcd::start().await;
    for stream in STREAMS {
        let (stderr, _reader) = stream.open();
        let port = ports::free_port().unwrap();
        let listen = format!("--listen=127.0.0.1:{port}");
        let args = ["run", "--node-id=c1", "--no-kubernetes", &listen];
        let mut replica = start(&etcd, &args, Stdio::null(), stderr);
        eventually(SOON, &format!("{stream:?}: it leads"), async || {
            http::is_ok("/leaderz", http::get(port, "/leaderz").await)
        })
        .await;
        grows(&format!("{stream:?}: its lease is renewed"), async || {
            let page = http::get(port, "/metrics").await.unwrap();
            metrics::value(&page.body, "quorate_lease_margin_seconds")
        })
        .await;
        signal(&replica, Signal::TERM);
        assert_eq!(exit_code(&format!("{stream:?}"), &mut replica).await, 0);
        let left = etcd.keys("/quorate/kubernetes/reconciler/leader/");
        assert!(left.is_empty(), "{stream:?}: {left:?}");
    }
}

#[tokio::test]
async fn commands_whose_streams_take_nothing_end_in_time_with_their_exit_code() {
    let etcd = TestEtcd::start().await;
    for stream in STREAMS {
        for (args, code) in [
            (&["get", "network", "nope"][..], 3),
            (&["get", "nothing"], 64),
            (&["wait-ready", "--timeout=1s"], 2),
        ] {
            let (stdout, _out) = stream.open();
            let (stderr, _err) = stream.open();
            let mut child = start(&etcd, args, stdout, stderr);
            let what = format!("{stream:?}: {args:?}");
            assert_eq!(exit_code(&what, &mut child).await, code, "{what}");
        }
    }
}
