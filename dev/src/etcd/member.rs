//! A member of an etcd cluster.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Options, Ports, Reached, Record, data_directory, member_name, peer_url};
use crate::observe::sample;
use crate::process::Program;
use crate::proxy::Proxy;
use crate::restartable::Restartable;
use crate::{Error, http};
use quorate::identity::etcd::MEMBER;

/// Limit until a cluster has elected its leader and serves. It takes about a second on an idle machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Limit until a member has stopped. It transfers its leadership first, where it can.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// The last log line of an etcd that was removed from the member list, in every release.
const REMOVED: &str = "data-dir used by this member must be removed";

/// A member, running or not. Dereferences to its [`Restartable`].
#[derive(Debug)]
pub struct Member {
    /// Its name: `etcd-1`, `etcd-2`, …
    pub name: String,
    /// The client URL at which it listens.
    pub client_url: String,
    /// Its peer URL.
    pub peer_url: String,
    /// The proxy at that URL, where [`Options::peer_proxies`] asks for one.
    pub peer_proxy: Option<Proxy>,
    metrics_port: u16,
    process: Restartable,
    pub(super) data: PathBuf,
}

impl Member {
    pub(super) fn describe(
        directory: &Path,
        program: &Path,
        record: &Record,
        index: usize,
        (reached, all_urls): (Reached, &[String]),
        options: &Options,
    ) -> Self {
        let initial_cluster: Vec<String> = all_urls
            .iter()
            .enumerate()
            .map(|(index, url)| format!("{}={url}", member_name(index)))
            .collect();
        let initial = [
            format!("--initial-cluster={}", initial_cluster.join(",")),
            format!("--initial-cluster-token={}", record.token),
        ];
        let ports = record.members[index];
        Self::with_ports(directory, program, index, (ports, reached), initial, options)
    }

    pub(super) fn with_ports(
        directory: &Path,
        program: &Path,
        index: usize,
        (ports, reached): (Ports, Reached),
        initial: impl IntoIterator<Item = String>,
        options: &Options,
    ) -> Self {
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        let name = member_name(index);
        let client_url = format!("{scheme}://127.0.0.1:{}", ports.client);
        let advertised = options.advertised.get(index).unwrap_or(&client_url);
        let listen_peer_url = peer_url(ports, options);
        let peer_url = reached.url;
        let mut args = vec![
            format!("--name={name}"),
            format!("--data-dir={}", data_directory(directory, index).display()),
            format!("--listen-client-urls={client_url}"),
            format!("--advertise-client-urls={advertised}"),
            format!("--listen-peer-urls={listen_peer_url}"),
            format!("--initial-advertise-peer-urls={peer_url}"),
            format!("--listen-metrics-urls=http://127.0.0.1:{}", ports.metrics),
            // 3.4 has another default.
            "--logger=zap".to_owned(),
            "--log-outputs=stderr".to_owned(),
        ];
        if let Some(tls) = &options.tls {
            args.push(format!("--cert-file={}", tls.server.cert.display()));
            args.push(format!("--key-file={}", tls.server.key.display()));
            args.push(format!("--trusted-ca-file={}", tls.ca.display()));
            args.push(format!("--client-cert-auth={}", tls.client_certificates));
        }
        if let Some(tls) = &options.peer_tls {
            args.push(format!("--peer-cert-file={}", tls.member.cert.display()));
            args.push(format!("--peer-key-file={}", tls.member.key.display()));
            args.push(format!("--peer-trusted-ca-file={}", tls.ca.display()));
            args.push("--peer-client-cert-auth".to_owned());
            args.push(format!("--peer-cert-allowed-cn={MEMBER}"));
        }
        args.extend(initial);
        args.extend(options.flags.iter().cloned());
        let program = Program {
            name: name.clone(),
            path: program.to_owned(),
            args: args.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            hidden_env: "ETCD_",
            log: directory.join(format!("{name}.log")),
        };
        Self {
            name,
            client_url,
            peer_url,
            peer_proxy: reached.proxy,
            metrics_port: ports.metrics,
            data: data_directory(directory, index),
            process: Restartable::new(program, STOP_LIMIT),
        }
    }

    /// Starts it on an empty data directory, as a member that a running cluster has listed already. `initial_cluster` names
    /// all members, this one included: `etcd-1=http://…,etcd-2=http://…`.
    pub fn join(&mut self, initial_cluster: &str) -> Result<(), Error> {
        if self.data.exists() {
            fs::remove_dir_all(&self.data).map_err(Error::write(&self.data))?;
        }
        // Of several flags of one name, the last one counts.
        self.process
            .add_flag(format!("--initial-cluster={initial_cluster}"));
        self.process
            .add_flag("--initial-cluster-state=existing".to_owned());
        self.launch()
    }

    /// Whether its next starts make it the only member of its cluster, which keeps its data.
    pub fn force_new_cluster(&mut self, forced: bool) {
        self.process.add_flag(format!("--force-new-cluster={forced}"));
    }

    /// From its next start on, the member list gives clients this URL, such as a proxy's.
    pub fn advertise(&mut self, client_url: &str) {
        self.process
            .add_flag(format!("--advertise-client-urls={client_url}"));
    }

    /// From its next start on, the other members reach it at this URL alone. The member list keeps what it has.
    pub fn listen_to_peers(&mut self, peer_url: &str) {
        self.process.add_flag(format!("--listen-peer-urls={peer_url}"));
    }

    /// Starts it and waits until it serves linearizable reads.
    pub async fn start(&mut self) -> Result<(), Error> {
        self.launch()?;
        self.wait_healthy().await
    }

    /// Waits until it serves linearizable reads. Its process must have been started.
    pub async fn wait_healthy(&mut self) -> Result<(), Error> {
        let port = self.metrics_port;
        self.process.wait_until(START_LIMIT, || healthy(port)).await
    }

    /// Waits until it serves linearizable reads, or has ended because it was removed from the cluster.
    pub(super) async fn wait_healthy_or_gone(&mut self) -> Result<(), Error> {
        match self.wait_healthy().await {
            Err(_) if self.has_left() => Ok(()),
            waited => waited,
        }
    }

    /// Whether its process has ended because it was removed from the cluster.
    pub fn has_left(&mut self) -> bool {
        self.has_ended()
            && self
                .process()
                .and_then(|process| process.output().ok())
                .is_some_and(|output| output.contains(REMOVED))
    }

    /// Whether it serves linearizable reads now.
    pub async fn is_healthy(&self) -> bool {
        self.pid().is_some() && healthy(self.metrics_port).await.is_ok()
    }

    /// A sample of its `/metrics`, by its full name with labels.
    pub async fn metric(&self, name: &str) -> Option<f64> {
        sample(&self.metrics().await?, name)
    }

    /// All of its `/metrics`.
    pub async fn metrics(&self) -> Option<String> {
        let response = http::get(self.metrics_port, "/metrics").await.ok()?;
        Some(response.body)
    }
}

impl Deref for Member {
    type Target = Restartable;

    fn deref(&self) -> &Restartable {
        &self.process
    }
}

impl DerefMut for Member {
    fn deref_mut(&mut self) -> &mut Restartable {
        &mut self.process
    }
}

/// etcd answers `/health` after a linearizable read.
async fn healthy(metrics_port: u16) -> Result<(), String> {
    http::is_ok("/health", http::get(metrics_port, "/health").await)
}
