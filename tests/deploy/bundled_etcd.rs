//! The etcd of the overlay `bundled-etcd`, on this machine with the flags and certificates of the overlay.

use std::path::PathBuf;
use std::process::Command;

use quorate::cli::companion::find_on_path;
use quorate_dev::process::{Program, Supervised};
use quorate_dev::{http, ports};
use serde_json::Value;

use super::kustomize::{Deploy, run};
use crate::support::wait::SOON;

const MEMBERS: usize = 3;

/// The three members as processes.
pub struct BundledEtcd {
    members: Vec<Supervised>,
    ports: Vec<Ports>,
}

/// Ports of 127.0.0.1 that replace the addresses of a pod.
#[derive(Clone, Copy)]
struct Ports {
    client: u16,
    peer: u16,
    metrics: u16,
}

impl BundledEtcd {
    /// Starts the members of the StatefulSet among `objects`, and waits until all its probes succeed.
    pub async fn start(deploy: &Deploy, objects: &[Value]) -> Self {
        let ports: Vec<Ports> = (0..MEMBERS)
            .map(|_| Ports {
                client: ports::free_port().unwrap(),
                peer: ports::free_port().unwrap(),
                metrics: ports::free_port().unwrap(),
            })
            .collect();
        let container = container(objects);
        let members: Vec<Supervised> = (0..MEMBERS)
            .map(|member| start(deploy, container, member, &ports))
            .collect();
        let mut etcd = Self { members, ports };
        for member in 0..MEMBERS {
            etcd.expect_ready(objects, member).await;
        }
        etcd
    }

    /// Waits until all probes of a member succeed.
    pub async fn expect_ready(&mut self, objects: &[Value], member: usize) {
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            let probe = &container(objects)[probe]["httpGet"];
            assert_eq!(probe["port"], "metrics");
            let path = probe["path"].as_str().unwrap();
            let port = self.ports[member].metrics;
            let answered = self.members[member]
                .wait_until(SOON, || answers(port, path))
                .await;
            answered.unwrap_or_else(|error| panic!("{error}"));
        }
    }

    /// Starts a member that has ended, with the flags of the StatefulSet among `objects`, as the kubelet does.
    pub fn start_member(&mut self, deploy: &Deploy, objects: &[Value], member: usize) {
        self.members[member] = start(deploy, container(objects), member, &self.ports);
    }

    /// The process of a member.
    pub fn member(&mut self, member: usize) -> &mut Supervised {
        &mut self.members[member]
    }

    /// Kills a member, and deletes what is on its volume.
    pub async fn lose_volume(&mut self, deploy: &Deploy, member: usize) {
        self.members[member].kill().await.unwrap();
        std::fs::remove_dir_all(volume(deploy, member)).unwrap();
    }

    /// Replaces the members' names in the cluster by their addresses on this machine.
    pub fn with_client_addresses(&self, text: &str) -> String {
        with_addresses(text, &self.ports)
    }

    /// An etcdctl command with a certificate of the overlay, or without one.
    pub fn etcdctl(&self, deploy: &Deploy, certificate: Option<&str>, args: &[&str]) -> Command {
        let tls = deploy.folder("overlays/bundled-etcd").join("tls");
        let file = |name: String| tls.join(name).display().to_string();
        let urls: Vec<String> = self
            .ports
            .iter()
            .map(|ports| format!("https://127.0.0.1:{}", ports.client))
            .collect();
        let mut command = Command::new("etcdctl");
        command
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints={}", urls.join(",")))
            .arg(format!("--cacert={}", file("ca.crt".to_owned())))
            .arg("--command-timeout=3s");
        if let Some(name) = certificate {
            command
                .arg(format!("--cert={}", file(format!("{name}.crt"))))
                .arg(format!("--key={}", file(format!("{name}.key"))));
        }
        command.args(args);
        command
    }

    /// Stops all members in order.
    pub async fn stop(mut self) {
        for member in &mut self.members {
            member.stop(SOON).await.unwrap();
        }
    }
}

/// Replaces the members' names in the cluster by these ports of this machine.
fn with_addresses(text: &str, ports: &[Ports]) -> String {
    let mut text = text.to_owned();
    for (member, ports) in ports.iter().enumerate() {
        let name = format!("quorate-etcd-{member}.quorate-etcd.quorate-system.svc");
        text = text
            .replace(&format!("{name}:2379"), &format!("127.0.0.1:{}", ports.client))
            .replace(&format!("{name}:2380"), &format!("127.0.0.1:{}", ports.peer));
    }
    assert!(
        !text.contains("quorate-system"),
        "an address was not replaced: {text}"
    );
    text
}

/// The container in the StatefulSet among the objects.
fn container(objects: &[Value]) -> &Value {
    let stateful_set = objects.iter().find(|object| object["kind"] == "StatefulSet");
    let spec = &stateful_set.unwrap()["spec"];
    assert_eq!(spec["replicas"], MEMBERS);
    &spec["template"]["spec"]["containers"][0]
}

fn start(deploy: &Deploy, container: &Value, member: usize, ports: &[Ports]) -> Supervised {
    let flags = flags(deploy, container, member, ports);
    let program = Program {
        name: format!("etcd {member}"),
        path: find_on_path("etcd").expect("etcd is installed (Debian package etcd-server)"),
        args: flags.into_iter().map(Into::into).collect(),
        env: Vec::new(),
        hidden_env: "ETCD_",
        log: deploy.folder(&format!("etcd-{member}.log")),
    };
    program.start().unwrap()
}

/// The folder that takes the place of a member's volume.
fn volume(deploy: &Deploy, member: usize) -> PathBuf {
    deploy.folder(&format!("data-{member}"))
}

/// The flags of the StatefulSet for a member, with the addresses and folders of this machine.
fn flags(deploy: &Deploy, container: &Value, member: usize, ports: &[Ports]) -> Vec<String> {
    let tls = deploy.folder("overlays/bundled-etcd").join("tls");
    let own = ports[member];
    let text = |path: PathBuf| path.display().to_string();
    let args = container["args"].as_array().unwrap();
    args.iter()
        .map(|flag| {
            let flag = flag
                .as_str()
                .unwrap()
                .replace("$(POD_NAME)", &format!("quorate-etcd-{member}"))
                .replace("0.0.0.0:2379", &format!("127.0.0.1:{}", own.client))
                .replace("0.0.0.0:2380", &format!("127.0.0.1:{}", own.peer))
                .replace("0.0.0.0:2381", &format!("127.0.0.1:{}", own.metrics))
                .replace("/var/lib/etcd", &text(volume(deploy, member)))
                .replace("/etc/etcd/tls/tls.", &text(tls.join("member.")))
                .replace("/etc/etcd/tls/ca.crt", &text(tls.join("ca.crt")));
            with_addresses(&flag, ports)
        })
        .collect()
}

async fn answers(port: u16, path: &str) -> Result<(), String> {
    match http::get(port, path).await {
        Ok(response) if response.status == 200 => Ok(()),
        Ok(response) => Err(format!("{path}: {} {}", response.status, response.body)),
        Err(error) => Err(format!("{path}: {error}")),
    }
}

#[tokio::test]
async fn the_bundled_etcd_forms_a_cluster_that_needs_a_client_certificate() {
    let deploy = Deploy::prepared();
    let etcd = BundledEtcd::start(&deploy, &deploy.objects("overlays/bundled-etcd")).await;
    let list = run(&mut etcd.etcdctl(&deploy, Some("client"), &["member", "list"]));
    assert_eq!(list.matches("started").count(), MEMBERS, "{list}");
    run(&mut etcd.etcdctl(&deploy, Some("client"), &["put", "a", "b"]));

    let refused = etcd.etcdctl(&deploy, None, &["get", "a"]).output().unwrap();
    assert!(
        !refused.status.success(),
        "etcd accepted a client without a certificate"
    );
    etcd.stop().await;
}

#[tokio::test]
async fn a_peer_port_of_the_bundled_etcd_takes_no_certificate_of_a_client() {
    let deploy = Deploy::prepared();
    let etcd = BundledEtcd::start(&deploy, &deploy.objects("overlays/bundled-etcd")).await;
    let tls = deploy.folder("overlays/bundled-etcd").join("tls");
    let asked_as = |name: &str| {
        let script = format!(
            "printf 'GET /version HTTP/1.0\\r\\n\\r\\n' | \
             openssl s_client -connect 127.0.0.1:{} -CAfile ca.crt -cert {name}.crt -key {name}.key -ign_eof 2>&1",
            etcd.ports[0].peer
        );
        let output = Command::new("sh")
            .args(["-c", &script])
            .current_dir(&tls)
            .output();
        String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
    };
    let member = asked_as("member");
    assert!(member.contains("etcdserver"), "{member}");
    let client = asked_as("client");
    assert!(client.contains("alert bad certificate"), "{client}");
    assert!(!client.contains("etcdserver"), "{client}");
    etcd.stop().await;
}

#[test]
fn certificates_can_be_renewed_under_the_same_authority() {
    let deploy = Deploy::prepared();
    let folder = deploy.folder("overlays/bundled-etcd");
    let read = |name: &str| std::fs::read_to_string(folder.join("tls").join(name)).unwrap();
    let (authority, member) = (read("ca.crt"), read("member.crt"));
    deploy.run_instructions("overlays/bundled-etcd", "quorate ca issue");
    assert_eq!(read("ca.crt"), authority, "old pods trust the new certificates");
    assert_ne!(read("member.crt"), member, "it is a new certificate");
    for (certificate, purpose) in [
        ("member", "sslserver"),
        ("member", "sslclient"),
        ("client", "sslclient"),
    ] {
        run(Command::new("openssl")
            .args(["verify", "-purpose", purpose, "-CAfile", "ca.crt"])
            .arg(format!("{certificate}.crt"))
            .current_dir(folder.join("tls")));
    }
}
