//! A tombstone whose publications do not fit into one transaction, and a command that was interrupted between two.

use quorate::proto::Tombstone;
use quorate::store::object::Object;

use super::forced::tombstone;
use super::*;

/// Publications of one volume: more than one transaction holds.
const MANY: usize = 150;

/// As an interrupted command leaves it: some publications are there already under this name, without their volume.
async fn put_back_some(world: &World, tombstone: &str, name: &str) {
    let key = world.store.keys.tombstone(&parsed(tombstone));
    let left = world.read(&key).await.unwrap();
    let left = Tombstone::decode(&*left.value).unwrap();
    for publication in &left.publications[..100] {
        let mut publication = publication.clone();
        publication.spec.as_mut().unwrap().volume = name.to_owned();
        let node = parsed(publication.name());
        let key = world.store.keys.publication(&parsed(name), &node);
        world.put(&key, publication.encode_to_vec()).await;
    }
}

/// INV-6: what is put back under one name is left under no other, where it would hold another volume for ever.
#[tokio::test]
async fn a_put_back_that_was_interrupted_is_completed_under_another_name_or_as_a_removal() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&shared_volume("data", "")).await;
    world.publish("data", "n1").await;
    leader.resign().await;
    let publication = world.publication("data", "n1").await.unwrap();
    for number in 0..MANY {
        let node = parsed(&format!("m{number}"));
        let mut publication = publication.clone();
        let metadata = publication.metadata.as_mut().unwrap();
        (metadata.name, metadata.uid) = (node.to_string(), format!("u{number}"));
        let status = publication.status.as_mut().unwrap();
        // No call was made for every other one: nothing of it is removed at the backend.
        status.csi_node_id = match number % 2 {
            0 => String::new(),
            _ => format!("csi-{node}"),
        };
        let key = world.store.keys.publication(&parsed("data"), &node);
        world.put(&key, publication.encode_to_vec()).await;
    }
    let forget = async |name| {
        let forget = ["delete", "volume", name, "--yes", "--force"];
        world.done(&forget).await;
        tombstone(&world).await
    };
    let left = async |name| {
        let range = world.store.keys.publications_of(&parsed(name));
        world.list(&range).await.len()
    };
    let name = forget("data").await;
    put_back_some(&world, &name, "data").await;
    world.apply(&volume("data", "")).await;
    world.done(&["tombstone", "adopt", &name, "--as", "old"]).await;
    assert_eq!((left("data").await, left("old").await), (0, MANY + 1));

    let name = forget("old").await;
    put_back_some(&world, &name, "old").await;
    world.done(&["tombstone", "clean", &name, "--yes"]).await;
    assert_eq!(left("old").await, MANY / 2 + 1);
    let leader = world.leader().await;
    world.expect_gone("old").await;
    world.delete("data").await;
    world.expect_empty_backend().await;
    leader.resign().await;
}
