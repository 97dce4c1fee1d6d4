//! The etcd of the overlay `bundled-etcd`, run on this machine with exactly its flags and certificates.

use std::process::Command;
use std::time::Duration;

use quorate::dev::process::{Program, Supervised, find_on_path};
use quorate::dev::{http, ports};
use serde_json::Value;

use super::kustomize::{Deploy, run};

const MEMBERS: usize = 3;

/// Ports of 127.0.0.1 that stand for the pods' addresses.
#[derive(Clone, Copy)]
struct Ports {
    client: u16,
    peer: u16,
    metrics: u16,
}

/// The flags of the StatefulSet, with this machine's addresses and folders in the place of the pods'.
fn flags(deploy: &Deploy, container: &Value, member: usize, ports: &[Ports]) -> Vec<String> {
    let tls = deploy.folder("overlays/bundled-etcd").join("tls");
    let own = ports[member];
    let mut flags = Vec::new();
    for flag in container["args"].as_array().unwrap() {
        let mut flag = flag
            .as_str()
            .unwrap()
            .replace("$(POD_NAME)", &format!("quorate-etcd-{member}"))
            .replace("0.0.0.0:2379", &format!("127.0.0.1:{}", own.client))
            .replace("0.0.0.0:2380", &format!("127.0.0.1:{}", own.peer))
            .replace("0.0.0.0:2381", &format!("127.0.0.1:{}", own.metrics))
            .replace(
                "/var/lib/etcd",
                &deploy.folder(&format!("data-{member}")).display().to_string(),
            )
            .replace("/etc/etcd/tls/tls.", &tls.join("member.").display().to_string())
            .replace("/etc/etcd/tls/ca.crt", &tls.join("ca.crt").display().to_string());
        for (other, ports) in ports.iter().enumerate() {
            let name = format!("quorate-etcd-{other}.quorate-etcd.quorate-system.svc");
            flag = flag
                .replace(&format!("{name}:2379"), &format!("127.0.0.1:{}", ports.client))
                .replace(&format!("{name}:2380"), &format!("127.0.0.1:{}", ports.peer));
        }
        assert!(
            !flag.contains("quorate-system"),
            "an address was left over: {flag}"
        );
        flags.push(flag);
    }
    flags
}

fn etcdctl(deploy: &Deploy, certificate: Option<&str>, ports: &[Ports], args: &[&str]) -> Command {
    let tls = deploy.folder("overlays/bundled-etcd").join("tls");
    let endpoints: Vec<String> = ports
        .iter()
        .map(|ports| format!("https://127.0.0.1:{}", ports.client))
        .collect();
    let mut command = Command::new("etcdctl");
    command
        .env("ETCDCTL_API", "3")
        .arg(format!("--endpoints={}", endpoints.join(",")))
        .arg(format!("--cacert={}", tls.join("ca.crt").display()))
        .arg("--command-timeout=3s");
    if let Some(name) = certificate {
        command
            .arg(format!("--cert={}", tls.join(format!("{name}.crt")).display()))
            .arg(format!("--key={}", tls.join(format!("{name}.key")).display()));
    }
    command.args(args);
    command
}

async fn answers(port: u16, path: &str) -> Result<(), String> {
    match http::get(port, path).await {
        Ok(response) if response.status == 200 => Ok(()),
        Ok(response) => Err(format!("{path}: {} {}", response.status, response.body)),
        Err(error) => Err(format!("{path}: {error}")),
    }
}

#[tokio::test]
async fn the_bundled_etcd_forms_a_cluster_that_only_its_own_certificates_open() {
    let deploy = Deploy::prepared();
    let objects = deploy.objects("overlays/bundled-etcd");
    let stateful_set = objects
        .iter()
        .find(|object| object["kind"] == "StatefulSet")
        .unwrap();
    assert_eq!(stateful_set["spec"]["replicas"], MEMBERS);
    let container = &stateful_set["spec"]["template"]["spec"]["containers"][0];
    let ports: Vec<Ports> = (0..MEMBERS)
        .map(|_| Ports {
            client: ports::free_port().unwrap(),
            peer: ports::free_port().unwrap(),
            metrics: ports::free_port().unwrap(),
        })
        .collect();
    let mut members: Vec<Supervised> = (0..MEMBERS)
        .map(|member| {
            let program = Program {
                name: format!("etcd {member}"),
                path: find_on_path("etcd").expect("etcd is installed (Debian package etcd-server)"),
                args: flags(&deploy, container, member, &ports)
                    .into_iter()
                    .map(Into::into)
                    .collect(),
                env: Vec::new(),
                hidden_env: "ETCD_",
                log: deploy.folder(&format!("etcd-{member}.log")),
            };
            program.start().unwrap()
        })
        .collect();

    for (member, ports) in members.iter_mut().zip(&ports) {
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            let probe = &container[probe]["httpGet"];
            assert_eq!(probe["port"], "metrics");
            let path = probe["path"].as_str().unwrap();
            let limit = Duration::from_secs(60);
            member
                .wait_until(limit, || answers(ports.metrics, path))
                .await
                .unwrap_or_else(|error| panic!("{error}"));
        }
    }
    let list = run(&mut etcdctl(&deploy, Some("client"), &ports, &["member", "list"]));
    assert_eq!(list.matches("started").count(), MEMBERS, "{list}");
    run(&mut etcdctl(&deploy, Some("client"), &ports, &["put", "a", "b"]));

    let refused = etcdctl(&deploy, None, &ports, &["get", "a"]).output().unwrap();
    assert!(
        !refused.status.success(),
        "a client without a certificate came in"
    );
    for member in &mut members {
        member.stop(Duration::from_secs(10)).await.unwrap();
    }
}

#[test]
fn certificates_can_be_renewed_under_the_same_authority() {
    let deploy = Deploy::prepared();
    let folder = deploy.folder("overlays/bundled-etcd");
    let read = |name: &str| std::fs::read_to_string(folder.join("tls").join(name)).unwrap();
    let (authority, member) = (read("ca.crt"), read("member.crt"));
    run(&mut Command::new(folder.join("make-certificates")));
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
