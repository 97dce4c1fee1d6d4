//! The pages: which probe each one shows, and how a report is written.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::extract::RawQuery;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::get;

use super::answer::{TEXT, page};
use super::screen::Screen;
use super::{LeaderReport, Probes, Report, viewers};
use crate::metrics::Metrics;

/// The content type that the OpenMetrics specification prescribes.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All pages; axum answers other methods than GET and HEAD with 405 and other paths with the fallback.
pub(super) fn router(
    probes: Arc<Probes>,
    metrics: Metrics,
    screen: Option<Arc<Screen>>,
    hosts: Vec<String>,
) -> Router {
    let (live, ready, leader, scraped) = (probes.clone(), probes.clone(), probes.clone(), probes);
    let others = match &screen {
        Some(_) => "not found: there are /, /api/v1/state, /livez, /readyz, /leaderz and /metrics\n",
        None => "not found: there are /livez, /readyz, /leaderz and /metrics\n",
    };
    screen
        .map_or_else(Router::new, |screen| viewers::routes(screen, hosts))
        .route(
            "/livez",
            get(async move |RawQuery(query): RawQuery| probe("livez", &(live.live)(), query.as_deref())),
        )
        .route(
            "/readyz",
            get(async move |RawQuery(query): RawQuery| probe("readyz", &(ready.ready)(), query.as_deref())),
        )
        .route(
            "/leaderz",
            get(async move || match &leader.leader {
                Some(leader) => leader_page(&leader()),
                None => page(StatusCode::NOT_FOUND, TEXT, "an agent never leads\n".to_owned()),
            }),
        )
        .route(
            "/metrics",
            get(async move || {
                // At each scrape, from the sources of /readyz and /leaderz: a metric and its page never disagree.
                metrics.ready.set((scraped.ready)().ok().into());
                if let Some(leader) = &scraped.leader {
                    let report = leader();
                    metrics.leader.set(report.leading.into());
                    metrics.election_yields.set(report.yields_to.is_some().into());
                    metrics.etcd_refuses.set(report.refused.is_some().into());
                }
                page(StatusCode::OK, OPENMETRICS, metrics.encode())
            }),
        )
        .fallback(async move || page(StatusCode::NOT_FOUND, TEXT, others.to_owned()))
        .layer(map_response(last_of_its_connection))
}

/// A connection has a limited time: the next request on it could be cut off.
async fn last_of_its_connection(mut answer: Response) -> Response {
    answer
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

fn probe(name: &str, report: &Report, query: Option<&str>) -> Response {
    let status = if report.ok() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    // A failed probe always says why: the kubelet records the body in its Event.
    let body = if report.ok() && !asks_for_verbose(query) {
        "ok".to_owned()
    } else {
        verbose(name, report)
    };
    page(status, TEXT, body)
}

/// `?verbose`, with or without a value, anywhere in the query.
fn asks_for_verbose(query: Option<&str>) -> bool {
    query
        .unwrap_or_default()
        .split('&')
        .any(|part| part.split('=').next() == Some("verbose"))
}

/// A line for each check and a verdict, in kube-apiserver's format.
fn verbose(name: &str, report: &Report) -> String {
    let mut text = String::new();
    for check in &report.checks {
        let (sign, verdict) = if check.ok { ('+', "ok") } else { ('-', "failed") };
        let _ = write!(text, "[{sign}]{} {verdict}", check.name);
        if !check.detail.is_empty() {
            // An error text of another program may hold line breaks; a check is one line.
            let _ = write!(text, ": {}", check.detail.replace(['\n', '\r'], " "));
        }
        text.push('\n');
    }
    let verdict = if report.ok() { "passed" } else { "failed" };
    let _ = writeln!(text, "{name} check {verdict}");
    text
}

fn leader_page(report: &LeaderReport) -> Response {
    let leader = report.leader.as_deref().unwrap_or("none known");
    if report.leading {
        page(StatusCode::OK, TEXT, format!("leader: {leader} (this replica)\n"))
    } else {
        let last_known = match report.is_last_known {
            true => " (as last known: not registered in etcd, or out of its reach)",
            false => "",
        };
        let mut text = format!("leader: {leader}{last_known}\n");
        for why in report.refused.iter().chain(&report.yields_to) {
            let _ = writeln!(text, "not standing for election: {why}");
        }
        page(StatusCode::SERVICE_UNAVAILABLE, TEXT, text)
    }
}
