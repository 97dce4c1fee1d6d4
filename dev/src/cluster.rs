//! The processes of a development cluster: started in the order of their dependencies, and stopped in the reverse order.

use std::collections::HashMap;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio::time::sleep;

use super::Error;
use super::agent::{self, Agent};
use super::apiserver::{self, ApiServer};
use super::csi_plugin::options;
use super::csi_plugin::process::PluginProcess;
use super::data_directory::DataDirectory;
use super::etcd::{self, Etcd};
use super::ports;
use super::process::{Supervised, first_end};
use super::replica::{self, Replica};
use super::restartable::Restartable;

/// Pause before a restart.
const PAUSE: Duration = Duration::from_secs(1);

/// A process that ends again within this time of its restart is not restarted.
const ENDS_AT_ONCE: Duration = Duration::from_secs(10);

/// The processes that run so far. Dropping it kills them; [`stop`](Self::stop) stops them in order.
#[derive(Debug)]
pub struct Cluster {
    agents: Vec<Agent>,
    replicas: Vec<Replica>,
    /// Where the replicas serve agents.
    servers: Vec<String>,
    csi_plugin: Option<PluginProcess>,
    /// On the node of each agent, where there is a CSI plugin.
    node_plugins: Vec<PluginProcess>,
    apiserver: Option<ApiServer>,
    etcd: Option<Etcd>,
    // Dropped last: its files go after the processes that use them.
    directory: DataDirectory,
}

/// The configuration of every replica.
#[derive(Clone, Debug)]
pub struct ReplicaSettings {
    /// The `quorate` program.
    pub binary: PathBuf,
    /// Number of replicas.
    pub count: usize,
    /// Flags added to the default ones.
    pub flags: Vec<String>,
    /// The authorities by which they serve agents (`--ca-dir`); none: they serve none.
    pub ca_dir: Option<PathBuf>,
}

impl Cluster {
    /// A cluster of which nothing runs yet.
    pub fn new(directory: DataDirectory) -> Self {
        Self {
            agents: Vec::new(),
            replicas: Vec::new(),
            servers: Vec::new(),
            csi_plugin: None,
            node_plugins: Vec::new(),
            apiserver: None,
            etcd: None,
            directory,
        }
    }

    /// The directory of its files.
    pub fn directory(&self) -> &DataDirectory {
        &self.directory
    }

    /// The agents that were started.
    pub fn agents(&self) -> &[Agent] {
        &self.agents
    }

    /// The replicas that were started.
    pub fn replicas(&self) -> &[Replica] {
        &self.replicas
    }

    /// Starts etcd, waits until it serves, and returns its client URLs.
    pub async fn start_etcd(&mut self, members: usize) -> Result<Vec<String>, Error> {
        let options = etcd::Options {
            members,
            ..etcd::Options::default()
        };
        let etcd = Etcd::start(&self.directory.path().join("etcd"), &options).await?;
        Ok(self.etcd.insert(etcd).endpoints())
    }

    /// Starts a kube-apiserver on this etcd, waits until it is ready, and returns its URL and the administrator's
    /// kubeconfig.
    pub async fn start_apiserver(&mut self, etcd_endpoints: &[String]) -> Result<(String, PathBuf), Error> {
        let options = apiserver::Options {
            etcd_endpoints: etcd_endpoints.to_owned(),
            ..apiserver::Options::default()
        };
        let directory = self.directory.path().join("kubernetes");
        let server = self
            .unless_one_ends(ApiServer::start(&directory, &options))
            .await?;
        let server = self.apiserver.insert(server);
        Ok((server.url.clone(), server.kubeconfig()))
    }

    /// Starts a CSI plugin with this driver name and waits until it listens. `binary` is the program `quorate-dev`.
    pub async fn start_csi_plugin(&mut self, binary: &Path, driver: &str) -> Result<&PluginProcess, Error> {
        let directory = self.directory.path().join("csi");
        let mut options = options::Options::in_directory(&directory, driver);
        options.offers.expand = true;
        options.offers.list_nodes = true;
        let plugin = self
            .unless_one_ends(PluginProcess::start(binary, options))
            .await?;
        Ok(self.csi_plugin.insert(plugin))
    }

    /// Starts a CSI plugin for the node of each agent, with the volumes of the plugin of [`start_csi_plugin`](Self::start_csi_plugin),
    /// unless it was started.
    pub async fn start_node_plugins(
        &mut self,
        binary: &Path,
        driver: &str,
        count: usize,
    ) -> Result<(), Error> {
        let directory = self.directory.path().join("csi");
        for name in (1..=count).map(agent_name).skip(self.node_plugins.len()) {
            let home = directory.join(&name);
            fs::create_dir_all(&home).map_err(Error::write(&home))?;
            let mut options = options::Options::in_directory(&home, driver);
            options.backend = directory.join("volumes");
            options.offers.controller = false;
            options.node = Some(options::NodeOptions::new(&format!("csi-{name}")));
            let plugin = self
                .unless_one_ends(PluginProcess::start(binary, options))
                .await?;
            self.node_plugins.push(plugin);
        }
        Ok(())
    }

    /// Chooses the addresses at which so many replicas serve agents, unless that was done.
    pub fn choose_servers(&mut self, replicas: usize) -> Result<(), Error> {
        while self.servers.len() < replicas {
            self.servers
                .push(format!("https://127.0.0.1:{}", ports::free_port()?));
        }
        Ok(())
    }

    /// Starts the replicas `dev-1`, `dev-2`, …, without waiting until they are ready.
    pub fn start_replicas(
        &mut self,
        etcd_endpoints: &[String],
        kubeconfig: Option<PathBuf>,
        settings: &ReplicaSettings,
    ) -> Result<(), Error> {
        let directory = self.directory.path().join("replicas");
        if settings.ca_dir.is_some() {
            self.choose_servers(settings.count)?;
        }
        for number in 1..=settings.count {
            let mut flags = settings.flags.clone();
            if let Some(ca_dir) = &settings.ca_dir {
                let server = self.servers[number - 1].trim_start_matches("https://");
                flags.push(format!("--ca-dir={}", ca_dir.display()));
                flags.push(format!("--control-listen={server}"));
            }
            let options = replica::Options {
                binary: settings.binary.clone(),
                node_id: format!("dev-{number}"),
                etcd_endpoints: etcd_endpoints.to_owned(),
                kubeconfig: kubeconfig.clone(),
                flags,
                env: Vec::new(),
            };
            self.replicas.push(Replica::start(&directory, options)?);
        }
        Ok(())
    }

    /// Whether an agent of an earlier run keeps an etcd: then etcd has no quorum without it, maybe.
    pub fn has_managers(&self, agents: usize) -> bool {
        let directory = self.directory.path().join("agents");
        let mut names = (1..=agents).map(agent_name);
        names.any(|name| agent::keeps_etcd(&directory.join(name)))
    }

    /// Starts the agents `agent-1`, `agent-2`, …, which join with this token, without waiting until they are ready. Those that were
    /// started stay as they are.
    pub fn start_agents(
        &mut self,
        binary: &Path,
        count: usize,
        token: &Path,
        driver: &str,
    ) -> Result<(), Error> {
        let directory = self.directory.path().join("agents");
        let (etcd, started) = (etcd::find()?, self.agents.len());
        for (index, name) in (1..=count).map(agent_name).enumerate().skip(started) {
            let plugin = self.node_plugins.get(index);
            let plugin = plugin.map(|plugin| format!("--csi-node={driver}={}", plugin.endpoint()));
            let mut flags = agent::etcd_flags(&directory, &name, &etcd)?;
            flags.extend(plugin);
            let options = agent::Options {
                binary: binary.to_owned(),
                name,
                servers: self.servers.clone(),
                token_file: Some(token.to_owned()),
                flags,
                env: Vec::new(),
            };
            self.agents.push(Agent::start(&directory, options)?);
        }
        Ok(())
    }

    /// Waits for `work`. Fails when one of the processes ends before it.
    pub async fn unless_one_ends<T>(
        &mut self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        tokio::select! {
            biased;
            result = work => result,
            ended = first_end(self.processes()) => Err(ended),
        }
    }

    /// Restarts each process that ends and is one of several of its kind, after a pause: meanwhile the others take over.
    /// Calls `on_end` for each restart, and `on_departure` with kind and name of an etcd member or an agent that ended because it
    /// was removed from its cluster; such a one is not restarted. Returns the first end that it cannot mend.
    pub async fn keep_up(&mut self, on_end: impl Fn(&Error), on_departure: impl Fn(&str, &str)) -> Error {
        let mut started_again: HashMap<String, Instant> = HashMap::new();
        loop {
            let ended = first_end(self.processes()).await;
            let Error::Ended { name, .. } = &ended else {
                return ended;
            };
            match self.take_departed() {
                Err(error) => return error,
                Ok(gone) if !gone.is_empty() => {
                    gone.iter().for_each(|(kind, name)| on_departure(kind, name));
                    continue;
                }
                Ok(_) => {}
            }
            let again = started_again.insert(name.clone(), Instant::now());
            let Some(server) = self.ended_among_others() else {
                return ended;
            };
            if again.is_some_and(|at| at.elapsed() < ENDS_AT_ONCE) {
                return ended;
            }
            on_end(&ended);
            sleep(PAUSE).await;
            if let Err(error) = server.launch() {
                return error;
            }
        }
    }

    /// Drops the members of etcd and the agents that ended because they were removed; their kinds and names.
    fn take_departed(&mut self) -> Result<Vec<(&'static str, String)>, Error> {
        let members = self.etcd.as_mut().map_or(Ok(Vec::new()), Etcd::take_departed)?;
        let mut gone: Vec<_> = members.into_iter().map(|name| ("etcd", name)).collect();
        self.agents.retain_mut(|agent| {
            let removed = agent.was_removed();
            if removed {
                gone.push(("agents", agent.name.clone()));
            }
            !removed
        });
        Ok(gone)
    }

    /// The members of etcd.
    pub fn etcd_members(&self) -> &[etcd::Member] {
        self.etcd.as_ref().map_or(&[], |etcd| &etcd.members)
    }

    fn ended_among_others(&mut self) -> Option<&mut Restartable> {
        let agents: Vec<&mut Restartable> = self.agents.iter_mut().map(|agent| &mut **agent).collect();
        let replicas = self.replicas.iter_mut().map(|replica| &mut **replica);
        let members = self.etcd.iter_mut().flat_map(|etcd| &mut etcd.members);
        let (replicas, members): (Vec<_>, Vec<_>) =
            (replicas.collect(), members.map(|member| &mut **member).collect());
        let several = [agents, replicas, members]
            .into_iter()
            .filter(|kind| kind.len() > 1);
        several
            .flatten()
            .find_map(|server| server.has_ended().then_some(server))
    }

    /// Stops the replicas, the kube-apiserver, the agents, the CSI plugins and etcd, in this order, so that none loses a server that it
    /// cannot stop without: the etcd of an agent ends with it, and etcd has no quorum without that, maybe. Then releases the directory.
    /// Continues after an error, and returns the first one.
    pub async fn stop(mut self) -> Result<(), Error> {
        let mut outcomes = Vec::new();
        for stopped in join_all(self.replicas.iter_mut().map(|replica| replica.stop())).await {
            outcomes.push(stopped.map(|_| ()));
        }
        if let Some(server) = &mut self.apiserver {
            outcomes.push(server.stop().await.map(|_| ()));
        }
        for stopped in join_all(self.agents.iter_mut().map(|agent| agent.stop())).await {
            outcomes.push(stopped.map(|_| ()));
        }
        for plugin in self.node_plugins.iter_mut().chain(&mut self.csi_plugin) {
            outcomes.push(plugin.stop().await.map(|_| ()));
        }
        if let Some(etcd) = &mut self.etcd {
            outcomes.push(etcd.stop().await);
        }
        outcomes.push(self.directory.close());
        outcomes.into_iter().collect()
    }

    fn processes(&mut self) -> impl Iterator<Item = &mut Supervised> {
        let agents = self.agents.iter_mut().filter_map(|agent| agent.process());
        let replicas = self.replicas.iter_mut().filter_map(|replica| replica.process());
        let plugins = self.node_plugins.iter_mut().chain(&mut self.csi_plugin);
        let csi_plugin = plugins.filter_map(PluginProcess::process);
        let apiserver = self.apiserver.iter_mut().filter_map(|server| server.process());
        let etcd = self.etcd.iter_mut().flat_map(Etcd::processes);
        agents
            .chain(replicas)
            .chain(csi_plugin)
            .chain(apiserver)
            .chain(etcd)
    }
}

/// The name of an agent and of its node.
fn agent_name(number: usize) -> String {
    format!("agent-{number}")
}
