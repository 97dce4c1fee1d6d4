//! Many sessions on one replica: what each costs, and how all of them turn to another one.

use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt as _};
use prost::Message;
use quorate::proto::{Metadata, Node, NodeSpec, NodeStatus, Role};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType,
};
use tonic::transport::Identity;
use uuid::Uuid;

use super::agent::Agent;
use crate::control::site::{Client, Site, control_address};
use crate::support::client::put_all;
use crate::support::quorate::TestReplica;
use crate::support::wait::{SOON, eventually, same};

/// Agents.
const AGENTS: usize = 100;

/// Connections that are made at a time.
const AT_ONCE: usize = 16;

/// Resident memory of the replica for each session, its TLS connection included.
const MOST_MEMORY: usize = 256 << 10;

/// Makes nodes as operators would, with certificates that the authority of the site signs here. Tokens let in fewer at a time.
async fn nodes(site: &Site) -> Vec<Identity> {
    let key = KeyPair::from_pem(&site.authority("node-ca.key")).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&site.authority("node-ca.crt"), key).unwrap();
    let cluster = site.store.etcd.cluster_id().unwrap();
    let (mut identities, mut records) = (Vec::new(), Vec::new());
    for number in 0..AGENTS {
        let (name, uid) = (format!("n{number}"), Uuid::new_v4().to_string());
        let node = Node {
            metadata: Some(Metadata::new(&name, &uid, jiff::Timestamp::now())),
            spec: Some(NodeSpec {
                desired_role: Role::Worker.into(),
                ..NodeSpec::default()
            }),
            status: Some(NodeStatus {
                role: Role::Worker.into(),
                ..NodeStatus::default()
            }),
        };
        records.push((format!("/quorate/nodes/{name}"), node.encode_to_vec()));
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (part, value) in [
            (DnType::CommonName, uid),
            (DnType::OrganizationName, cluster.to_string()),
            (DnType::OrganizationalUnitName, "quorate-worker".to_owned()),
        ] {
            params.distinguished_name.push(part, value);
        }
        let uri = format!("spiffe://{cluster}/node/{name}");
        params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let own = KeyPair::generate().unwrap();
        let signed = params.signed_by(&own, &issuer).unwrap();
        identities.push(Identity::from_pem(signed.pem(), own.serialize_pem()));
    }
    put_all(&site.store.etcd, records.into_iter()).await;
    identities
}

/// Opens a session for each node. A replica that has just started refuses some handshakes: it has too many at a time.
async fn open_all(site: &Site, replica: &mut TestReplica, identities: &[Identity]) -> Vec<Agent> {
    let address = control_address(replica).await;
    let opening = identities.iter().map(async |identity| {
        let endpoint = site.endpoint_at(&address, Some(identity.clone()));
        let mut agent = eventually(SOON, "a session", async || {
            let channel = endpoint.connect().await.map_err(|error| format!("{error:?}"))?;
            let opened = Agent::over(Client::new(channel)).await;
            opened.map_err(|status| status.to_string())
        })
        .await;
        agent.keep_beating_every(Duration::from_secs(3));
        agent
    });
    stream::iter(opening).buffer_unordered(AT_ONCE).collect().await
}

fn resident(replica: &mut TestReplica) -> usize {
    let pid = replica.pid().expect("it runs");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    let kib: usize = line.trim().trim_end_matches(" kB").parse().unwrap();
    kib << 10
}

#[tokio::test]
async fn a_crowd_of_sessions_costs_little_memory_and_turns_to_another_replica_with_its_leases() {
    let site = Site::start().await;
    let launch = site.launch().flag("--session-lease-ms=120000");
    let mut first = launch.start("c1");
    let mut second = launch.start("c2");
    let identities = nodes(&site).await;
    // What the first connection and session need once for all.
    let one = open_all(&site, &mut first, &identities[..1]).await;
    let before = resident(&mut first);
    let begun = Instant::now();
    let agents = open_all(&site, &mut first, &identities[1..]).await;
    eprintln!("{AGENTS} sessions opened in {:?}", begun.elapsed());
    let each = resident(&mut first).saturating_sub(before) / (AGENTS - 1);
    eprintln!("{each} bytes of the replica for each session");
    assert!(each < MOST_MEMORY, "{each} bytes");
    assert_eq!(first.metric("quorate_sessions").await, AGENTS as f64);
    let leases = async || {
        let alive = site.list(&site.store.keys.all_alive()).await;
        alive.into_iter().map(|kv| (kv.key, kv.lease)).collect::<Vec<_>>()
    };
    let held = leases().await;
    assert_eq!(held.len(), AGENTS);
    let heartbeats = async || first.metric("quorate_session_heartbeats_total").await;
    eventually(SOON, "each session has a heartbeat", async || {
        let count = heartbeats().await;
        if count >= AGENTS as f64 {
            Ok(())
        } else {
            Err(count)
        }
    })
    .await;

    first.kill().await.unwrap();
    drop((one, agents));
    let begun = Instant::now();
    let _again = open_all(&site, &mut second, &identities).await;
    eprintln!("{AGENTS} sessions are back after {:?}", begun.elapsed());
    eventually(SOON, "every session is served", async || {
        same(second.metric("quorate_sessions").await, AGENTS as f64)
    })
    .await;
    assert_eq!(leases().await, held, "each goes on with the lease of before");
}
