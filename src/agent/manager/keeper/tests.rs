use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::agent::calls::Calls;
use crate::agent::manager::plan::OwnMember;
use crate::agent::manager::{Launch, Program};
use crate::agent::status::Hindrance;
use crate::etcd::{ClusterId, MemberId};
use crate::identity::{Authority, AuthorityKind};
use crate::metrics::Metrics;

const OWN: OwnMember = OwnMember {
    cluster: ClusterId(0xc0_ffee),
    id: MemberId(7),
};

/// That of a node without a session, which has noted its member.
fn keeper(home: &Path, launch: Launch, stage: Stage) -> Keeper {
    let settings = Settings {
        data: home.join("etcd"),
        launch,
        ..Settings::default()
    };
    let wiring = Wiring {
        node: "n2".parse().unwrap(),
        calls: Calls {
            links: watch::Sender::new(None).subscribe(),
        },
        identities: watch::Sender::new(None).subscribe(),
        views: watch::Sender::new(None).subscribe(),
        session: watch::Sender::new(None).subscribe(),
        report: watch::Sender::new(None),
        hindrance: Hindrance::default(),
        removal: watch::Sender::new(false).subscribe(),
        metrics: Metrics::new(""),
    };
    let record = Record {
        noted: Noted { own: OWN, stage },
        name: "n2".to_owned(),
        initial_cluster: Some("n2=https://10.0.0.2:2380".to_owned()),
        peer_urls: Vec::new(),
        client_urls: Vec::new(),
        restarted: 0,
    };
    let left = Left {
        notes: Notes::beside(&settings.data),
        record: Some(record),
        files: None,
    };
    Keeper::new(settings, wiring, left)
}

/// A disk that is full, or an agent that is killed in between, must not leave a unit that can start on an empty directory.
#[test]
fn a_unit_has_no_list_of_members_any_more_once_it_is_noted_that_its_member_has_started() {
    let home = tempfile::tempdir().unwrap();
    let mut keeper = keeper(home.path(), Launch::Unit("etcd".to_owned()), Stage::New);
    let record = keeper.record.clone().unwrap();
    keeper.etcd.configure(&keeper.variables(&record)).unwrap();
    let has_list = || {
        let settings = fs::read_to_string(home.path().join("etcd.env")).unwrap();
        settings.contains("ETCD_INITIAL_CLUSTER=")
    };
    assert!(has_list());
    // No file takes the place of a directory.
    let note = home.path().join("etcd.json");
    fs::create_dir(&note).unwrap();
    let started = Noted {
        own: OWN,
        stage: Stage::Started,
    };
    keeper.note(started).unwrap_err();
    assert!(!has_list());
    assert_eq!(keeper.record, Some(record), "it is noted later");
    fs::remove_dir(&note).unwrap();
    keeper.note(started).unwrap();
    assert_eq!(keeper.record.unwrap().noted, started);
}

/// INV-13. A session may be with another replica than the one before, which is behind.
#[test]
fn a_list_of_revoked_certificates_is_replaced_by_a_later_one_alone() {
    let home = tempfile::tempdir().unwrap();
    let mut keeper = keeper(home.path(), Launch::Unit("etcd".to_owned()), Stage::Started);
    assert!(!keeper.shows_later_list(None), "none is shown");
    let now = "2026-03-01T12:00:00Z".parse().unwrap();
    let (authority, _) = Authority::create(AuthorityKind::Etcd, now).unwrap();
    let list = |number| crl::sign(&authority, Vec::new(), number, now).unwrap().crl;
    keeper.list = list(7);
    for (held, is_replaced) in [
        (None, true),
        (Some(list(6)), true),
        (Some(b"torn".to_vec()), true),
        (Some(keeper.list.clone()), false),
        (Some(list(8)), false),
    ] {
        assert_eq!(keeper.shows_later_list(held.as_deref()), is_replaced, "{held:?}");
    }
    keeper.list = b"torn".to_vec();
    assert!(
        !keeper.shows_later_list(None),
        "with it etcd would refuse everyone"
    );
}

/// A keeper whose etcd, a program that sleeps, runs as the member that is noted.
async fn running(home: &Path) -> Keeper {
    let path = home.join("etcd.sh");
    fs::write(&path, "#!/bin/sh\nexec sleep 1000\n").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    let program = Program {
        path,
        ends_with_agent: false,
    };
    let mut keeper = keeper(home, Launch::Child(program), Stage::Started);
    loop {
        match keeper.etcd.start(&[]).await {
            // Another test forks with the script open for writing.
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            started => break started.unwrap(),
        }
    }
    keeper
}

/// INV-5. Of two voters, the leader needs both to take one out, and it may be away, or paused.
#[tokio::test]
async fn etcd_of_a_removed_node_runs_on_where_its_member_is_in_the_cluster_and_stops_where_it_is_out() {
    let home = tempfile::tempdir().unwrap();
    let mut keeper = running(home.path()).await;
    keeper.settings.times.evicted_within = Duration::from_millis(50);
    keeper.end().await;
    assert_eq!(keeper.etcd.observe().await, Process::Running);
    keeper.shown.removed.push(OWN.id);
    keeper.end().await;
    assert_eq!(keeper.etcd.observe().await, Process::Stopped);
}

/// An etcd that answers after this long that it is healthy.
async fn serve_health(listener: TcpListener, delay: Duration) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        sleep(delay).await;
        // All of it: what is left unread would have the answer thrown away.
        let _ = stream.read(&mut [0; 512]).await;
        let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").await;
    }
}

#[tokio::test]
async fn events_that_come_more_often_than_looks_at_the_health_of_etcd_put_no_look_off() {
    let home = tempfile::tempdir().unwrap();
    let mut keeper = keeper(home.path(), Launch::Unit("etcd".to_owned()), Stage::Started);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    keeper.settings.metrics = listener.local_addr().unwrap();
    keeper.settings.times.until_healthy = Duration::from_millis(200);
    keeper.runs_since = Some(clock::now());
    let identities = watch::Sender::new(None);
    keeper.wiring.identities = identities.subscribe();
    let events = async {
        loop {
            identities.send_replace(None);
            sleep(Duration::from_millis(20)).await;
        }
    };
    let looked = async {
        while !keeper.is_healthy {
            keeper.wait().await;
        }
    };
    tokio::select! {
        () = events => {}
        () = serve_health(listener, Duration::from_millis(100)) => {}
        looked = timeout(Duration::from_secs(5), looked) => looked.expect("its health is looked at"),
    }
    assert!(keeper.is_healthy);
}

#[tokio::test]
async fn a_look_at_an_etcd_that_has_ended_meanwhile_says_nothing_of_the_next_one() {
    let home = tempfile::tempdir().unwrap();
    let mut keeper = keeper(home.path(), Launch::Unit("etcd".to_owned()), Stage::Started);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    keeper.settings.metrics = listener.local_addr().unwrap();
    keeper.settings.times.until_healthy = Duration::ZERO;
    keeper.settings.times.look_every = Duration::from_millis(400);
    keeper.runs_since = Some(clock::now());
    let watching = async {
        let _ = timeout(Duration::from_millis(50), keeper.wait()).await;
        keeper.take_end("killed");
        keeper.wait().await;
    };
    tokio::select! {
        () = serve_health(listener, Duration::from_millis(200)) => {}
        () = watching => {}
    }
    assert!(!keeper.is_healthy);
}
