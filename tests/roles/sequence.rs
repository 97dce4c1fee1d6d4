//! What lies between the request to demote a node and its role: requests, one after the other.

use std::time::{Duration, Instant};

use prost::Message;
use quorate::etcd::{Event, KeyRange, Revision, Watched, Watcher};
use quorate::grpc_code::Code;
use quorate::proto::{Node, Role};
use quorate::roles::controller::Settings;
use quorate::store::Store;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::crashes::FLAGS;
use super::leader::Leader;
use super::world::{LONG, World, name};
use crate::support::client::{connect_to, requests_so_far};
use crate::support::proxy::{Network, Proxy};
use crate::support::wait::{QUIET, SOON, eventually, same};

/// How long the way is that a leader has to each member: so long that little else counts.
const WAY: Duration = Duration::from_millis(250);

/// How long the proof in an intent, that roles are not paused, does for the call that follows it (`roles::controller`).
const PROVEN_FOR: Duration = Duration::from_secs(2);

/// Has clients reach each member through a proxy, and the test itself without one.
async fn behind_proxies(world: &mut World) -> Vec<Proxy> {
    let mut proxies = Vec::new();
    for index in 0..world.etcd.members.len() {
        proxies.push(world.etcd.behind_proxy(index).await);
    }
    let members = world.etcd.members.iter();
    world.store.etcd = connect_to(members.map(|member| member.client_url.clone()).collect()).await;
    let mut urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    urls.sort();
    eventually(LONG, "the proxies' addresses are known", async || {
        let members = world.list().await.members;
        let mut listed: Vec<String> = members
            .into_iter()
            .flat_map(|member| member.client_urls)
            .collect();
        listed.sort();
        same(listed, urls.clone())
    })
    .await;
    proxies
}

/// The observed role of a node after this change of it.
fn role_after(change: &Event) -> Role {
    let Event::Put(kv) = change else {
        panic!("it was deleted")
    };
    let status = Node::decode(&*kv.value).unwrap().status;
    status.unwrap_or_default().role()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn between_the_request_to_demote_a_node_and_its_role_lie_seven_requests() {
    let mut world = World::start_with(3, &FLAGS).await;
    let proxies = behind_proxies(&mut world).await;
    // Its leadership is not moved, and the way to the first one stays.
    let victim = match world.raft_leader().await.as_str() {
        "etcd-3" => "etcd-2",
        _ => "etcd-3",
    };
    let keys = world.store.keys.clone();
    let far = Store {
        etcd: connect_to(vec![proxies[0].url()]).await,
        keys: keys.clone(),
    };
    let etcd = far.etcd.clone();
    let leader = Leader::elect_on(far, Settings::default(), JoinSet::new()).await;
    leader
        .wait_metric("quorate_members{kind=\"voter\",health=\"healthy\"}", 3.0)
        .await;
    for proxy in &proxies {
        proxy.set(Network::Delays(WAY));
    }
    let transactions = || requests_so_far(&etcd, "txn", Code::Ok);
    let before = transactions();
    let requested = Instant::now();
    let Revision(at) = world.demote(victim).await;
    let node = KeyRange::key(keys.node(&name(victim)));
    let mut changed = Watcher::new(&world.store.etcd, node, Revision(at + 1));
    // Where a member has halted, the reason why the demotion waits comes before the role.
    let mut seen = Vec::new();
    while seen.last() != Some(&Role::Worker) {
        let change = timeout(SOON, changed.next()).await.expect("the node changes");
        let Watched::Events(events) = change else {
            panic!("{change:?}")
        };
        seen.extend(events.iter().map(role_after));
    }
    let reasons = (seen.len() - 1) as f64;
    let took = requested.elapsed();
    // The news of the request; a read and a list; the intent, and beside it a read and a list; the removal; the list of another
    // voter; the result.
    let ways = took.as_secs_f64() / WAY.as_secs_f64();
    assert!(ways >= 14.0, "{ways} times the way to etcd");
    for proxy in &proxies {
        proxy.set(Network::Passes);
    }
    let mut made = transactions();
    eventually(SOON, "the last transaction is answered", async || {
        // An answer that is on its way shows itself in it.
        tokio::time::sleep(QUIET / 6).await;
        let last = std::mem::replace(&mut made, transactions());
        same(last, made)
    })
    .await;
    // The intent and the result, and reasons. Another proof that roles are not paused is a request more, and needed only where a
    // machine has halted for long: the intent is four ways old at the call, beside what the whole took longer than its 14 ways.
    let halted = took.saturating_sub(14 * WAY);
    let timeout = Settings::default().member_timeout;
    assert!(
        seen.len() == 1 || halted >= timeout - 2 * WAY,
        "{seen:?} within {took:?}"
    );
    let proofs = if 4 * WAY + halted < PROVEN_FOR { 0.0 } else { 1.0 };
    let made = made - before;
    assert!(
        (2.0..=2.0 + proofs + reasons).contains(&made),
        "{made} transactions in {ways} times the way to etcd"
    );
    leader.resign().await;
}
