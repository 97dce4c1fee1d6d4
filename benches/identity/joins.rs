//! From a join to its certificate, and certificates a second.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use etcd_client::{KvClient, Txn, TxnOp};
use futures::future::try_join_all;
use jiff::Timestamp;
use quorate::identity::NodeKey;
use quorate::identity::node::{LIFE, NodeHolder, NodeRole, certificate};
use quorate::identity::request::RequestedKey;
use quorate::proto::node_certificate::State;
use quorate::proto::{CertificateStatusRequest, NodeJoinRequest, RenewRequest, Role};
use tokio::time::sleep;
use tonic::{Code, Request};

use super::Scale;
use super::cluster::{Client, Cluster};
use super::crowd::{self, Member};
use super::measure::{Samples, Table, Unit};
use super::servers::LIMIT;

/// The bytes of a node, of a request for a certificate, and of an issued one, as they are stored.
const NODE: usize = 150;
const REQUEST: usize = 450;
const ISSUED: usize = 1600;

/// After a refusal because too many join at this moment. Replicas let in 50 new nodes a second, one each 20 ms.
const AGAIN: Duration = Duration::from_millis(20);

pub async fn measure(scale: Scale) -> Result<()> {
    let cluster = Cluster::start(1).await?;
    let token = std::fs::read_to_string(&cluster.token_file)?.trim().to_owned();
    let kv = cluster.etcd_client().await?.kv_client();
    let single = one_by_one(&cluster, &kv, &token, scale).await?;
    let bulk = at_once(&cluster, &kv, &token, scale).await?;
    println!("{}", table(&single, &bulk, scale));
    Ok(())
}

/// The times of joins one after the other, and of what they cannot do without.
#[derive(Default)]
struct Single {
    joined: Samples,
    raw: Samples,
}

async fn one_by_one(cluster: &Cluster, kv: &KvClient, token: &str, scale: Scale) -> Result<Single> {
    let mut single = Single::default();
    eprintln!("{} joins one after the other", scale.joins);
    for number in 0..scale.joins {
        let request = join_request(token, format!("one-{number}"))?;
        let target = cluster.target(0, None)?;
        let begun = Instant::now();
        let mut client = Client::new(target.connect().await?);
        join(&mut client, &request).await?;
        single.joined.push_time(begun.elapsed());

        let handshake = cluster.handshake().await?;
        let begun = Instant::now();
        write(kv, &format!("/raw/{number}"), &[NODE, REQUEST]).await?;
        write(kv, &format!("/raw/{number}"), &[ISSUED]).await?;
        single.raw.push_time(handshake + begun.elapsed());
        sleep(AGAIN).await;
    }
    Ok(single)
}

/// Joins and renewals a second, and what is signed and written for a renewal.
#[derive(Default)]
struct Bulk {
    joined: Samples,
    renewed: Samples,
    signed: Samples,
}

async fn at_once(cluster: &Cluster, kv: &KvClient, token: &str, scale: Scale) -> Result<Bulk> {
    let mut bulk = Bulk::default();
    let a_second = |since: Instant| scale.at_once as f64 / since.elapsed().as_secs_f64();
    let members = crowd::members(scale.at_once, &cluster.authority, cluster.id)?;
    cluster.put(&members).await?;
    for round in 1..=scale.bulk_rounds {
        eprintln!("round {round}/{}: {} at once", scale.bulk_rounds, scale.at_once);
        // The rate of new nodes counts from the last second.
        sleep(Duration::from_secs(1)).await;
        let mut joining = Vec::new();
        for number in 0..scale.at_once {
            let client = Client::new(cluster.target(0, None)?.connect().await?);
            joining.push((client, join_request(token, format!("many-{round}-{number}"))?));
        }
        let begun = Instant::now();
        let joins = joining.iter_mut().map(|(client, request)| join(client, request));
        try_join_all(joins).await?;
        bulk.joined.push(a_second(begun));

        let mut renewing = Vec::new();
        for member in &members {
            let client = Client::new(cluster.target(0, Some(member))?.connect().await?);
            renewing.push((client, member, NodeKey::create()?.request()?));
        }
        let begun = Instant::now();
        let renewals = renewing
            .iter_mut()
            .map(|(client, member, csr)| renew(client, member, csr));
        try_join_all(renewals).await?;
        bulk.renewed.push(a_second(begun));

        let begun = Instant::now();
        let signing = renewing
            .iter()
            .map(|(_, member, csr)| sign_and_write(cluster, kv, member, csr));
        try_join_all(signing).await?;
        bulk.signed.push(a_second(begun));
    }
    Ok(bulk)
}

fn table(single: &Single, bulk: &Bulk, scale: Scale) -> Table {
    let mut table = Table::new("Certificates: from the join of a node to its chain");
    let mut row = |what: &str, samples: &Samples, unit| table.row(what, samples, unit, "");
    row(
        "a TLS handshake and the two writes to etcd, raw",
        &single.raw,
        Unit::Millis,
    );
    row(
        "connect, join, certificate received",
        &single.joined,
        Unit::Millis,
    );
    row(
        "the latter over the former",
        &single.joined.per(&single.raw),
        Unit::Times,
    );
    row(
        "all at once: joins to certificates a second",
        &bulk.joined,
        Unit::Count,
    );
    row(
        "all at once: renewals to certificates a second",
        &bulk.renewed,
        Unit::Count,
    );
    row(
        "the same signed and written raw, a second",
        &bulk.signed,
        Unit::Count,
    );
    row(
        "renewals over what was signed and written raw",
        &bulk.renewed.per(&bulk.signed),
        Unit::Times,
    );
    table.note(format!(
        "{} at once, each over a connection of its own that is open before. A replica lets in 50 new nodes and 50 more each second, \
         which bounds the joins; those that it refuses try again after 20 ms. Renewals have no such limit. Raw, the same processor \
         signs (ECDSA P-256) and as many transactions are under way; no call is judged and no other process watches.",
        scale.at_once
    ));
    table
}

fn join_request(token: &str, name: String) -> Result<NodeJoinRequest> {
    Ok(NodeJoinRequest {
        token: token.to_owned(),
        name,
        csr: NodeKey::create()?.request()?,
    })
}

/// Joins, and waits for the certificate.
async fn join(client: &mut Client, request: &NodeJoinRequest) -> Result<()> {
    let uid = loop {
        match client.join(request.clone()).await {
            Ok(joined) => break joined.into_inner().node_uid,
            Err(status) if status.code() == Code::ResourceExhausted => sleep(AGAIN).await,
            Err(status) => return Err(status.into()),
        }
    };
    issued(client, &uid).await
}

/// Waits for the answer to a request.
async fn issued(client: &mut Client, uid: &str) -> Result<()> {
    let mut request = Request::new(CertificateStatusRequest {
        node_uid: uid.to_owned(),
    });
    request.set_timeout(LIMIT);
    let answer = client.certificate_status(request).await?.into_inner();
    ensure!(answer.state() == State::Issued, "{answer:?}");
    Ok(())
}

async fn renew(client: &mut Client, member: &Member, csr: &[u8]) -> Result<()> {
    let request = RenewRequest {
        csr: csr.to_vec(),
        role: Role::Worker.into(),
    };
    client.renew(request).await?;
    issued(client, &member.uid).await
}

/// What a renewal cannot do without: the request, a signature, the answer.
async fn sign_and_write(cluster: &Cluster, kv: &KvClient, member: &Member, csr: &[u8]) -> Result<()> {
    let key = format!("/raw/{}", member.uid);
    write(kv, &key, &[REQUEST]).await?;
    let holder = NodeHolder {
        cluster: cluster.id,
        uid: &member.uid,
        name: member.name.as_str(),
        role: NodeRole::Worker,
    };
    let requested = RequestedKey::read(csr)?;
    let signed = certificate(&cluster.authority, &requested, holder, LIFE, Timestamp::now())?;
    let length = signed.chain_pem.len();
    write(kv, &key, &[length.max(ISSUED)]).await
}

/// One transaction that writes values of these lengths.
async fn write(kv: &KvClient, key: &str, lengths: &[usize]) -> Result<()> {
    let puts = lengths
        .iter()
        .enumerate()
        .map(|(number, length)| TxnOp::put(format!("{key}/{number}"), vec![b'v'; *length], None));
    let written = kv
        .clone()
        .txn(Txn::new().and_then(puts.collect::<Vec<_>>()))
        .await;
    written.context("a raw transaction")?;
    Ok(())
}
