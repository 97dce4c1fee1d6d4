//! With Kubernetes: Events report changes of roles and of membership, and what blocks them.

use quorate::proto::Role;
use quorate::proto::join::Progress;

use super::crashes::FLAGS;
use super::world::{LONG, World};
use crate::support::kubernetes::Kubernetes;
use crate::support::quorate::Launch;
use crate::support::wait::eventually;

/// Type, reason and note of every Event about roles.
async fn role_events(kubernetes: &Kubernetes) -> Vec<[String; 3]> {
    let path = "/apis/events.k8s.io/v1/namespaces/kube-system/events";
    let events = kubernetes.get(path).await.unwrap();
    let all = events["items"].as_array().unwrap().iter();
    all.filter(|event| event["action"] == "ChangeRoles")
        .map(|event| ["type", "reason", "note"].map(|field| event[field].as_str().unwrap().to_owned()))
        .collect()
}

/// A worker asks to join at this address.
async fn refused(world: &World, url: &str) {
    world.desire("n9", Role::Worker).await;
    let request = world.ask_to_join("n9", &[url.to_owned()]).await;
    world.wait_join("n9", &request, Progress::Refused).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_change_refusal_and_block_and_each_unmanaged_member_is_an_event() {
    let (kubernetes, mut world) = tokio::join!(Kubernetes::start(), World::start_with(3, &FLAGS));
    let launch = Launch::on(&world.etcd).kubeconfig(kubernetes.kubeconfig());
    let mut replica = launch.start("a");
    replica.wait_leading().await;

    world.machine("etcd-3").kill().await.unwrap();
    world.demote("etcd-2").await;
    world.wait_blocked("etcd-2", Some("QuorumRisk")).await;
    world.promote("etcd-2").await;
    world.wait_blocked("etcd-2", None).await;
    world.machine("etcd-3").start().await.unwrap();
    let before = world.id_of("etcd-3").await;
    world.demote("etcd-3").await;
    world.wait_role("etcd-3", Role::Worker).await;
    world.tear_down("etcd-3").await;
    world.promote("etcd-3").await;
    world.bring_up("etcd-3").await;
    let after = world.id_of("etcd-3").await;
    let url = format!("http://127.0.0.1:{}", quorate_dev::ports::free_port().unwrap());
    refused(&world, &url).await;
    world
        .etcd
        .etcdctl(&["member", "add", "x", "--learner", &format!("--peer-urls={url}")]);
    let list = world.list().await;
    let unmanaged = list.members.iter().find(|member| member.learner).unwrap().id;
    refused(&world, &url).await;

    let expected = [
        (
            "Warning",
            "RoleChangeBlocked",
            "node etcd-2 cannot change now, QuorumRisk: ".to_owned(),
        ),
        ("Normal", "RoleChanged", "worker now: etcd-3".to_owned()),
        (
            "Normal",
            "MemberRemoved",
            format!("member {before} of node etcd-3 was removed"),
        ),
        ("Normal", "RoleChanged", "manager now: etcd-3".to_owned()),
        (
            "Normal",
            "MemberAdded",
            "node etcd-3 joins as a learner".to_owned(),
        ),
        (
            "Normal",
            "MemberPromoted",
            format!("member {after} of node etcd-3 votes"),
        ),
        (
            "Warning",
            "JoinRefused",
            "node n9 does not join, refused by rule NotAManager: ".to_owned(),
        ),
        (
            "Warning",
            "UnmanagedMember",
            format!("member {unmanaged} belongs to no node"),
        ),
    ];
    eventually(LONG, "the Events are there", async || {
        let events = role_events(&kubernetes).await;
        let missing: Vec<_> = expected
            .iter()
            .filter(|(kind, reason, part)| {
                !events
                    .iter()
                    .any(|[k, r, note]| k == kind && r == reason && note.contains(part))
            })
            .collect();
        match missing[..] {
            [] => Ok(()),
            _ => Err(format!("{missing:?} are missing in {events:#?}")),
        }
    })
    .await;
    replica.stop().await.unwrap();
}
