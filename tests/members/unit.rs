//! The unit of docs/recover.md that keeps the settings of a member: what it runs, as systemd runs it.

use tokio::process::Command;
use tokio::time::timeout;

use super::tour::{joined, led};
use super::{Site, free_url};
use crate::support::quorate::binary;
use crate::support::wait::SOON;

const DOCS: &str = include_str!("../../docs/recover.md");

/// What `etcd-settings.service` gives to the shell.
fn script() -> &'static str {
    let script = DOCS.lines().find_map(|line| {
        let quoted = line.strip_prefix("ExecStart=/bin/sh -c '")?;
        quoted.strip_suffix('\'')
    });
    script.expect("docs/recover.md has a unit that runs a shell")
}

#[tokio::test]
async fn the_unit_that_the_docs_show_waits_until_the_member_votes_and_keeps_settings_without_a_cluster() {
    let site = Site::adopted(1).await;
    let _replica = led(&site).await;
    let peer_url = free_url();
    let settings = joined(&site, "n2", &peer_url).await;
    assert!(settings.contains("ETCD_INITIAL_CLUSTER="), "{settings}");
    let directory = site.etcd.directory();
    let file = directory.join("etcd.env");
    std::fs::write(&file, &settings).unwrap();
    let _etcd = site.start_etcd("n2", &settings);
    let mut unit = Command::new("/bin/sh");
    let limit = format!("--timeout {}s", SOON.as_secs());
    let script = script().replace("--timeout 10m", &limit);
    assert!(
        script.contains(&limit),
        "what it runs ends with the test: {script}"
    );
    let script = script.replace("/etc/", &format!("{}/", directory.display()));
    let folder = binary().parent().unwrap().display().to_string();
    unit.args(["-c", &script])
        .env_clear()
        .env("PATH", format!("{folder}:/usr/bin:/bin"))
        .env("NODE", "n2")
        .env("PEER_URL", &peer_url)
        .env("QUORATE_ETCD_ENDPOINTS", site.etcd.endpoints().join(","))
        .kill_on_drop(true);
    let ended = timeout(2 * SOON, unit.output()).await.expect("it ends").unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let kept = std::fs::read_to_string(&file).unwrap();
    assert!(kept.contains("ETCD_NAME="), "{kept}");
    assert!(!kept.contains("ETCD_INITIAL_CLUSTER="), "{kept}");
}
