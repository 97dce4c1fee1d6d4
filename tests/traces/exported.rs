//! What is exported: each pass, step and call, with its object, its term and what is around it.

use quorate_dev::csi_plugin::faults::Happening;
use quorate_dev::otlp::span::SpanKind;
use quorate_dev::otlp::status::StatusCode;
use quorate_dev::otlp::{Span, Status};

use crate::support::collector::{Collector, Spans, object, term, text};
use crate::support::csi::answer;
use crate::support::kubernetes::Kubernetes;
use crate::support::quorate::{Launch, status_json};
use crate::support::wait::{SOON, eventually};
use crate::volumes::world::{World, secret, volume};

/// The span is well-formed: with ids, and with a beginning before its end.
#[track_caller]
fn expect_whole(span: &Span) {
    assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8), "{span:?}");
    assert!(matches!(span.parent_span_id.len(), 0 | 8), "{span:?}");
    assert!(span.start_time_unix_nano > 0, "{span:?}");
    assert!(span.end_time_unix_nano >= span.start_time_unix_nano, "{span:?}");
}

#[tokio::test]
async fn a_pass_over_the_resources_is_a_trace_with_a_step_and_its_calls_for_each_object() {
    let kubernetes = Kubernetes::start().await;
    let collector = Collector::start().await;
    let launch = Launch::on_kubernetes(&kubernetes)
        .flag(collector.flag())
        .variable("RUST_LOG", "debug");
    let mut replica = launch.start("a");
    replica.wait_ready().await;
    let leads = eventually(SOON, "the term is known", async || {
        let status = status_json(&kubernetes.etcd, "/quorate").unwrap_or_default();
        status["term"].as_i64().ok_or("no term")
    })
    .await;
    // A first pass may have failed while the server started; one has applied an object.
    let applied = |spans: &Spans| {
        let mut calls = spans.named("kubernetes apply").filter(|call| {
            let step = spans.parent(call);
            let pass = step.and_then(|step| spans.parent(step));
            pass.is_some_and(|pass| pass.name == "pass resources")
        });
        calls.next().cloned()
    };
    let call = collector.finds("a pass with an apply", applied).await;
    let spans = collector.spans();
    spans.0.iter().for_each(expect_whole);
    let step = spans.parent(&call).unwrap();
    let pass = spans.parent(step).unwrap();
    assert_eq!(step.name, "step resources");
    assert_eq!(text(&step.attributes, "quorate.does"), "put in place");
    assert!(!object(step).is_empty());
    assert_eq!(object(step), object(&call));
    assert!(pass.parent_span_id.is_empty(), "a pass begins a trace");
    assert_eq!(
        (call.kind(), step.kind(), pass.kind()),
        (SpanKind::Client, SpanKind::Internal, SpanKind::Internal)
    );
    for span in [&call, step, pass] {
        assert_eq!(term(span), Some(leads), "{span:?}");
    }
    // The gate's own step, with its write.
    let written = |spans: &Spans| {
        let mut writes = spans.named("etcd txn").filter(|write| {
            let step = spans.parent(write);
            step.is_some_and(|step| step.name == "step gate" && object(write) == "status")
        });
        writes.next().cloned()
    };
    let write = collector.finds("a write of the status", written).await;
    assert_eq!(term(&write), Some(leads));
    assert_eq!(text(&write.attributes, "quorate.code"), "OK");
    let resource = collector.resource();
    assert_eq!(text(&resource, "service.name"), "quorate");
    assert_eq!(text(&resource, "service.instance.id"), "a");
    assert_eq!(replica.metric("quorate_trace_spans_dropped_total").await, 0.0);
    let log = replica.log();
    assert!(log.contains("DEBUG"), "it says much");
    let shows_span = |line: &&str| {
        ["pass{", "step{", "call{", "term{"]
            .iter()
            .any(|span| line.contains(span))
    };
    assert_eq!(
        log.lines().find(shows_span),
        None,
        "no line of the log shows a span"
    );
}

#[tokio::test]
async fn a_step_of_a_volume_has_its_call_of_the_plugin_and_no_span_has_a_secret() {
    let world = World::start().await;
    let collector = Collector::start().await;
    let mut replica = Launch::on(&world.etcd).flag(collector.flag()).start("a");
    replica.wait_leading().await;
    let sentinel = "xyzzy-s3cr3t-value";
    let uses = volume("data", "secrets: [{key: token, secret: backend}],");
    world.apply(&(secret("backend", "token", sentinel) + &uses)).await;
    let created = |spans: &Spans| {
        let calls = spans.named("csi /csi.v1.Controller/CreateVolume");
        let mut within = calls.filter(|call| spans.parent(call).is_some());
        within.next().cloned()
    };
    let call = collector.finds("a created volume", created).await;
    let spans = collector.spans();
    let step = spans.parent(&call).unwrap();
    assert_eq!((&*step.name, object(step)), ("step volumes", "volume/data"));
    assert_eq!(object(&call), "volume/data");
    assert_eq!(text(&call.attributes, "quorate.system"), "csi");
    assert!(term(&call).is_some() && term(&call) == term(step), "{call:?}");
    assert_eq!((&call.status, &step.status), (&None, &None), "both went well");
    // The plugin repeats the secret in its message.
    let says = answer("Internal", "cannot log in with {secrets}");
    world
        .plugin
        .fault("ControllerPublishVolume", None, Happening::Fails(says))
        .await;
    world.run(&["publish", "data", "n1"]).await.expect_done();
    let failed = |spans: &Spans| {
        let calls = spans.named("csi /csi.v1.Controller/ControllerPublishVolume");
        let mut within = calls.filter(|call| spans.parent(call).is_some());
        within.next().cloned()
    };
    let call = collector.finds("a call that failed", failed).await;
    assert_eq!(text(&call.attributes, "quorate.code"), "Internal");
    let status = call.status.clone().unwrap_or_default();
    assert_eq!(
        status,
        Status {
            message: String::new(),
            code: StatusCode::Error.into()
        }
    );
    replica.stop().await.unwrap();
    let spans = collector.spans();
    assert!(spans.0.len() > 20, "only {} spans", spans.0.len());
    let mut shown = spans.0.iter().map(|span| format!("{span:?}"));
    assert_eq!(shown.find(|span| span.contains(sentinel)), None);
}

#[tokio::test]
async fn a_survey_of_the_members_is_a_pass_with_its_calls() {
    let world = World::start().await;
    let collector = Collector::start().await;
    let mut replica = Launch::on(&world.etcd).flag(collector.flag()).start("a");
    replica.wait_leading().await;
    let surveyed = |spans: &Spans| {
        let lists = spans.named("etcd member_list");
        let mut within = lists.filter_map(|list| Some((list, spans.parent(list)?)));
        let (list, pass) = within.find(|(_, pass)| pass.name == "pass roles")?;
        Some((term(list)?, term(pass)?, pass.parent_span_id.clone()))
    };
    let (of_call, of_pass, around) = collector.finds("a survey", surveyed).await;
    assert_eq!(of_call, of_pass);
    assert!(around.is_empty(), "a pass begins a trace");
}
