//! A bundle of a thousand mixed objects: the first pass beside `kubectl apply --server-side` and beside the same apply
//! requests sent raw, each on a fresh server; a new leader, steady passes and the correction of one object, also beside
//! many objects that are none of the bundle's, and beside a kind whose writes hang. The first pass, the new leader and the
//! corrections are measured far from the server as well.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::config::Kubeconfig;

use super::measure::{Samples, Table, Unit};
use super::network::{DelayingProxy, hanging_webhook};
use super::objects::{COUNT, KINDS};
use super::servers::{EtcdServer, Kubernetes};
use super::sides::{KUBECTL, PARALLEL, QUORATE, RAW, STEADY_PASSES, Sides, audit_flags, client_of};

/// Rounds, each on fresh servers.
const ROUNDS: usize = 5;

/// The same far from the server, where the way is most of the time, and the same each time.
const FAR_ROUNDS: usize = 3;

/// ConfigMaps that do not belong to the bundle.
const OTHERS: usize = 20_000;

/// What each way to a distant API server takes.
const ONE_WAY: Duration = Duration::from_millis(5);

/// The bundle that a replica keeps in place; the others are only applied.
const KEPT: &str = "kept";

/// A server for one side of one round.
async fn site() -> Result<(Kubernetes, EtcdServer)> {
    let kubernetes = Kubernetes::start(&[QUORATE, KUBECTL, RAW], audit_flags).await?;
    Ok((kubernetes, EtcdServer::start().await?))
}

/// The first pass, beside the other ways.
pub async fn first() -> Result<Table> {
    let mut table = Table::new("Bundle: the first pass over 1,000 objects of 13 kinds");
    first_passes(&mut table).await?;
    first_passes_from_afar(&mut table).await?;
    table.note(format!(
        "Each first pass, each kubectl and each set of raw requests ({PARALLEL} at once after those for the namespaces) has a \
         fresh server. Requests are counted in the audit log of the kube-apiserver. The distant server is behind a proxy that \
         holds each piece for {ONE_WAY:?} each way."
    ));
    Ok(table)
}

/// What follows the first pass.
pub async fn kept() -> Result<Table> {
    let mut table = Table::new("Bundle: 1,000 objects in place");
    in_place(&mut table).await?;
    table.note(format!(
        "All on one server. The time to mend runs from the event that shows the drift to the one that shows it mended, both on \
         one watch. Requests are counted in the audit log of the kube-apiserver; those of steady passes over {STEADY_PASSES} \
         passes. The kind that hangs is one whose writes a webhook never answers. The distant server is behind a proxy that \
         holds each piece for {ONE_WAY:?} each way."
    ));
    Ok(table)
}

async fn first_passes(table: &mut Table) -> Result<()> {
    let (mut kubectl, mut raw) = (Samples::default(), Samples::default());
    let (mut whole, mut pass) = (Samples::default(), Samples::default());
    let mut beyond = BTreeMap::new();
    for round in 0..ROUNDS {
        eprintln!("    {COUNT} objects, three times: {}/{ROUNDS}", round + 1);
        for turn in 0..3 {
            let (kubernetes, etcd) = site().await?;
            let sides = Sides::prepare(&kubernetes, &etcd).await?;
            match (round + turn) % 3 {
                0 => kubectl.push(sides.kubectl(round).await?),
                1 => raw.push(sides.raw(round).await?),
                _ => {
                    let first = sides.quorate(&format!("quorate-{round}")).await?;
                    whole.push(first.whole);
                    pass.push(first.pass);
                    beyond = first.requests;
                }
            }
        }
    }
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
    table.row("kubectl over quorate", &kubectl.per(&whole), Unit::Times, "");
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
        "at most 1.15 ×",
    );
    requests(table, "requests of a first run, to DONE", &beyond);
    Ok(())
}

/// Raw requests and first passes, each through a proxy of a fresh server.
async fn first_passes_from_afar(table: &mut Table) -> Result<()> {
    let (mut raw, mut pass) = (Samples::default(), Samples::default());
    for round in 0..FAR_ROUNDS {
        eprintln!("    the same from afar, twice: {}/{FAR_ROUNDS}", round + 1);
        for turn in 0..2 {
            let (kubernetes, etcd) = site().await?;
            let mut sides = Sides::prepare(&kubernetes, &etcd).await?;
            let proxy = DelayingProxy::start(&server_of(&sides.quorate_kubeconfig)?, ONE_WAY).await?;
            if (round + turn) % 2 == 0 {
                let far = behind(&kubernetes.kubeconfig(RAW)?, &proxy.url)?;
                sides.raw = client_of(&far).await?;
                raw.push(sides.raw(round).await?);
            } else {
                sides.quorate_kubeconfig = behind(&sides.quorate_kubeconfig, &proxy.url)?;
                pass.push(sides.quorate(&format!("quorate-{round}")).await?.pass);
            }
        }
    }
    table.row(
        "the same apply requests, raw, 10 ms away",
        &raw,
        Unit::Seconds,
        "",
    );
    table.row("first pass, 10 ms away", &pass, Unit::Seconds, "");
    table.row(
        "first pass over raw, 10 ms away",
        &pass.per(&raw),
        Unit::Times,
        "at most 1.15 ×",
    );
    Ok(())
}

async fn in_place(table: &mut Table) -> Result<()> {
    let (kubernetes, etcd) = site().await?;
    let mut sides = Sides::prepare(&kubernetes, &etcd).await?;
    sides.quorate(KEPT).await?;
    eprintln!("    a new leader, drifted objects, steady passes");
    let next = sides.takeover(KEPT).await?;
    table.single(
        "first pass of a new leader, everything in place",
        next.pass,
        Unit::Seconds,
        "",
    );
    requests(table, "requests of a new leader", &next.requests);
    table.row(
        "one drifted object → mended",
        &sides.drift(KEPT).await?,
        Unit::Millis,
        "below 30 ms",
    );
    let steady = sides.steady(KEPT).await?;
    table.single("steady pass", steady.pass * 1e3, Unit::Millis, "");
    requests(table, "requests of a steady pass", &steady.requests);

    eprintln!("    the same from afar");
    let near = sides.quorate_kubeconfig.clone();
    let proxy = DelayingProxy::start(&server_of(&near)?, ONE_WAY).await?;
    let distant = behind(&near, &proxy.url)?;
    sides.quorate_kubeconfig.clone_from(&distant);
    let next = sides.takeover(KEPT).await?;
    table.single(
        "first pass of a new leader, 10 ms away",
        next.pass,
        Unit::Seconds,
        "",
    );
    let far = sides.drift(KEPT).await?;
    table.row("one drifted object → mended, 10 ms away", &far, Unit::Millis, "");
    sides.quorate_kubeconfig.clone_from(&near);

    eprintln!("    beside a kind whose writes hang");
    sides.drift_secret(KEPT).await?;
    let webhook = hanging_webhook(&sides.raw).await?;
    let beside = sides.drift(KEPT).await?;
    table.row(
        "one drifted object → mended, beside a kind that hangs",
        &beside,
        Unit::Millis,
        "below 30 ms",
    );
    sides.quorate_kubeconfig = distant;
    let beside = sides.drift(KEPT).await?;
    table.row(
        "one drifted object → mended, beside a kind that hangs, 10 ms away",
        &beside,
        Unit::Millis,
        "",
    );
    sides.quorate_kubeconfig = near;
    webhook.remove(&sides.raw).await?;

    eprintln!("    beside {OTHERS} other ConfigMaps");
    sides.add_config_maps(OTHERS).await?;
    let beside = sides.drift(KEPT).await?;
    table.row(
        "one drifted object → mended, beside 20,000 others",
        &beside,
        Unit::Millis,
        "as without",
    );
    let steady = sides.steady(KEPT).await?;
    table.single(
        "steady pass, beside 20,000 others",
        steady.pass * 1e3,
        Unit::Millis,
        "as without",
    );
    requests(
        table,
        "requests of a steady pass, beside 20,000 others",
        &steady.requests,
    );
    Ok(())
}

/// A row for each verb but the writes of the objects.
fn requests(table: &mut Table, what: &str, by_verb: &BTreeMap<String, f64>) {
    let others = by_verb.iter().filter(|(verb, _)| *verb != "patch");
    let mut none = true;
    for (verb, count) in others {
        none = false;
        let aim = match verb.as_str() {
            "list" | "watch" => format!("at most {KINDS}: one per kind"),
            _ => String::new(),
        };
        table.single(&format!("{what}: {verb}"), *count, Unit::Count, &aim);
    }
    if none {
        table.single(&format!("{what}: any but patch"), 0.0, Unit::Count, "0");
    }
    let writes = by_verb.get("patch").copied().unwrap_or_default();
    table.single(&format!("{what}: patch"), writes, Unit::Count, "");
}

fn server_of(kubeconfig: &Path) -> Result<String> {
    let clusters = Kubeconfig::read_from(kubeconfig)?.clusters;
    let cluster = clusters.into_iter().next().and_then(|named| named.cluster);
    cluster
        .and_then(|cluster| cluster.server)
        .context("no server in the kubeconfig")
}

/// The same kubeconfig for a proxy of the server.
fn behind(kubeconfig: &Path, proxy: &str) -> Result<PathBuf> {
    let text = std::fs::read_to_string(kubeconfig)?;
    let copy = kubeconfig.with_extension("far");
    std::fs::write(&copy, text.replace(&server_of(kubeconfig)?, proxy))?;
    Ok(copy)
}
