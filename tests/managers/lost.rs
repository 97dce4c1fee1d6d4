//! Data that is lost: nothing starts, an operator reads why, and `quorate replace` brings the member back as another one.

use std::fs;

use super::site::Managers;
use crate::support::etcd::EtcdVersion;
use crate::support::wait::{QUIET, SOON, eventually};

async fn shows_data_lost(managers: &Managers, name: &str, expected: bool) {
    let what = format!("{name} shows DataLost: {expected}");
    eventually(SOON, &what, async || {
        let described = managers.run(&["describe", "node", name]).await.expect_done();
        match described.contains("DataLost") == expected {
            true => Ok(()),
            false => Err(described),
        }
    })
    .await;
}

/// Three voters, of which n3 has ended and lost the files of these names.
async fn without_the_data_of_n3(
    version: EtcdVersion,
    lost: &[&str],
) -> (Managers, [super::site::Manager; 2]) {
    let managers = Managers::of(version, &[], |launch| launch).await;
    let n2 = managers.worker("n2").await;
    let mut n3 = managers.worker("n3").await;
    managers.voter(&n2).await;
    managers.voter(&n3).await;
    n3.kill().await.unwrap();
    n3.rests().await;
    for name in lost {
        let path = n3.state.join(name);
        match path.is_dir() {
            true => fs::remove_dir_all(&path).unwrap(),
            false => fs::remove_file(&path).unwrap(),
        }
    }
    managers.relaunch(&mut n3, &["--etcd-ends-with-agent"]);
    (managers, [n2, n3])
}

#[tokio::test]
async fn a_wiped_data_directory_starts_nothing_and_a_replacement_brings_the_member_back() {
    a_wiped_member_is_replaced(EtcdVersion::Installed).await;
}

#[tokio::test]
async fn a_wiped_member_of_the_next_etcd_is_replaced_as_well() {
    a_wiped_member_is_replaced(EtcdVersion::Next).await;
}

async fn a_wiped_member_is_replaced(version: EtcdVersion) {
    let (managers, [_n2, mut n3]) = without_the_data_of_n3(version, &["etcd"]).await;
    let before = managers.votes("n3").await;
    n3.logs("DataLost").await;
    shows_data_lost(&managers, "n3", true).await;
    let page = n3.get("/readyz?verbose").await.unwrap();
    assert!(page.body.contains("quorate replace n3"), "{}", page.body);
    tokio::time::sleep(QUIET).await;
    assert_eq!(n3.etcd(), None);
    assert!(!n3.data().exists(), "nothing was started on it");

    managers.done_with(&["replace", "n3", "--yes"]).await;
    assert_ne!(managers.votes("n3").await, before);
    n3.serves().await;
    managers.counts(3).await;
    shows_data_lost(&managers, "n3", false).await;
}

#[tokio::test]
async fn a_disk_that_lost_the_note_as_well_starts_nothing_either() {
    let (managers, [_n2, mut n3]) =
        without_the_data_of_n3(EtcdVersion::Installed, &["etcd", "etcd.json"]).await;
    n3.logs("DataLost").await;
    shows_data_lost(&managers, "n3", true).await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(n3.etcd(), None);
    managers.done_with(&["replace", "n3", "--yes"]).await;
    n3.serves().await;
}

#[tokio::test]
async fn a_lost_note_is_written_again_where_the_data_is_that_of_the_member() {
    let (managers, [_n2, n3]) = without_the_data_of_n3(EtcdVersion::Installed, &["etcd.json"]).await;
    let before = managers.votes("n3").await;
    n3.serves().await;
    assert_eq!(managers.votes("n3").await, before);
    assert!(n3.state.join("etcd.json").exists());
}

#[tokio::test]
async fn the_data_of_another_member_starts_nothing_and_stays() {
    let managers = Managers::start().await;
    let n2 = managers.worker("n2").await;
    let mut n3 = managers.worker("n3").await;
    let other = managers.voter(&n2).await;
    managers.demote("n2").await;
    eventually(SOON, "its data is set aside", async || {
        n2.aside(other).pop().ok_or("it is not")
    })
    .await;
    let foreign = n2.aside(other).pop().unwrap();
    fs::rename(&foreign, n3.data()).unwrap();
    managers.promote("n3").await;
    eventually(SOON, "it says so", async || {
        let page = n3.get("/readyz?verbose").await.unwrap();
        match page.body.contains("move it away") {
            true => Ok(()),
            false => Err(page.body),
        }
    })
    .await;
    assert_eq!(n3.etcd(), None);
    // An operator has moved it away.
    fs::rename(n3.data(), &foreign).unwrap();
    managers.votes("n3").await;
    n3.logs("started etcd").await;
}
