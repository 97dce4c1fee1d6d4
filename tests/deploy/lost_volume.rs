//! A member of the bundled etcd that has lost its volume, and the steps of the manual that bring it back, with the work of the kubelet and
//! of the StatefulSet's controller done by hand.

use std::fs;

use quorate_dev::workspace;
use serde_json::Value;
use tokio::time::timeout;

use super::apiserver::apply;
use super::controllers::Cluster;
use super::kustomize::Deploy;
use crate::support::wait::{SOON, eventually};

const OVERLAY: &str = "overlays/bundled-etcd";

/// The member that loses its volume.
const LOST: usize = 1;

/// The commands and settings in each step of the manual, for this member.
fn steps() -> Vec<Vec<String>> {
    let manual = fs::read_to_string(workspace::root().join("docs/operate.md")).unwrap();
    let (_, section) = manual
        .split_once("**A lost volume of the bundled etcd.**")
        .unwrap();
    let (section, _) = section.split_once("\n\n**").unwrap();
    let mut steps: Vec<String> = Vec::new();
    for line in section.lines() {
        if line.starts_with(|first: char| first.is_ascii_digit()) {
            steps.push(line.to_owned());
        } else if let Some(step) = steps.last_mut() {
            *step += &format!(" {}", line.trim());
        }
    }
    let code = |step: &String| {
        let code = step.split('`').skip(1).step_by(2);
        code.map(|code| code.replace("etcd-N", &format!("etcd-{LOST}")))
            .collect()
    };
    steps.iter().map(code).collect()
}

struct Site {
    cluster: Cluster,
    /// As they were last applied.
    objects: Vec<Value>,
}

impl Site {
    /// Runs an etcdctl command of the manual, again while etcd answers that the cluster is unhealthy.
    async fn etcdctl(&self, command: &str) -> String {
        let Cluster { deploy, etcd, .. } = &self.cluster;
        let words = command.strip_prefix("etcdctl ").unwrap().split(' ');
        let words: Vec<String> = words.map(|word| etcd.with_client_addresses(word)).collect();
        let mut args: Vec<&str> = words.iter().map(String::as_str).collect();
        args.push("--command-timeout=60s");
        eventually(SOON, command, async || {
            let done = etcd.etcdctl(deploy, Some("client"), &args).output().unwrap();
            let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
            match done.status.success() {
                true => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
                false if stderr.contains("unhealthy cluster") => Err(stderr),
                false => panic!("{command}: {stderr}"),
            }
        })
        .await
    }

    /// Sets a flag of etcd in the StatefulSet, and applies that.
    async fn set(&mut self, setting: &str) {
        let Cluster {
            deploy, kubernetes, ..
        } = &self.cluster;
        let file = deploy.folder(OVERLAY).join("etcd-statefulset.yaml");
        let text = fs::read_to_string(&file).unwrap();
        let (flag, _) = setting.split_once('=').unwrap();
        let set = |line: &str| match line.split_once(&format!("- {flag}=")) {
            Some((indent, _)) => format!("{indent}- {setting}\n"),
            None => format!("{line}\n"),
        };
        fs::write(&file, text.lines().map(set).collect::<String>()).unwrap();
        apply(kubernetes, deploy, OVERLAY).await;
        self.objects = deploy.objects(OVERLAY);
        let applied = self.objects.iter().map(Value::to_string).collect::<String>();
        assert!(applied.contains(setting), "{applied}");
    }

    /// Restarts members with the flags that were last applied, each once the one before is ready.
    async fn roll_out(&mut self, members: &[usize]) {
        for &member in members {
            let Cluster { deploy, etcd, .. } = &mut self.cluster;
            etcd.member(member).stop(SOON).await.unwrap();
            etcd.start_member(deploy, &self.objects, member);
            etcd.expect_ready(&self.objects, member).await;
        }
    }

    /// Restarts the container of the lost member twice, and checks that it ends each time: also on what the first one has left on the
    /// volume.
    async fn restart_in_vain(&mut self) {
        for _ in 0..2 {
            let Cluster { deploy, etcd, .. } = &mut self.cluster;
            etcd.start_member(deploy, &self.objects, LOST);
            let member = etcd.member(LOST);
            if timeout(SOON, member.exited()).await.is_err() {
                panic!("it runs:\n{}", member.last_lines());
            }
        }
    }

    /// The members that run, by etcd.
    async fn started(&self) -> usize {
        let list = self.etcdctl("etcdctl member list").await;
        list.matches(", started, ").count()
    }
}

#[tokio::test]
async fn a_member_that_lost_its_volume_comes_back_by_the_steps_of_the_manual_while_replicas_go_on() {
    let steps = steps();
    let [remove, existing, empty, add, new] = &steps[..] else {
        panic!("{steps:#?}");
    };
    let cluster = Cluster::start(Deploy::prepared()).await;
    let objects = cluster.deploy.objects(OVERLAY);
    let mut site = Site { cluster, objects };
    let mut pods = [
        site.cluster.start_pod("quorate-0", &[]).await,
        site.cluster.start_pod("quorate-1", &[]).await,
    ];
    site.etcdctl("etcdctl put before kept").await;
    let Cluster { deploy, etcd, .. } = &mut site.cluster;
    etcd.lose_volume(deploy, LOST).await;
    site.restart_in_vain().await;
    site.cluster.expect_restored().await;

    let [list, remove] = &remove[..] else {
        panic!("{remove:?}")
    };
    let members = site.etcdctl(list).await;
    let name = format!("quorate-etcd-{LOST}");
    let lost = members.lines().find(|line| line.contains(&name)).unwrap();
    let (id, _) = lost.split_once(',').unwrap();
    site.etcdctl(&remove.replace("ID", id)).await;
    // The kubelet knows nothing of it.
    site.restart_in_vain().await;

    site.set(&existing[0]).await;
    // The last one first; then that of the lost volume is not ready.
    site.roll_out(&[2]).await;
    site.restart_in_vain().await;

    assert!(
        empty[0].contains(&format!("delete pvc/data-{name} pod/{name}")),
        "{empty:?}"
    );
    let Cluster { deploy, etcd, .. } = &mut site.cluster;
    etcd.lose_volume(deploy, LOST).await;
    site.restart_in_vain().await;

    site.etcdctl(&add[0]).await;
    let Cluster { deploy, etcd, .. } = &mut site.cluster;
    etcd.start_member(deploy, &site.objects, LOST);
    etcd.expect_ready(&site.objects, LOST).await;
    site.roll_out(&[0]).await;
    assert_eq!(site.started().await, 3);

    site.set(new.last().unwrap()).await;
    site.roll_out(&[2, 1, 0]).await;
    assert!(site.etcdctl("etcdctl get before").await.contains("kept"));
    for pod in &mut pods {
        pod.expect_page("/readyz").await;
    }
    site.cluster.expect_restored().await;

    // It never comes back by itself as a voter without memory.
    let Cluster { deploy, etcd, .. } = &mut site.cluster;
    etcd.lose_volume(deploy, LOST).await;
    site.restart_in_vain().await;
    for pod in pods {
        pod.stop().await;
    }
}
