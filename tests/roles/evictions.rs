//! Members whose nodes are gone, and members without a record.

use prost::Message;
use quorate::etcd::{KeyRange, Txn};
use quorate::proto::task_status::State;
use quorate::proto::{
    Metadata, NodeCertificate, RemovedNode, Role, Task, TaskSpec, TaskStatus, node_certificate,
};
use quorate::store::{Keys, Store};

use super::leader::Leader;
use super::world::{LONG, World, name, node};
use crate::support::client::{commit, config, connect_with};
use crate::support::etcd::{PASSWORD, TestEtcd, USER};
use crate::support::quorate::{Launch, quorate_on};
use crate::support::wait::{SOON, eventually, same};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_node_is_gone_is_evicted_and_one_without_a_record_stays() {
    let world = World::unmanaged(3, &[]).await;
    for of in ["etcd-1", "etcd-3"] {
        world.adopt(of, world.id_of(of).await).await;
    }
    let mut leader = world.leader().await;
    let note = leader.wait_notice("UnmanagedMember").await;
    let unmanaged = world.id_of("etcd-2").await.to_string();
    assert!(note.contains(&unmanaged), "{note}");
    world.remove_node("etcd-3").await;
    world.wait_voters(&["etcd-1", "etcd-2"]).await;
    world.wait_records(&["etcd-1"]).await;
    // The member without a record counts for the quorum and is left alone.
    for (sample, value) in [
        ("quorate_members_unmanaged", 1.0),
        ("quorate_removed_nodes", 1.0),
        ("quorate_members{kind=\"voter\",health=\"healthy\"}", 2.0),
        (
            "quorate_role_transitions_total{from=\"voter\",to=\"none\",result=\"done\"}",
            1.0,
        ),
    ] {
        leader.wait_metric(sample, value).await;
    }
    leader.resign().await;
}

/// Waits until exactly these members say in their records that they are not evicted for this reason.
async fn wait_evictions_blocked(world: &World, blocked: &[&str], reason: &str) {
    for member in world.list().await.members {
        let wanted: &[_] = match blocked.contains(&member.name.as_str()) {
            true => &[("EvictionBlocked".to_owned(), reason.to_owned())],
            false => &[],
        };
        eventually(LONG, &format!("the record of {}", member.name), async || {
            let record = world.member(member.id).await.expect("the record stays");
            let conditions = record.conditions.into_iter();
            same(
                conditions.map(|c| (c.r#type, c.reason)).collect(),
                wanted.to_vec(),
            )
        })
        .await;
    }
}

/// INV-12: etcd's operators and their scripts delete keys by mistake.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_whose_keys_are_merely_gone_keep_their_members_until_they_are_back_or_recorded_as_removed() {
    const ALL: [&str; 5] = ["etcd-1", "etcd-2", "etcd-3", "etcd-4", "etcd-5"];
    let world = World::start(5).await;
    let mut leader = world.leader().await;
    let before = world.list().await;
    let keys = &world.store.keys;
    for missing in [&ALL[1..4], &ALL[..]] {
        let txn = missing
            .iter()
            .fold(Txn::new(), |txn, of| txn.delete(&keys.node(&name(of))));
        world.commit(txn).await;
        wait_evictions_blocked(&world, missing, "NodeMissing").await;
        assert_eq!(world.list().await.members, before.members);
        let note = leader.wait_notice("RoleChangeBlocked").await;
        assert!(
            note.contains("NodeMissing: its node has no record of removal"),
            "{note}"
        );
        let back = missing.iter().fold(Txn::new(), |txn, of| {
            let value = node(of, Role::Manager, Role::Manager).encode_to_vec();
            txn.put(&keys.node(&name(of)), value)
        });
        world.commit(back).await;
        wait_evictions_blocked(&world, &[], "").await;
    }
    // Another node of the name proves nothing either.
    let mut other = node("etcd-5", Role::Manager, Role::Manager);
    other.metadata.get_or_insert_default().uid = "of-another-machine".to_owned();
    world
        .commit(Txn::new().put(&keys.node(&name("etcd-5")), other.encode_to_vec()))
        .await;
    wait_evictions_blocked(&world, &["etcd-5"], "NodeMissing").await;
    assert_eq!(world.list().await.members, before.members);
    let removed = RemovedNode::default().encode_to_vec();
    world
        .commit(Txn::new().put(&keys.removed("uid-of-etcd-5"), removed))
        .await;
    world.wait_voters(&ALL[..4]).await;
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_member_is_evicted_while_no_recorded_member_has_a_node() {
    let world = World::start(3).await;
    let mut leader = world.leader().await;
    let before = world.list().await;
    let removed = before.members.iter().fold(Txn::new(), |txn, member| {
        let uid = format!("uid-of-{}", member.name);
        txn.put(
            &world.store.keys.removed(&uid),
            RemovedNode::default().encode_to_vec(),
        )
    });
    world
        .commit(removed.delete_range(&world.store.keys.nodes()))
        .await;
    wait_evictions_blocked(&world, &["etcd-1", "etcd-2", "etcd-3"], "NodesMissing").await;
    assert_eq!(world.list().await.members, before.members);
    let note = leader.wait_notice("RoleChangeBlocked").await;
    assert!(
        note.contains("NodesMissing: no recorded member has an existing node"),
        "{note}"
    );
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_prefix_evicts_no_member() {
    let world = World::start(3).await;
    let before = world.list().await;
    let leader = Leader::elect_below(&world.etcd, "/elsewhere").await;
    // The leader has surveyed the members, and has a record of none.
    leader.wait_metric("quorate_members_unmanaged", 3.0).await;
    assert_eq!(world.list().await.members, before.members);
    let (left, _) = world
        .store
        .etcd
        .list(&KeyRange::prefix("/elsewhere/members"))
        .await
        .unwrap();
    assert!(left.is_empty());
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_read_of_the_nodes_evicts_no_member_and_is_reported() {
    // The user may read the records of members and write as a leader does, but not see the nodes.
    let etcd = TestEtcd::with_password("/quorate/members/", 300).await;
    for prefix in ["/quorate/kubernetes/", "/quorate/joins/"] {
        etcd.etcdctl_as_root(&[
            "role",
            "grant-permission",
            "--prefix=true",
            USER,
            "readwrite",
            prefix,
        ]);
    }
    let mut config = config(etcd.endpoints());
    let file = etcd.directory().join("password");
    std::fs::write(&file, PASSWORD).unwrap();
    config.user = Some((USER.to_owned(), file));
    let store = Store {
        etcd: connect_with(config).await,
        keys: Keys::new("/quorate".parse().unwrap()),
    };
    let list = store.etcd.list_members().await.unwrap();
    let record = quorate::proto::Member {
        node: "etcd-1".to_owned(),
        node_uid: "uid-of-etcd-1".to_owned(),
        ..quorate::proto::Member::default()
    };
    let record = record.encode_to_vec();
    let key = store.keys.member(list.members[0].id);
    commit(&store.etcd, Txn::new().put(&key, record.clone()))
        .await
        .unwrap();
    let settings = quorate::roles::controller::Settings {
        patience: std::time::Duration::from_millis(500),
        ..quorate::roles::controller::Settings::default()
    };
    let mut leader = Leader::elect_on(store.clone(), settings, tokio::task::JoinSet::new()).await;
    leader.wait_notice("NodesUnreadable").await;
    // There is no intent either. This user could have written it; etcd would refuse only the removal.
    let (stored, _) = store.etcd.get(&key).await.unwrap();
    assert_eq!(stored.unwrap().value, record);
    assert_eq!(store.etcd.list_members().await.unwrap().members, list.members);
    leader.resign().await;
}

/// INV-12: nothing limits how long an eviction waits for the record of the removal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_removal_of_a_node_with_a_member_stays_on_record_however_old_its_certificate_is() {
    let world = World::start(3).await;
    let keys = &world.store.keys;
    world.demote("etcd-3").await;
    let uid = "uid-of-etcd-3";
    let record = NodeCertificate {
        node: "etcd-3".to_owned(),
        state: node_certificate::State::Issued.into(),
        latest_not_after: Some(prost_types::Timestamp {
            seconds: jiff::Timestamp::now().as_second() - 30 * 24 * 3600,
            nanos: 0,
        }),
        ..NodeCertificate::default()
    };
    world
        .commit(Txn::new().put(&keys.certificate(uid), record.encode_to_vec()))
        .await;
    let delete = ["delete", "node", "etcd-3", "--yes"];
    quorate_on(&world.etcd, &delete, "").await.expect_done();
    let leader = world.leader().await;
    world.wait_voters(&["etcd-1", "etcd-2"]).await;
    world.wait_records(&["etcd-1", "etcd-2"]).await;
    let removed = world.read(&keys.removed(uid)).await.expect("it is on record");
    assert_eq!(RemovedNode::decode(&*removed.value).unwrap().expires_at, None);
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_nodes_are_forgotten_once_they_expire() {
    let world = World::start(1).await;
    let now = jiff::Timestamp::now();
    let removed = |seconds: Option<i64>| {
        let expires = seconds.map(|seconds| prost_types::Timestamp {
            seconds: now.as_second() + seconds,
            nanos: 0,
        });
        RemovedNode {
            expires_at: expires,
            ..RemovedNode::default()
        }
        .encode_to_vec()
    };
    let mut txn = Txn::new();
    for (uid, expiry) in [
        ("past", Some(-5)),
        ("soon", Some(2)),
        ("later", Some(9999)),
        ("never", None),
    ] {
        txn = txn.put(&world.store.keys.removed(uid), removed(expiry));
    }
    world.commit(txn).await;
    let leader = world.leader().await;
    eventually(SOON, "the expired are gone", async || {
        let (left, _) = world
            .store
            .etcd
            .list(&world.store.keys.all_removed())
            .await
            .unwrap();
        let left: Vec<_> = left
            .iter()
            .map(|kv| String::from_utf8_lossy(&kv.key).into_owned())
            .collect();
        same(
            left,
            vec![
                "/quorate/removed/later".to_owned(),
                "/quorate/removed/never".to_owned(),
            ],
        )
    })
    .await;
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_node_leaves_its_member_evicted_and_all_of_500_tasks_orphaned() {
    let world = World::start(3).await;
    let keys = &world.store.keys;
    let service = name("web");
    for batch in 0..5 {
        let txn = (0..100).fold(Txn::new(), |txn, number| {
            let own = format!("t{}", batch * 100 + number);
            let task = Task {
                metadata: Some(Metadata {
                    name: own.clone(),
                    uid: own.clone(),
                    ..Metadata::default()
                }),
                spec: Some(TaskSpec {
                    service: "web".to_owned(),
                    node: "etcd-3".to_owned(),
                }),
                status: Some(TaskStatus {
                    state: State::Running.into(),
                }),
            };
            txn.put(&keys.task(&service, &name(&own)), task.encode_to_vec())
        });
        world.commit(txn).await;
    }
    let mut replica = Launch::on(&world.etcd).start("a");
    replica.wait_leading().await;
    world.remove_node("etcd-3").await;
    world.wait_voters(&["etcd-1", "etcd-2"]).await;
    eventually(LONG, "all tasks are orphaned", async || {
        let (tasks, _) = world
            .store
            .etcd
            .list(&keys.tasks())
            .await
            .map_err(|error| error.to_string())?;
        let orphaned = tasks.iter().filter(|kv| {
            let task = Task::decode(&*kv.value).unwrap();
            task.status.unwrap_or_default().state() == State::Orphaned
        });
        same((tasks.len(), orphaned.count()), (500, 500))
    })
    .await;
    replica.stop().await.unwrap();
}
