//! What is wrong with clocks, and with certificates by their ends.

use std::path::Path;

use super::{Call, FAULTS, WARNINGS, led, sound_etcd};
use crate::support::clock;
use crate::support::etcd::{EtcdVersion, TestEtcd};

/// Runs a command of `quorate ca` by a clock that is off by this.
async fn ca_at(offset: &str, args: &[&str]) {
    let args = [&["ca"][..], args].concat();
    clock::quorate_off_by(offset, args).await.expect_done();
}

#[tokio::test]
async fn a_clock_that_is_off_by_minutes_is_named_and_one_that_is_off_by_seconds_is_not() {
    let etcd = sound_etcd(1, &[]).await;
    let _replica = led(&etcd).await;
    let call = Call::on(&etcd);
    call.finds_nothing().await;
    call.clone().off_by("+2s").finds_nothing().await;
    let endpoint = etcd.endpoints_flag();
    for (offset, words) in [("+10m", " s behind that of"), ("-10m", " s ahead of that of")] {
        let said = call
            .clone()
            .off_by(offset)
            .names_first("ClocksDiffer", &endpoint)
            .await;
        assert_eq!(said.code, WARNINGS);
        assert!(said.what().contains(words), "{said:?}");
        assert_eq!(said.findings().len(), 1, "{said:?}");
    }
    call.finds_nothing().await;
}

#[tokio::test]
async fn a_client_certificate_that_ends_soon_or_has_ended_is_named_before_what_follows_from_it() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).display().to_string();
    let (ca, given) = (place("ca"), place("client"));
    // Old enough for what it has issued to have ended.
    ca_at("-10d", &["init", "-o", &ca]).await;
    let ca_dir = format!("--ca-dir={ca}");
    let etcd = TestEtcd::of_authority(EtcdVersion::Next, &ca).await;
    let _replica = led(&etcd).await;
    let authority = etcd.tls.as_ref().unwrap().ca.display().to_string();
    let call = Call::on(&etcd)
        .with(format!("--etcd-cacert={authority}"))
        .with(format!("--etcd-cert={given}/client.crt"))
        .with(format!("--etcd-key={given}/client.key"));
    let issue = async |offset: &str, life: &str| {
        let args = ["issue", "etcd-client", &ca_dir, "-o", &given, "--life", life];
        ca_at(offset, &args).await;
    };
    issue("+0s", "8760h").await;
    call.finds_nothing().await;
    issue("+0s", "48h").await;
    let subject = "--etcd-cert";
    let soon = call.names_first("EtcdCertificateEnds", subject).await;
    assert_eq!(soon.code, WARNINGS);
    assert!(soon.what().contains(" ends at "), "{soon:?}");
    issue("-2d", "24h").await;
    let ended = call.names_first("EtcdCertificateEnds", subject).await;
    assert_eq!(ended.code, FAULTS);
    assert!(ended.what().contains(" has ended at "), "{ended:?}");
    assert!(ended.consequences().contains("TLS fails"), "{ended:?}");
    issue("+0s", "8760h").await;
    call.finds_nothing().await;
}

#[tokio::test]
async fn an_authority_that_ends_within_three_months_is_named() {
    let etcd = sound_etcd(1, &[]).await;
    let _replica = led(&etcd).await;
    let call = Call::on(&etcd);
    let of = |ca: &Path| call.with(format!("--ca-dir={}", ca.display()));
    // It is valid for 3650 days.
    for (offset, is_found) in [("-3500d", false), ("-3600d", true)] {
        let ca = etcd.directory().join(offset);
        ca_at(offset, &["init", "-o", ca.to_str().unwrap()]).await;
        match is_found {
            false => _ = of(&ca).finds_nothing().await,
            true => {
                let ends = of(&ca).names_first("AuthorityEnds", "-ca.crt").await;
                assert_eq!(ends.code, WARNINGS);
            }
        }
    }
}
