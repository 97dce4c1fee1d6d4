//! A user with the one role that docs/operate.md names, on an etcd that may demand more for some requests.

use crate::support::access::PASSWORD;
use crate::support::base::document;
use crate::support::etcd::{TestEtcd, USER};
use crate::support::quorate::{Finished, Launch, quorate_with};
use crate::support::wait::{SOON, eventually};

/// A release of etcd that tells its status to administrators alone hides versions, and `quorate doctor` says what to do.
#[tokio::test]
async fn one_role_suffices_for_a_leader_and_its_work_and_what_etcd_refuses_is_named() {
    let etcd = TestEtcd::with_password("/quorate/", 60).await;
    let file = etcd.directory().join("password");
    std::fs::write(&file, PASSWORD).unwrap();
    let user = [
        format!("--etcd-user={USER}"),
        format!("--etcd-password-file={}", file.display()),
    ];
    let launch = user
        .iter()
        .fold(Launch::on(&etcd), |launch, flag| launch.flag(flag.as_str()));
    let mut replica = launch.start("a");
    replica.wait_leading().await;
    let run = async |args: &[&str], stdin: &str| -> Finished {
        let endpoints = format!("--etcd-endpoints={}", etcd.endpoints_flag());
        let args = args
            .iter()
            .map(ToString::to_string)
            .chain(user.clone())
            .chain([endpoints]);
        quorate_with(args, Some(stdin), &[]).await
    };
    run(&["apply", "-f", "-"], &document("Network", "front", "{}"))
        .await
        .expect_done();
    let delete = ["delete", "network/front", "--yes", "--wait", "--timeout=60s"];
    run(&delete, "").await.expect_done();
    let what = "the member is healthy, and its version is shown unless the doctor says why not";
    let (is_named, doctor) = eventually(SOON, what, async || {
        let doctor = run(&["doctor", "--no-kubernetes", "--output=json"], "").await;
        let is_named = doctor.stdout.contains("does not tell this client its status");
        let members = run(&["get", "members", "--no-headers"], "").await.expect_done();
        match (members.contains(" healthy "), members.contains("<unknown>")) == (true, is_named) {
            true => Ok((is_named, doctor)),
            false => Err(format!("{members}{doctor:?}")),
        }
    })
    .await;
    let version = etcd.etcdctl_as_root(&["version"]);
    // Those of Debian 12, 13 and sid.
    for (release, refuses) in [(" 3.4.23", false), (" 3.5.16", false), (" 3.5.30", true)] {
        if version.contains(release) {
            assert_eq!(is_named, refuses, "{version}{doctor:?}");
        }
    }
}
