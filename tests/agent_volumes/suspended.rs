//! An agent that is suspended for longer than its session lasts, as with its machine.

use std::fs;

use super::cluster::{Cluster, NODE};
use super::mounted::mount_lines;
use crate::support::wait::{QUIET, SOON, eventually};
use crate::volumes::world::volume;

#[tokio::test]
async fn the_node_of_a_suspended_agent_is_down_after_its_lease_and_mounts_nothing_twice_when_it_is_back() {
    let mut cluster = Cluster::start_with(&["--session-lease-ms=5000"]).await;
    let volumes = volume("data", "") + &volume("later", "");
    cluster.site.apply(&volumes).await;
    let paths = cluster.publish("data", &[]).await;
    let file = paths.link.join("file");
    fs::write(&file, "text").unwrap();
    let mounted = mount_lines(&paths.home);
    let opened = cluster.agent.metric("quorate_agent_sessions_opened_total").await;
    let pid = cluster.agent.pid();

    cluster.agent.pause();
    cluster.site.shows(NODE, "READY", "no").await;
    // A volume that is in use stays so, and one that is published meanwhile waits.
    assert_eq!(fs::read_to_string(&file).unwrap(), "text");
    cluster.site.done_with(&["publish", "later", NODE]).await;
    let later = paths.link.with_file_name("later");
    assert!(fs::symlink_metadata(&later).is_err(), "no agent has made it");

    cluster.agent.resume();
    cluster.agent.opens_another_session(opened).await;
    cluster.site.shows(NODE, "READY", "yes").await;
    assert_eq!(cluster.agent.pid(), pid, "it is the process that it was");
    eventually(SOON, "the volume that came later is at its path", async || {
        fs::write(later.join("file"), "text")
    })
    .await;
    tokio::time::sleep(QUIET).await;
    let calls = |method: &str| cluster.plugin.calls_of(method).len();
    assert_eq!((calls("NodeStageVolume"), calls("NodePublishVolume")), (2, 2));
    assert_eq!(mount_lines(&paths.home), mounted);
    assert_eq!(fs::read_to_string(&file).unwrap(), "text");

    cluster.site.done_with(&["unpublish", "data", NODE]).await;
    assert_eq!(mount_lines(&paths.home), [""; 0]);
    assert!(fs::symlink_metadata(&paths.link).is_err(), "the path is gone");
}
