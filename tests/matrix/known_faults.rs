//! `quorate run` and `quorate status` name known faults of the etcd that runs. For `quorate doctor`: `doctor::care`.

use quorate::etcd::members::known_faults::{faults, parse};
use serde_json::Value;

use crate::support::access::Access;
use crate::support::base::Base;
use crate::support::etcd::{EtcdVersion, TestEtcd};
use crate::support::proxy::Network;
use crate::support::quorate::Launch;
use crate::support::wait::{QUIET, SOON, eventually, same, stays};

/// Debian 12 has 3.4.23.
#[tokio::test]
async fn an_etcd_with_a_known_fault_is_named_at_the_start_of_a_replica_and_in_the_status() {
    for access in [Access::Plain, Access::Password, Access::Tls] {
        let site = Base::on(TestEtcd::that_demands(access, EtcdVersion::Installed, 1, &[]).await).await;
        let version = release_of(&site.etcd);
        let found: Vec<_> = faults(parse(&version).unwrap(), 1).collect();
        let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let are_all = |text: &str| json(text)["knownFaults"].as_array().unwrap().len() == found.len();
        let json = json(&site.shows(&["status", "-o", "json"], are_all).await);
        let shown = json["knownFaults"].as_array().unwrap();
        let is_said = |text: &str| text.matches("Known fault:").count() == found.len().min(1);
        let text = site.shows(&["status"], is_said).await;
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

/// The release, as etcd says it.
fn release_of(etcd: &TestEtcd) -> String {
    let version = etcd.etcdctl(&["version"]);
    version
        .lines()
        .next()
        .unwrap()
        .rsplit(' ')
        .next()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn a_member_with_a_known_fault_that_does_not_answer_at_the_start_is_named_once_it_does() {
    let mut etcd = TestEtcd::start().await;
    let is_faulty = faults(parse(&release_of(&etcd)).unwrap(), 1).next().is_some();
    // The replica reaches etcd past the proxy, which is where the list of members leads.
    let proxy = etcd.behind_proxy(0).await;
    eventually(SOON, "the list leads to the proxy", async || {
        same(etcd.etcdctl(&["member", "list"]).contains(&proxy.url()), true)
    })
    .await;
    proxy.set(Network::BlackHole);
    let mut replica = Launch::on(&etcd).start("a");
    replica.wait_ready().await;
    stays(QUIET, "the member has said nothing", async || {
        same(replica.log().contains("known fault"), false)
    })
    .await;
    proxy.set(Network::Passes);
    let warning = "with a known fault runs: etcd";
    match is_faulty {
        true => replica.wait_for_log(warning).await,
        false => {
            stays(QUIET, "there is nothing to warn of", async || {
                same(replica.log().contains(warning), false)
            })
            .await;
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
