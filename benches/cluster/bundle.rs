//! A bundle of a thousand mixed objects: the first pass beside `kubectl apply --server-side` and beside the same apply
//! requests sent raw, the steady pass, and the correction of one object.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use etcd_client::WatchStream;
use futures::StreamExt as _;
use futures::stream;
use http::Request;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, Patch, PatchParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use super::measure::{Samples, Table, Unit};
use super::objects::{self, COUNT, KINDS};
use super::servers::{EtcdServer, Kubernetes, LIMIT, TestReplica, raw_client, wait_for};

const ROUNDS: usize = 3;
const DRIFTS: usize = 20;
const STEADY_PASSES: usize = 20;

/// Raw requests under way at once: as many as a pass has.
const PARALLEL: usize = 8;

/// The bundle that a replica keeps in place; the others are only applied.
const KEPT: &str = "kept";

/// Users of the kube-apiserver: its audit log shows who made which request.
const QUORATE: &str = "quorate";
const KUBECTL: &str = "kubectl";
const RAW: &str = "raw";

pub async fn run() -> Result<Table> {
    let kubernetes = Kubernetes::start(&[QUORATE, KUBECTL, RAW], audit_flags).await?;
    let etcd = EtcdServer::start().await?;
    let sides = Sides::prepare(&kubernetes, &etcd).await?;

    // First, while the server holds no other objects: the cost of a list grows with all objects of its kind.
    eprintln!("    {DRIFTS} drifted objects");
    sides.quorate(KEPT).await?;
    let mended = sides.drift().await?;
    eprintln!("    {STEADY_PASSES} steady passes");
    let steady = sides.steady(&kubernetes).await?;

    let (mut kubectl, mut raw) = (Samples::default(), Samples::default());
    let (mut whole, mut pass) = (Samples::default(), Samples::default());
    for round in 0..ROUNDS {
        eprintln!("    {COUNT} objects, three times: {}/{ROUNDS}", round + 1);
        // In turns: the server holds more objects with every set.
        for turn in 0..3 {
            match (round + turn) % 3 {
                0 => kubectl.push(sides.kubectl(round).await?),
                1 => raw.push(sides.raw(round).await?),
                _ => {
                    let (whole_seconds, pass_seconds) = sides.quorate(&format!("quorate-{round}")).await?;
                    whole.push(whole_seconds);
                    pass.push(pass_seconds);
                }
            }
        }
    }
    let mut table = Table::new("Bundle: 1,000 objects of 13 kinds");
    table.row(
        "kubectl apply --server-side, the whole command",
        &kubectl,
        Unit::Seconds,
        "",
    );
    table.row(
        "quorate run, from its start to status DONE",
        &whole,
        Unit::Seconds,
        "",
    );
    table.row(
        "kubectl over quorate",
        &kubectl.per(&whole),
        Unit::Times,
        "at least 3 ×",
    );
    table.row(
        "the same apply requests, raw and in parallel",
        &raw,
        Unit::Seconds,
        "",
    );
    table.row("first pass", &pass, Unit::Seconds, "");
    table.row(
        "first pass over raw",
        &pass.per(&raw),
        Unit::Times,
        "at most 1.2 ×",
    );

    table.row(
        "one drifted object → mended",
        &mended,
        Unit::Millis,
        "below 100 ms",
    );

    table.single(
        "first pass after a restart",
        steady.restart_seconds,
        Unit::Seconds,
        "",
    );
    table.single("steady pass", steady.pass_seconds * 1e3, Unit::Millis, "");
    for (verb, per_pass) in &steady.requests {
        let aim = match verb.as_str() {
            "list" => "13: one per kind",
            _ => "0",
        };
        table.single(
            &format!("requests of a steady pass: {verb}"),
            *per_pass,
            Unit::Count,
            aim,
        );
    }
    if !steady.requests.keys().any(|verb| verb != "list") {
        table.single("requests of a steady pass: any other", 0.0, Unit::Count, "0");
    }
    table.note(format!(
        "The server holds these 1,000 objects alone while one is mended and passes are steady. Then come further sets with \
         fresh names, {PARALLEL} raw requests at once after those for the namespaces. The time to mend \
         runs from the event that shows the drift to the one that shows it mended, both on one watch. Requests are \
         counted in the audit log of the kube-apiserver, over {STEADY_PASSES} passes."
    ));
    Ok(table)
}

/// Has the server log the requests of these users, and no others.
fn audit_flags(directory: &Path) -> Result<Vec<String>> {
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
struct Sides {
    directory: PathBuf,
    etcd: String,
    raw: kube::Client,
    quorate_kubeconfig: PathBuf,
    kubectl_kubeconfig: PathBuf,
}

/// The cost of passes without a change.
struct Steady {
    restart_seconds: f64,
    pass_seconds: f64,
    /// Per pass, by verb.
    requests: BTreeMap<String, f64>,
}

impl Sides {
    async fn prepare(kubernetes: &Kubernetes, etcd: &EtcdServer) -> Result<Self> {
        let kubeconfig = Kubeconfig::read_from(kubernetes.kubeconfig(RAW)?)?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let sides = Self {
            directory: kubernetes.directory().to_owned(),
            etcd: etcd.endpoint(),
            raw: kube::Client::try_from(config)?,
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
    async fn kubectl(&self, round: usize) -> Result<f64> {
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
    async fn raw(&self, round: usize) -> Result<f64> {
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

    /// Applies the objects with a first replica. Returns the seconds from its start to status DONE, and those of its first
    /// pass.
    async fn quorate(&self, name: &str) -> Result<(f64, f64)> {
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
        ensure!(
            replica.metric("quorate_reconcile_passes_total").await? == 1.0,
            "it took more than one pass"
        );
        let pass = replica.metric("quorate_reconcile_seconds_sum").await?;
        let applied = replica.metric("quorate_resources").await?;
        ensure!(applied == COUNT as f64, "{applied} objects instead of {COUNT}");
        replica.replica.stop().await?;
        Ok((whole.as_secs_f64(), pass))
    }

    /// How long a ConfigMap that someone changes stays changed under a running leader, in milliseconds.
    async fn drift(&self) -> Result<Samples> {
        let mut replica = self.start_quorate(KEPT, &["--settle-ms=100"])?;
        self.wait_for_pass(&replica).await?;
        let mut mended = Samples::default();
        for number in 0..DRIFTS {
            let namespace = format!("{KEPT}-{:03}", number % 10);
            let maps: Api<ConfigMap> = Api::namespaced(self.raw.clone(), &namespace);
            mended.push_time(drift_once(&maps, &format!("{KEPT}-{number:03}")).await?);
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

    async fn steady(&self, kubernetes: &Kubernetes) -> Result<Steady> {
        let flags = ["--settle-ms=100", "--pass-interval-ms=500"];
        let mut replica = self.start_quorate(KEPT, &flags)?;
        self.wait_for_pass(&replica).await?;
        let restart_seconds = replica.metric("quorate_reconcile_seconds_sum").await?;
        // The first pass opens watches, which are no part of a steady pass.
        sleep(Duration::from_secs(2)).await;
        let log = audit_log(kubernetes.directory());
        let requests_before = requests(&log)?;
        let passes_before = replica.metric("quorate_reconcile_passes_total").await?;
        let seconds_before = replica.metric("quorate_reconcile_seconds_sum").await?;
        wait_for("some passes are over", async || {
            let passes = replica.metric("quorate_reconcile_passes_total").await? - passes_before;
            Ok((passes >= STEADY_PASSES as f64).then_some(()))
        })
        .await?;
        let passes = replica.metric("quorate_reconcile_passes_total").await? - passes_before;
        let seconds = replica.metric("quorate_reconcile_seconds_sum").await? - seconds_before;
        let mut counts = requests(&log)?;
        counts.retain(|verb, count| {
            *count = (*count - requests_before.get(verb).unwrap_or(&0.0)) / passes;
            *count > 0.0
        });
        ensure!(
            counts.contains_key("list"),
            "no list in the audit log: {counts:?}; {KINDS} kinds are expected"
        );
        replica.replica.stop().await?;
        Ok(Steady {
            restart_seconds,
            pass_seconds: seconds / passes,
            requests: counts,
        })
    }
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
