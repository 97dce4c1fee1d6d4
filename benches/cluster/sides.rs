//! What puts the objects of a bundle in place, side by side: Quorate, kubectl, raw requests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use etcd_client::WatchStream;
use futures::StreamExt as _;
use futures::stream;
use http::Request;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use quorate_dev::workspace::programs;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use super::measure::Samples;
use super::objects::{self, COUNT};
use super::servers::{EtcdServer, Kubernetes, LIMIT, TestReplica, raw_client, wait_for};

const DRIFTS: usize = 20;

/// Steady passes that are measured.
pub const STEADY_PASSES: usize = 20;

/// Raw requests under way at once: as many as a pass has.
pub const PARALLEL: usize = 8;

/// Users of the kube-apiserver: its audit log shows who made which request.
pub const QUORATE: &str = "quorate";
pub const KUBECTL: &str = "kubectl";
pub const RAW: &str = "raw";

/// Has the server log the requests of these users, and no others.
pub fn audit_flags(directory: &Path) -> Result<Vec<String>> {
    let policy = directory.join("audit-policy.json");
    let rules = json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "users": [QUORATE, KUBECTL, RAW]}, {"level": "None"}],
    });
    std::fs::write(&policy, rules.to_string())?;
    Ok(vec![
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", audit_log(directory).display()),
    ])
}

fn audit_log(directory: &Path) -> PathBuf {
    directory.join("audit.log")
}

/// What applies the objects, each with its own user.
pub struct Sides {
    directory: PathBuf,
    etcd: String,
    pub raw: kube::Client,
    pub quorate_kubeconfig: PathBuf,
    kubectl_kubeconfig: PathBuf,
}

/// What passes cost.
pub struct Cost {
    /// Seconds from the start of the replica to status DONE; 0 where the status was DONE before.
    pub whole: f64,
    /// Seconds of a pass.
    pub pass: f64,
    /// By verb; of steady passes, per pass.
    pub requests: BTreeMap<String, f64>,
}

impl Sides {
    pub async fn prepare(kubernetes: &Kubernetes, etcd: &EtcdServer) -> Result<Self> {
        // The first call builds the program: not within what is measured.
        programs()?;
        let sides = Self {
            directory: kubernetes.directory().to_owned(),
            etcd: etcd.endpoint(),
            raw: client_of(&kubernetes.kubeconfig(RAW)?).await?,
            quorate_kubeconfig: kubernetes.kubeconfig(QUORATE)?,
            kubectl_kubeconfig: kubernetes.kubeconfig(KUBECTL)?,
        };
        // This fills kubectl's discovery cache, as in daily use.
        let directory = sides.write_manifests("warm-up", &objects::generate("warm-up")[..1])?;
        sides.run_kubectl(&directory).await?;
        Ok(sides)
    }

    /// Writes the manifests to a directory, which becomes a bundle with a `bundle.yaml`.
    fn write_manifests(&self, name: &str, objects: &[Value]) -> Result<PathBuf> {
        let directory = self.directory.join(name);
        std::fs::create_dir_all(&directory)?;
        let manifests: String = objects
            .iter()
            .map(|object| format!("---\n{object:#}\n"))
            .collect();
        std::fs::write(directory.join("manifests.yaml"), manifests)?;
        Ok(directory)
    }

    /// Applies the objects with kubectl. Returns the seconds of the whole command.
    pub async fn kubectl(&self, round: usize) -> Result<f64> {
        let name = format!("kubectl-{round}");
        let directory = self.write_manifests(&name, &objects::generate(&name))?;
        let begun = Instant::now();
        self.run_kubectl(&directory).await?;
        Ok(begun.elapsed().as_secs_f64())
    }

    async fn run_kubectl(&self, directory: &Path) -> Result<()> {
        let output = Command::new("kubectl")
            // Its cache is there.
            .env("HOME", &self.directory)
            .arg("--kubeconfig")
            .arg(&self.kubectl_kubeconfig)
            .args(["apply", "--server-side", "-f"])
            .arg(directory)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .context("kubectl")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl: {}: {said}", output.status);
        Ok(())
    }

    /// Applies the objects with raw requests. Returns the seconds of all of them.
    pub async fn raw(&self, round: usize) -> Result<f64> {
        let objects = objects::generate(&format!("raw-{round}"));
        let requests: Vec<Request<Vec<u8>>> = objects.iter().map(apply_request).collect::<Result<_>>()?;
        let namespaces = objects
            .iter()
            .filter(|object| object["kind"] == "Namespace")
            .count();
        let begun = Instant::now();
        let mut requests = requests.into_iter();
        // An object in a namespace needs the namespace.
        for together in [
            requests.by_ref().take(namespaces).collect(),
            requests.collect::<Vec<_>>(),
        ] {
            let mut answers = stream::iter(together)
                .map(|request| self.raw.request_text(request))
                .buffer_unordered(PARALLEL);
            while let Some(answer) = answers.next().await {
                answer?;
            }
        }
        Ok(begun.elapsed().as_secs_f64())
    }

    fn start_quorate(&self, name: &str, flags: &[&str]) -> Result<TestReplica> {
        let (prefix, directory) = (prefix(name), self.directory.join(name));
        let own = [
            format!("--prefix={prefix}"),
            format!("--bundle={}", directory.display()),
        ];
        let flags: Vec<&str> = own
            .iter()
            .map(String::as_str)
            .chain(flags.iter().copied())
            .collect();
        TestReplica::start("n1", &self.etcd, &self.quorate_kubeconfig, &flags)
    }

    /// Applies the objects with a first replica, and stops it once the kinds are followed.
    pub async fn quorate(&self, name: &str) -> Result<Cost> {
        let directory = self.write_manifests(name, &objects::generate(name))?;
        let description = json!({
            "name": name, "release": "1.0.0", "minReconcilerRelease": "1.0.0", "minApiserverRelease": "1.0.0",
        });
        std::fs::write(directory.join("bundle.yaml"), description.to_string())?;
        let client = raw_client(&self.etcd).await?;

        let key = format!("{}/kubernetes/reconciler/status.json", prefix(name));
        let status = client.watch_client().watch(key, None).await?;
        let begun = Instant::now();
        let mut replica = self.start_quorate(name, &[])?;
        let done = tokio::select! {
            done = wait_until_done(status) => done,
            _ = replica.process()?.exited() => Err(anyhow!("the replica ended")),
        };
        let done = done.with_context(|| replica.last_lines())?;
        let whole = done - begun;
        // The next pass, which looks at what was created, follows soon.
        let passes = replica.metric("quorate_reconcile_passes_total").await?;
        let pass = replica.metric("quorate_reconcile_seconds_sum").await?;
        let requests = self.requests()?;
        ensure!(passes == 1.0, "it took {passes} passes instead of one");
        let applied = replica.metric("quorate_resources").await?;
        ensure!(applied == COUNT as f64, "{applied} objects instead of {COUNT}");
        replica.replica.stop().await?;
        Ok(Cost {
            whole: whole.as_secs_f64(),
            pass,
            requests,
        })
    }

    /// The first pass of a replica that finds everything in place.
    pub async fn takeover(&self, name: &str) -> Result<Cost> {
        let before = self.requests()?;
        let mut replica = self.start_quorate(name, &["--settle-ms=100"])?;
        self.wait_for_pass(&replica).await?;
        let pass = replica.metric("quorate_reconcile_seconds_sum").await?;
        // The watches are opened beside the pass.
        sleep(Duration::from_secs(1)).await;
        let requests = difference(self.requests()?, &before);
        replica.replica.stop().await?;
        Ok(Cost {
            whole: 0.0,
            pass,
            requests,
        })
    }

    /// How long a ConfigMap that someone changes stays changed under a running leader, in milliseconds.
    pub async fn drift(&self, name: &str) -> Result<Samples> {
        let mut replica = self.start_quorate(name, &["--settle-ms=100"])?;
        self.wait_for_pass(&replica).await?;
        let mut mended = Samples::default();
        for number in 0..DRIFTS {
            let namespace = format!("{name}-{:03}", number % 10);
            let maps: Api<ConfigMap> = Api::namespaced(self.raw.clone(), &namespace);
            mended.push_time(drift_once(&maps, &format!("{name}-{number:03}")).await?);
            // A change during the pass of the previous one would wait for its end: each change is measured alone.
            sleep(Duration::from_millis(300)).await;
        }
        replica.replica.stop().await?;
        Ok(mended)
    }

    async fn wait_for_pass(&self, replica: &TestReplica) -> Result<f64> {
        wait_for("a pass is over", async || {
            // A replica that does not listen yet gives an error.
            let passes = replica
                .metric("quorate_reconcile_passes_total")
                .await
                .unwrap_or(0.0);
            Ok((passes > 0.0).then_some(passes))
        })
        .await
    }

    /// Passes without a change.
    pub async fn steady(&self, name: &str) -> Result<Cost> {
        let flags = ["--settle-ms=100", "--pass-interval-ms=500"];
        let mut replica = self.start_quorate(name, &flags)?;
        self.wait_for_pass(&replica).await?;
        // The first pass lists, and opens watches.
        sleep(Duration::from_secs(2)).await;
        let before = self.requests()?;
        let passes_before = replica.metric("quorate_reconcile_passes_total").await?;
        let seconds_before = replica.metric("quorate_reconcile_seconds_sum").await?;
        wait_for("some passes are over", async || {
            let passes = replica.metric("quorate_reconcile_passes_total").await? - passes_before;
            Ok((passes >= STEADY_PASSES as f64).then_some(()))
        })
        .await?;
        let passes = replica.metric("quorate_reconcile_passes_total").await? - passes_before;
        let seconds = replica.metric("quorate_reconcile_seconds_sum").await? - seconds_before;
        let mut requests = difference(self.requests()?, &before);
        requests.values_mut().for_each(|count| *count /= passes);
        replica.replica.stop().await?;
        Ok(Cost {
            whole: 0.0,
            pass: seconds / passes,
            requests,
        })
    }

    /// Changes a Secret that no replica keeps in place at the moment.
    pub async fn drift_secret(&self, name: &str) -> Result<()> {
        let secrets: Api<Secret> = Api::namespaced(self.raw.clone(), &format!("{name}-000"));
        let drift = json!({"data": {"token": "ZHJpZnRlZA=="}});
        secrets
            .patch(
                &format!("{name}-000"),
                &PatchParams::default(),
                &Patch::Merge(&drift),
            )
            .await?;
        Ok(())
    }

    /// Adds ConfigMaps without the bundle's label.
    pub async fn add_config_maps(&self, count: usize) -> Result<()> {
        let maps: Api<ConfigMap> = Api::namespaced(self.raw.clone(), "default");
        let mut added = stream::iter(0..count)
            .map(|number| {
                let maps = maps.clone();
                async move {
                    let map = json!({"metadata": {"name": format!("other-{number}")}, "data": {"text": "x".repeat(200)}});
                    maps.create(&PostParams::default(), &serde_json::from_value(map)?).await?;
                    anyhow::Ok(())
                }
            })
            .buffer_unordered(PARALLEL);
        while let Some(added) = added.next().await {
            added?;
        }
        Ok(())
    }

    /// The number of Quorate's requests so far, by verb.
    fn requests(&self) -> Result<BTreeMap<String, f64>> {
        requests(&audit_log(&self.directory))
    }
}

/// A client of this kubeconfig.
pub async fn client_of(kubeconfig: &Path) -> Result<kube::Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(kube::Client::try_from(config)?)
}

/// The requests since an earlier count.
fn difference(mut now: BTreeMap<String, f64>, before: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    now.retain(|verb, count| {
        *count -= before.get(verb).unwrap_or(&0.0);
        *count > 0.0
    });
    now
}

/// The prefix of a bundle's keys: one for each, so that it starts without an inventory.
fn prefix(name: &str) -> String {
    format!("/{name}")
}

fn apply_request(object: &Value) -> Result<Request<Vec<u8>>> {
    let uri = format!("{}?fieldManager={RAW}&force=true", objects::path(object));
    Ok(Request::patch(uri)
        .header(http::header::CONTENT_TYPE, "application/apply-patch+yaml")
        .body(object.to_string().into_bytes())?)
}

/// Waits until a raw watch brings status DONE, and returns when it did.
async fn wait_until_done(mut status: WatchStream) -> Result<Instant> {
    loop {
        let response = timeout(LIMIT, status.message())
            .await??
            .context("the raw watch ended")?;
        let at = Instant::now();
        for kv in response.events().iter().filter_map(|event| event.kv()) {
            let status: Value = serde_json::from_slice(kv.value())?;
            if status["state"] == "DONE" {
                return Ok(at);
            }
        }
    }
}

/// Changes a ConfigMap and waits until it is corrected. Returns the time between the two events.
async fn drift_once(maps: &Api<ConfigMap>, name: &str) -> Result<Duration> {
    let before = maps.get(name).await?;
    let version = before.metadata.resource_version.unwrap_or_default();
    let params = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut events = std::pin::pin!(maps.watch(&params, &version).await?);
    let drift = json!({"data": {"number": "drifted"}});
    maps.patch(name, &PatchParams::default(), &Patch::Merge(&drift))
        .await?;
    let mut drifted = None;
    loop {
        let event = timeout(LIMIT, events.next())
            .await?
            .context("the raw watch ended")??;
        let at = Instant::now();
        let WatchEvent::Modified(map) = event else {
            continue;
        };
        match (map.data == before.data, drifted) {
            (false, None) => drifted = Some(at),
            (true, Some(drifted)) => return Ok(at - drifted),
            _ => {}
        }
    }
}

/// The number of Quorate's requests so far, by verb.
fn requests(audit_log: &Path) -> Result<BTreeMap<String, f64>> {
    let mut by_verb: BTreeMap<String, f64> = BTreeMap::new();
    for line in std::fs::read_to_string(audit_log)?.lines() {
        let event: Value = serde_json::from_str(line)?;
        // A watch is logged when it begins and when it ends.
        let counts = event["stage"] == "ResponseComplete" || event["verb"] == "watch";
        if counts && event["user"]["username"] == QUORATE {
            let verb = event["verb"].as_str().unwrap_or("unknown");
            *by_verb.entry(verb.to_owned()).or_default() += 1.0;
        }
    }
    Ok(by_verb)
}
