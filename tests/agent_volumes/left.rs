//! What the agent of a removed node leaves mounted.

use std::fs;

use super::cluster::{Cluster, NODE};
use super::mounted::{can_mount, is_mounted, mounted_below};
use crate::volumes::world::volume;

/// To delete the directory would delete the data (INV-12), so the agent says where it is mounted.
#[tokio::test]
async fn the_agent_of_a_removed_node_names_what_it_leaves_mounted() {
    if !can_mount() {
        eprintln!("without root, nothing is mounted");
        return;
    }
    let mut cluster = Cluster::start().await;
    cluster.site.apply(&volume("data", "")).await;
    let paths = cluster.publish("data", &[]).await;
    fs::write(paths.target.join("file"), "text").unwrap();
    let left = mounted_below(&paths.home);
    assert!(left.contains(&paths.target), "{left:?}");
    cluster
        .site
        .done(&["delete", "node", NODE, "--yes", "--force"])
        .await;
    let agent = &mut cluster.agent;
    assert_eq!(agent.ended().await.code(), Some(4), "{}", agent.log());
    let log = agent.log();
    let (_, named) = log.split_once("still mounted:\n").unwrap();
    let named: Vec<&str> = named
        .lines()
        .map_while(|line| line.strip_prefix("    "))
        .collect();
    let left: Vec<&str> = left.iter().map(|path| path.to_str().unwrap()).collect();
    assert_eq!(named, left);
    assert!(log.contains("unmount that first"), "{log}");

    // Another node on the same directory leaves it alone, too.
    agent.stop().await.unwrap();
    fs::remove_file(agent.file()).unwrap();
    agent.launch().unwrap();
    agent.ready().await;
    assert!(is_mounted(&paths.target));
    assert_eq!(fs::read_to_string(paths.target.join("file")).unwrap(), "text");
}
