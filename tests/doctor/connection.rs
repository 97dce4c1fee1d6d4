//! What is wrong between this machine and etcd.

use std::time::Duration;

use quorate_dev::pki::Authority;

use super::{Call, FAULTS, WARNINGS, led, sound_etcd};
use crate::support::etcd::{ClientTls, PASSWORD, TestEtcd, USER};
use crate::support::proxy::{Network, Proxy};
use crate::support::quorate::quorate;

#[tokio::test]
async fn the_summary_is_printed_once() {
    let call = ["doctor", "--no-kubernetes", "--etcd-cacert=/does/not/exist"];
    let said = quorate(call).await;
    assert!(said.stdout.contains("\nFound 1 fault in "), "{said:?}");
    assert_eq!(said.expect_code(FAULTS), "error: doctor found faults\n");
}

#[tokio::test]
async fn an_endpoint_that_is_gone_slow_hanging_or_of_another_cluster_is_named() {
    let (etcd, other) = tokio::join!(sound_etcd(1, &[]), TestEtcd::start());
    let _replica = led(&etcd).await;
    let (sound, url) = (Call::on(&etcd), etcd.endpoints_flag());
    sound.finds_nothing().await;

    let gone = Proxy::in_front_of(&url);
    let gone_url = gone.url();
    gone.set(Network::Gone);
    let both = Call::at(&format!("{url},{gone_url}"));
    assert_eq!(
        both.names_first("EndpointUnreachable", &gone_url).await.code,
        FAULTS
    );
    let alone = Call::at(&gone_url)
        .names_first("EndpointUnreachable", &gone_url)
        .await;
    let skipped = alone.document["skipped"].to_string();
    assert!(skipped.contains("no endpoint answers"), "{skipped}");

    let hanging = Proxy::in_front_of(&url);
    hanging.set(Network::BlackHole);
    let both = Call::at(&format!("{url},{}", hanging.url()));
    let said = both.names_first("EndpointUnreachable", &hanging.url()).await;
    assert!(said.what().contains("no answer within"), "{said:?}");
    assert!(said.took < Duration::from_secs(15), "{:?}", said.took);

    let slow = Proxy::in_front_of(&url);
    slow.set(Network::Delays(Duration::from_millis(260)));
    let said = Call::at(&slow.url())
        .names_first("EndpointSlow", &slow.url())
        .await;
    assert_eq!(said.code, WARNINGS);

    let two = Call::at(&format!("{url},{}", other.endpoints_flag()));
    let said = two.names_first("SeveralClusters", "etcd endpoints").await;
    assert_eq!(said.code, FAULTS);

    let missing = sound.with("--etcd-cacert=/does/not/exist");
    let tls = missing.without(&format!("--etcd-endpoints={url}"));
    let tls = tls.with("--etcd-endpoints=https://127.0.0.1:1");
    let said = tls.names_first("EtcdSettings", "connection to etcd").await;
    assert!(said.what().contains("/does/not/exist"), "{said:?}");
    let secure = Call::at(&url.replace("http://", "https://"));
    secure.names_first("EtcdTls", "etcd endpoint https://").await;
    sound.finds_nothing().await;
}

#[tokio::test]
async fn certificates_that_do_not_fit_are_named_in_words() {
    let etcd = TestEtcd::with_tls().await;
    let ClientTls { ca, client, .. } = etcd.tls.clone().unwrap();
    let call = Call::on(&etcd);
    let of = |ca: &std::path::Path| call.with(format!("--etcd-cacert={}", ca.display()));
    let shows = |call: Call| {
        let certified = call.with(format!("--etcd-cert={}", client.cert.display()));
        certified.with(format!("--etcd-key={}", client.key.display()))
    };
    let none = of(&ca).names_first("EtcdTls", "etcd endpoint").await;
    assert!(none.what().contains("client certificate"), "{none:?}");
    let directory = etcd.directory().join("other");
    std::fs::create_dir(&directory).unwrap();
    let other = Authority::create(&directory, "another").unwrap();
    let wrong = shows(of(&other.certificate_file()));
    let wrong = wrong.names_first("EtcdTls", "etcd endpoint").await;
    assert!(wrong.what().contains("signed by another authority"), "{wrong:?}");
    // Nothing runs on it but etcd.
    let sound = shows(of(&ca)).names_first("NoLeader", "election").await;
    assert_eq!(sound.code, FAULTS);
    // The clock, the quota and the flags are seen over TLS as well.
    assert!(sound.document["checks"].as_u64().unwrap() > 40, "{sound:?}");
}

#[tokio::test]
async fn a_user_that_may_not_log_in_and_one_that_may_not_read_or_write_are_named() {
    let etcd = TestEtcd::with_password("/quorate/nodes/", 300).await;
    let file = |name: &str, password: &str| {
        let file = etcd.directory().join(name);
        std::fs::write(&file, password).unwrap();
        format!("--etcd-password-file={}", file.display())
    };
    let (right, wrong) = (file("right", PASSWORD), file("wrong", "guess"));
    let user = Call::on(&etcd).with(format!("--etcd-user={USER}"));
    let refused = user.with(&wrong).names_first("EtcdLogIn", "etcd endpoint").await;
    assert_eq!(refused.code, FAULTS);
    let anonymous = Call::on(&etcd).names_first("EtcdLogIn", "etcd endpoint").await;
    assert!(anonymous.what().contains("user name is empty"), "{anonymous:?}");
    let some = user
        .with(&right)
        .names_first("EtcdRights", "keys below /quorate/volumes/")
        .await;
    let subjects = some.document["findings"][0]["subjects"].to_string();
    assert!(!subjects.contains("/quorate/nodes/"), "{subjects}");
    etcd.etcdctl_as_root(&[
        "role",
        "grant-permission",
        "--prefix=true",
        USER,
        "readwrite",
        "/quorate/",
    ]);
    let all = user.with(&right).names_first("NoLeader", "election").await;
    assert!(!all.document.to_string().contains("EtcdRights"), "{all:?}");

    let open = TestEtcd::start().await;
    let user = Call::on(&open).with(format!("--etcd-user={USER}")).with(&right);
    let said = user.names_first("EtcdLogIn", "etcd endpoint").await;
    assert!(said.what().contains("authentication is not enabled"), "{said:?}");
}
