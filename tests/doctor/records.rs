//! What is wrong with what etcd holds, and with what its records lead to.

use std::net::TcpListener;
use std::time::Duration;

use prost::Message;
use prost_types::Timestamp;
use quorate::etcd::Txn;
use quorate::proto::node_certificate::State;
use quorate::proto::volume_spec::Driver;
use quorate::proto::{
    CertificateRequest, Join, Metadata, NodeCertificate, Tombstone, Volume, VolumeSpec, VolumeStatus,
};
use quorate::store::object::time;

use super::{Call, FAULTS, WARNINGS, led, sound_etcd};
use crate::support::base::{Base, document};
use crate::support::csi::{DRIVER, TestPlugin};
use crate::support::quorate::{TestReplica, quorate, quorate_with};

/// A sound set-up: an etcd without a known fault, and a leader.
struct Site {
    base: Base,
    call: Call,
    replica: TestReplica,
}

impl Site {
    async fn sound() -> Self {
        let etcd = sound_etcd(1, &[]).await;
        let replica = led(&etcd).await;
        let call = Call::on(&etcd);
        let site = Self {
            base: Base::on(etcd).await,
            call,
            replica,
        };
        site.call.finds_nothing().await;
        site
    }

    fn key(&self, rest: &str) -> Vec<u8> {
        format!("/quorate/{rest}").into_bytes()
    }

    async fn delete(&self, rest: &str) {
        self.base.commit(Txn::new().delete(&self.key(rest))).await;
    }

    /// Puts a value that is found first as this, and deletes it again.
    async fn finds_put(&self, rest: &str, value: Vec<u8>, reason: &str, subject: &str, code: i32) {
        self.base.put(&self.key(rest), value).await;
        let said = self.call.names_first(reason, subject).await;
        assert_eq!(said.code, code, "{said:?}");
        self.delete(rest).await;
    }
}

fn ago(seconds: i64) -> Option<Timestamp> {
    Some(time::to_proto(
        jiff::Timestamp::now() - jiff::SignedDuration::from_secs(seconds),
    ))
}

#[tokio::test]
async fn records_that_cannot_be_read_and_keys_without_a_lease_are_named_and_a_sound_set_up_is_silent() {
    let site = Site::sound().await;
    let garbage = || b"\xff\xff".to_vec();
    for (rest, subject) in [
        ("nodes/n1", "node/n1"),
        ("volumes/v1", "volume/v1"),
        ("services/web", "service/web"),
        ("joins/n1", "/quorate/joins/n1"),
        ("identity/etcd/u1", "/quorate/identity/etcd/u1"),
        ("identity/crl", "/quorate/identity/crl"),
    ] {
        site.finds_put(rest, garbage(), "MalformedRecord", subject, FAULTS)
            .await;
    }
    // What a plain put leaves behind, of a replica that is dead.
    let registration = site.base.read(&site.key("nodes/r1/release")).await.unwrap().value;
    let candidate = "kubernetes/reconciler/leader/ffff";
    let without_lease = "KeyWithoutLease";
    site.finds_put(
        "nodes/r9/release",
        registration,
        without_lease,
        "nodes/r9/release",
        FAULTS,
    )
    .await;
    site.finds_put("alive/n1", Vec::new(), without_lease, "/quorate/alive/n1", FAULTS)
        .await;
    site.finds_put(candidate, b"r9".to_vec(), without_lease, candidate, FAULTS)
        .await;
    let tombstone = Tombstone {
        metadata: Some(Metadata {
            name: "u1".to_owned(),
            uid: "u1".to_owned(),
            ..Metadata::default()
        }),
        volume: Some(Volume {
            metadata: Some(Metadata {
                name: "data".to_owned(),
                ..Metadata::default()
            }),
            spec: Some(VolumeSpec {
                driver: Some(Driver {
                    name: "gone.csi.dev".to_owned(),
                    ..Driver::default()
                }),
                ..VolumeSpec::default()
            }),
            status: Some(VolumeStatus {
                volume_id: "v-1".to_owned(),
                ..VolumeStatus::default()
            }),
        }),
        forced_at: ago(3600),
        ..Tombstone::default()
    };
    let value = tombstone.encode_to_vec();
    site.finds_put("tombstones/u1", value, "TombstoneLeft", "tombstone/u1", WARNINGS)
        .await;
    site.call.finds_nothing().await;
}

#[tokio::test]
async fn certificates_that_end_and_authorities_that_cannot_sign_are_named() {
    let site = Site::sound().await;
    let certificate = |state: State, asked: i64, end: i64| {
        let record = NodeCertificate {
            node: "n1".to_owned(),
            request: Some(CertificateRequest {
                at: ago(asked),
                ..CertificateRequest::default()
            }),
            state: state.into(),
            not_after: ago(-end),
            ..NodeCertificate::default()
        };
        record.encode_to_vec()
    };
    let (key, subject) = ("identity/certificates/u1", "certificate of node n1");
    let ended = certificate(State::Issued, 7200, -60);
    site.finds_put(key, ended, "CertificateEnds", subject, FAULTS)
        .await;
    let ends = certificate(State::Issued, 7200, 300);
    site.finds_put(key, ends, "CertificateEnds", subject, WARNINGS)
        .await;
    let waits = certificate(State::Pending, 3600, 7200);
    site.finds_put(key, waits, "CertificateWaits", subject, WARNINGS)
        .await;
    let directory = site.base.etcd.directory().join("ca");
    let ca_dir = site.call.with(format!("--ca-dir={}", directory.display()));
    let missing = ca_dir
        .names_first("AuthorityUnusable", "current/etcd-ca.crt")
        .await;
    assert_eq!(missing.code, FAULTS);
    let made = quorate(["ca", "init", "-o", directory.to_str().unwrap()]).await;
    made.expect_done();
    let sound = ca_dir.finds_nothing().await;
    let skipped = sound.document["skipped"].to_string();
    assert!(!skipped.contains("authorities"), "{skipped}");
}

#[tokio::test]
async fn plugins_that_cannot_be_called_are_named_and_one_that_hangs_costs_its_limit_alone() {
    let site = Site::sound().await;
    let plugin = TestPlugin::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sound = plugin.endpoint().to_string();
    let register = async |name: &str, endpoint: &str| {
        let spec = format!("{{endpoint: \"{endpoint}\"}}");
        site.base.apply(&document("Plugin", name, &spec)).await;
    };
    register(DRIVER, &sound).await;
    site.call.finds_nothing().await;
    let nowhere = plugin.directory().join("none.sock");
    let hanging = format!("http://{}", listener.local_addr().unwrap());
    for (name, endpoint, word) in [
        (
            "gone.csi.dev",
            format!("unix://{}", nowhere.display()),
            "PluginUnreachable",
        ),
        ("other.csi.dev", sound.clone(), "PluginIsAnother"),
        ("hangs.csi.dev", hanging, "PluginUnreachable"),
    ] {
        register(name, &endpoint).await;
        let said = site
            .call
            .names_first("PluginNotReady", &format!("plugin/{name}"))
            .await;
        assert!(said.what().starts_with(word), "{said:?}");
        assert_eq!(said.code, FAULTS);
        assert!(said.took < Duration::from_secs(15), "{:?}", said.took);
        site.base
            .run(&["delete", "plugin", name, "--yes"])
            .await
            .expect_done();
    }
    site.call.finds_nothing().await;
}

#[tokio::test]
async fn joins_without_an_end_and_an_election_without_a_leader_are_named_with_their_cause() {
    let mut site = Site::sound().await;
    site.base
        .apply(&document("Node", "n9", "{desiredRole: worker}"))
        .await;
    let promote = ["promote", "n9", "--wait", "--timeout=60s"];
    site.base.run(&promote).await.expect_done();
    let pause = ["pause", "roles", "--reason=a test"];
    site.base.run(&pause).await.expect_done();
    let paused = site.call.names_first("RolesPaused", "roles").await;
    assert_eq!(paused.code, 0, "a note: {paused:?}");
    // A host that no name service knows, so that the leader never adds it.
    let join = [
        "join",
        "n9",
        "--peer-url=http://nowhere.invalid:2380",
        "--timeout=1s",
    ];
    let waits = site.base.run(&join).await;
    assert_ne!(waits.code, 0, "{waits:?}");
    let key = site.key("joins/n9");
    let stored = site.base.read(&key).await.unwrap();
    let mut join = Join::decode(&*stored.value).unwrap();
    join.request.as_mut().unwrap().requested_at = ago(7200);
    site.base.put(&key, join.encode_to_vec()).await;
    let paused = site.call.names_first("RolesPaused", "roles").await;
    assert!(paused.consequences().contains("join of node n9"), "{paused:?}");
    assert_eq!(paused.code, WARNINGS);
    site.delete("joins/n9").await;
    site.delete("nodes/n9").await;
    site.base.run(&["resume", "roles"]).await.expect_done();
    site.call.finds_nothing().await;

    let elsewhere = site.call.with("--prefix=/elsewhere");
    let none = elsewhere.names_first("NoLeader", "election").await;
    assert!(none.what().contains("none is registered"), "{none:?}");
    site.replica.stop().await.unwrap();
    let stopped = site.call.names_first("NoLeader", "election").await;
    assert_eq!(stopped.code, FAULTS);
}

#[tokio::test]
async fn it_works_by_the_variables_of_a_pod_and_says_what_it_did_not_look_at() {
    let site = Site::sound().await;
    let endpoints = site.base.etcd.endpoints_flag();
    let home = site.base.etcd.directory().display().to_string();
    let variables = [
        ("QUORATE_ETCD_ENDPOINTS", endpoints.as_str()),
        ("QUORATE_NODE_ID", "r1"),
        ("QUORATE_LISTEN", "0.0.0.0:8080"),
        ("HOME", home.as_str()),
    ];
    let no_kubernetes = [&variables[..], &[("QUORATE_NO_KUBERNETES", "true")]].concat();
    let said = quorate_with(["doctor"], None, &no_kubernetes).await.expect_done();
    assert!(said.starts_with("Nothing found in "), "{said}");
    assert!(
        said.contains("Not looked at: Kubernetes (--no-kubernetes)"),
        "{said}"
    );
    if std::env::var_os("KUBECONFIG").is_none() {
        let said = quorate_with(["doctor"], None, &variables).await.expect_done();
        assert!(
            said.contains("Not looked at: Kubernetes (no Kubernetes API server is configured"),
            "{said}"
        );
    }
}
