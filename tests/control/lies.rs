//! What a worker says that is not so, with a gate, a leader and a plugin at work.

use quorate::gate::status::Status;
use quorate::proto::{ConfirmExpandedRequest, Publication};
use tonic::Code;

use super::site::{Client, Site, confirm_unpublished, leads, report};
use crate::support::csi::{DRIVER, TestPlugin};
use crate::support::kubernetes::Kubernetes;
use crate::support::quorate::{Launch, TestReplica, status_json};
use crate::support::wait::{SOON, eventually, same};
use crate::upgrade::bundles::Release;

/// A cluster whose reconciler writes its status, with a plugin.
struct Gated {
    kubernetes: Kubernetes,
    plugin: TestPlugin,
    site: Site,
}

/// What no worker may move.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    status: String,
    /// The leader, as `quorate status` and the status say.
    leaders: [String; 2],
    /// The exit codes of `wait-ready` for a release that is too old, for the present one, and for one that needs a newer reconciler.
    admitted: [i32; 3],
    publication: Publication,
    /// Calls at the plugin that take a volume from a node or give it to one.
    calls: usize,
}

impl Gated {
    async fn start() -> Self {
        Self {
            kubernetes: Kubernetes::start().await,
            plugin: TestPlugin::start().await,
            site: Site::start().await,
        }
    }

    fn launch(&self, release: &Release) -> Launch {
        let launch = self.site.launch().kubeconfig(self.kubernetes.kubeconfig());
        launch
            .bundle(release.bundle())
            .flag("--settle-ms=200")
            .flag("--pass-interval-ms=500")
            .flag("--lease-ttl=30")
    }

    async fn status(&self) -> String {
        let stored = self.site.read(&self.site.store.keys.status()).await;
        let status = stored.and_then(|kv| Status::decode(&kv.value).ok());
        status.map_or("none".to_owned(), |status| status.to_string())
    }

    async fn done(&self, release: &Release) {
        eventually(SOON, "the state is reconciled", async || {
            same(self.status().await, release.done())
        })
        .await;
    }

    /// What there is to see, after the leader has looked twice more.
    async fn seen(&self, leader: &TestReplica) -> Seen {
        let series = "quorate_reconcile_passes_total";
        let before = leader.metric(series).await;
        eventually(SOON, "two passes", async || match leader.metric(series).await {
            now if now >= before + 2.0 => Ok(()),
            now => Err(now),
        })
        .await;
        let shown = self.site.run(&["status"]).await.expect_done();
        let line = shown.lines().find(|line| line.starts_with("Leader:"));
        let recorded = status_json(&self.site.etcd, "/quorate").unwrap();
        let admitted = [
            self.admits("0.0.1", "0.0.1").await,
            self.admits("1.1.0", "1.0.0").await,
            self.admits("99.0.0", "99.0.0").await,
        ];
        let calls = ["ControllerPublishVolume", "ControllerUnpublishVolume"];
        let calls = calls.map(|method| self.plugin.calls_of(method).len());
        Seen {
            status: self.status().await,
            leaders: [
                line.unwrap_or_default().to_owned(),
                recorded["leader"].to_string(),
            ],
            admitted,
            publication: self.site.publication("data", "n2").await.unwrap(),
            calls: calls.iter().sum(),
        }
    }

    /// The exit code of `wait-ready`, which looks once.
    async fn admits(&self, release: &str, reconciler: &str) -> i32 {
        let (release, reconciler) = (
            format!("--release={release}"),
            format!("--min-reconciler-release={reconciler}"),
        );
        let args = ["wait-ready", &release, &reconciler, "--timeout=0s"];
        self.site.run(&args).await.code
    }

    /// Says what is not so: of itself, and of the volume that is published to `n2`. The leader notices none of it.
    async fn lie(&self, liar: &mut Client, leader: &TestReplica) {
        let before = self.seen(leader).await;
        let publication_uid = before.publication.metadata.clone().unwrap().uid;
        for major in [99, 0] {
            report(liar, major, &[("no.such.plugin", "csi-n2")])
                .await
                .unwrap();
            let taken = report(liar, major, &[(DRIVER, "csi-n2")]).await.unwrap_err();
            assert_eq!(taken.code(), Code::AlreadyExists, "{taken}");
            let refused = confirm_unpublished(liar, &publication_uid).await.unwrap_err();
            assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
            let expanded = ConfirmExpandedRequest {
                volume: "data".to_owned(),
                publication_uid: publication_uid.clone(),
                capacity_bytes: 1 << 40,
            };
            let refused = liar.confirm_expanded(expanded).await.unwrap_err();
            assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
            assert_eq!(self.seen(leader).await, before, "after release {major}.0.1");
        }
        assert!(leader.leads().await);
        for series in ["quorate_gate_blocked", "quorate_election_yields"] {
            assert_eq!(leader.metric(series).await, 0.0, "{series}");
        }
    }
}

/// INV-4, INV-6, INV-13.
#[tokio::test]
async fn a_worker_that_lies_moves_neither_the_gate_nor_the_leader_nor_the_volume_of_another_one() {
    let gated = Gated::start().await;
    let (first, second) = (
        Release::of("shop", "1.0.0", "1.0.0", "1.0.0"),
        Release::of("shop", "1.1.0", "1.0.0", "1.1.0"),
    );
    let mut c1 = gated.launch(&first).start("c1");
    leads(&c1).await;
    gated.done(&first).await;
    let site = &gated.site;
    let token = site.token(&["--role", "worker"]).await;
    let mut client = site.client(&mut c1).await;
    let [liar, other] = [
        site.member(&mut client, "n1", &token).await,
        site.member(&mut client, "n2", &token).await,
    ];
    let mut own = site.client_of(&mut c1, &other).await;
    report(&mut own, 1, &[(DRIVER, "csi-n2")]).await.unwrap();
    site.publish(&gated.plugin, "n2").await;
    let mut lies = site.client_of(&mut c1, &liar).await;
    gated.lie(&mut lies, &c1).await;

    // The next release excludes those below 1.1.0. It waits for the replica of 1.0.0, and not for the worker that says 0.0.1.
    let mut c2 = gated.launch(&second).start("c2");
    leads(&c2).await;
    c1.stop().await.unwrap();
    gated.done(&second).await;
    site.run(&["unpublish", "data", "n2"]).await.expect_done();
    site.expect_state("data", "n2", "pendingNodeUnpublish").await;
    let mut lies = site.client_of(&mut c2, &liar).await;
    gated.lie(&mut lies, &c2).await;
    let seen = gated.seen(&c2).await;
    assert_eq!(seen.admitted, [2, 0, 2]);

    // What the node itself confirms counts.
    let mut own = site.client_of(&mut c2, &other).await;
    let uid = seen.publication.metadata.unwrap().uid;
    confirm_unpublished(&mut own, &uid).await.unwrap();
    eventually(SOON, "the volume is unpublished", async || {
        same(gated.plugin.calls_of("ControllerUnpublishVolume").len(), 1)
    })
    .await;
}
