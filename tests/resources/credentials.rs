//! Credentials that are rejected: by the server itself, or by an API that it passes requests on to (INV-8).

use quorate::resources::report::Stopped;

use super::alone::RED;
use super::faults::{Fault, FaultProxy};
use super::site::{BALLS, Site, bundle, config_map, ended, expect_success};

/// The server passes on what an extension's API answers, also that it rejects the credentials: it does not trust the front proxy.
#[tokio::test]
async fn an_api_that_rejects_our_credentials_delays_only_its_own_objects() {
    let manifests = |value: &str, size: u32| {
        let ball = RED.replace("size: 1", &format!("size: {size}"));
        format!("{BALLS}{ball}{}", config_map("good", value))
    };
    let site = Site::start().await;
    expect_success(&site.pass(bundle(&manifests("v0", 0))).await);
    let asks = [
        ("GET", "/apis/toys.example.com"),
        ("GET", "/balls?"),
        ("PATCH", "/balls/red"),
    ];
    for (round, (method, path)) in (1..).zip(asks) {
        let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
        proxy.fail(method, path, usize::MAX, Fault::Status(401, None));
        let wanted = bundle(&manifests(&format!("v{round}"), round));
        let mut reconciler = site.reconciler_as(proxy.kubeconfig(), wanted).await;
        for applied in [vec!["ConfigMap default/good".to_owned()], Vec::new()] {
            let report = reconciler.pass(site.fence()).await;
            assert_eq!(report.stopped(), None, "{method} {path}");
            assert_eq!(ended(&report, "applied"), applied, "{method} {path}");
            assert_eq!(ended(&report, "failed"), ["Ball.toys.example.com red"]);
            let why = report.summary();
            assert!(why.contains("rejected the credentials"), "{why}");
        }
    }
}

#[tokio::test]
async fn a_server_that_rejects_our_credentials_itself_ends_the_pass() {
    let site = Site::start().await;
    let names: Vec<String> = (0..20).map(|number| format!("map-{number}")).collect();
    let manifests: String = names.iter().map(|name| config_map(name, "v")).collect();
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    // The discovery of the pass, and then the question that settles it.
    proxy.fail("GET", "/api/v1$", 1, Fault::Nothing);
    proxy.fail("GET", "/api/v1$", 1, Fault::Status(401, None));
    proxy.fail("PATCH", "/configmaps/", usize::MAX, Fault::Status(401, None));
    let mut reconciler = site.reconciler_as(proxy.kubeconfig(), bundle(&manifests)).await;
    let report = reconciler.pass(site.fence()).await;
    assert!(
        matches!(report.stopped(), Some(Stopped::ApiServer(why)) if why.contains("rejected the credentials")),
        "{:?}",
        report.stopped()
    );

    // Its own path answers again: each object fails alone, and the path is asked no more than once a pass.
    proxy.take_noted();
    let report = reconciler.pass(site.fence()).await;
    assert_eq!((report.stopped(), report.count("failed")), (None, 20));
    let noted = proxy.take_noted();
    let asked = noted.iter().filter(|noted| noted.uri == "/api/v1").count();
    assert!(asked <= 1, "{noted:#?}");
}
