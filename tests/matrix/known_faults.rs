//! `quorate run` and `quorate status` name known faults of the etcd that runs. For `quorate doctor`: `doctor::care`.

use quorate::etcd::members::known_faults::{faults, parse};
use serde_json::Value;

use crate::support::access::Access;
use crate::support::base::Base;
use crate::support::etcd::{EtcdVersion, TestEtcd};
use crate::support::quorate::Launch;

/// Debian 12 has 3.4.23.
#[tokio::test]
async fn an_etcd_with_a_known_fault_is_named_at_the_start_of_a_replica_and_in_the_status() {
    for access in [Access::Plain, Access::Password, Access::Tls] {
        let site = Base::on(TestEtcd::that_demands(access, EtcdVersion::Installed, 1, &[]).await).await;
        let json: Value = serde_json::from_str(&site.done(&["status", "-o", "json"]).await).unwrap();
        let text = site.done(&["status"]).await;
        let version = site.etcd.etcdctl(&["version"]);
        let version = version.lines().next().unwrap().rsplit(' ').next().unwrap();
        let found: Vec<_> = faults(parse(version).unwrap(), 1).collect();
        let shown = json["knownFaults"].as_array().unwrap();
        assert_eq!(shown.len(), found.len(), "{json:#}");
        assert_eq!(text.matches("Known fault:").count(), found.len().min(1), "{text}");
        let mut replica = Launch::on(&site.etcd).start("a");
        replica.wait_ready().await;
        for (shown, found) in shown.iter().zip(&found) {
            assert_eq!(shown["version"], version);
            assert_eq!(shown["members"], serde_json::json!(["etcd-1"]));
            assert_eq!(shown["source"], found.fault.source);
            assert!(text.contains(found.fault.source), "{text}");
            replica.wait_for_log("with a known fault runs: etcd").await;
            let log = replica.log();
            assert!(
                log.contains(found.fault.source) && log.contains(&found.remedy()),
                "{log}"
            );
        }
        if version == "3.4.23" {
            assert_eq!(found[0].fault.source, "etcd issue 15247");
        }
    }
}

#[tokio::test]
async fn an_etcd_without_a_known_fault_is_not() {
    let site = Base::on(TestEtcd::of(EtcdVersion::Next, 1, &[]).await).await;
    let mut replica = Launch::on(&site.etcd).start("a");
    replica.wait_leading().await;
    let text = site.done(&["status"]).await;
    assert!(!text.contains("Known fault"), "{text}");
    assert!(!replica.log().contains("known fault"), "{}", replica.log());
}
