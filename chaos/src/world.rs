//! The cluster that a run breaks: all of its processes, on loopback.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quorate_dev::agent::{self, Agent};
use quorate_dev::apiserver::{self, ApiServer, User};
use quorate_dev::csi_plugin::options::{NodeOptions, Options as PluginOptions};
use quorate_dev::csi_plugin::process::PluginProcess;
use quorate_dev::etcd::{self, Etcd};
use quorate_dev::proxy::Proxy;
use quorate_dev::replica::{self, Replica};
use quorate_dev::workspace::Programs;
use quorate_dev::{bundles, join, ports};
use tokio::time::sleep;

use crate::Error;
use crate::history::{ReplicaRelease, Role};
use crate::operator::{DRIVER, Operator};
use crate::recorder::Recorder;
use crate::schedule::Sizes;
use crate::tap::Tap;
use crate::watch::Watch;

/// The sizes of every run.
pub const SIZES: Sizes = Sizes {
    members: 3,
    replicas: 3,
    agents: 2,
    releases: 3,
};

/// The TTL of the replicas' leases. Shorter than by default, so that a fault of seconds outlasts it; long enough for a busy
/// machine of two cores.
pub const LEASE_TTL: Duration = Duration::from_secs(8);

/// Until replicas and agents are there. On a busy machine everything starts at once.
const START_LIMIT: Duration = Duration::from_secs(180);

/// Until the watch has brought what processes changed at their end, such as the leases that they gave back.
const LAST_CHANGES: Duration = Duration::from_secs(1);

/// The cluster.
pub struct World {
    /// Its files.
    pub directory: PathBuf,
    /// What it runs.
    pub programs: Programs,
    /// Its history.
    pub recorder: Arc<Recorder>,
    /// The releases of the bundles.
    pub releases: Vec<ReplicaRelease>,
    /// Three members.
    pub etcd: Etcd,
    /// The watch of the history, from the first start of etcd to its end.
    pub watch: Watch,
    /// The apiserver, unless the run has none.
    pub apiserver: Option<ApiServer>,
    /// The plugin of the controller.
    pub plugin: PluginProcess,
    /// The plugin on the node of each agent.
    pub node_plugins: Vec<PluginProcess>,
    /// Three replicas.
    pub replicas: Vec<Site>,
    /// Two agents.
    pub agents: Vec<Agent>,
    /// Commands on this cluster.
    pub operator: Operator,
    /// What listens to the proxies of the replicas. The proxies end before it.
    pub tap: Tap,
}

/// A replica with the proxies through which it reaches the members, one each.
pub struct Site {
    /// The replica.
    pub replica: Replica,
    /// In the order of the members.
    pub proxies: Vec<Proxy>,
    /// The index of its release.
    pub release: usize,
}

/// What a world is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What it runs.
    pub programs: Programs,
    /// Whether there is an apiserver.
    pub kubernetes: bool,
    /// Whether agents of promoted nodes keep members of etcd.
    pub managers: bool,
    /// The release of all replicas at the begin.
    pub release: usize,
    /// Variables of replicas, such as one that takes a guard out.
    pub variables: Vec<(String, String)>,
}

/// The releases that replicas may be of. The last one excludes the first.
pub fn releases() -> Vec<ReplicaRelease> {
    let release = |release: &str, min_reconciler: &str, min_apiserver: &str| ReplicaRelease {
        release: release.to_owned(),
        min_reconciler: min_reconciler.to_owned(),
        min_apiserver: min_apiserver.to_owned(),
    };
    vec![
        release("1.0.0", "1.0.0", "1.0.0"),
        release("1.1.0", "1.0.0", "1.0.0"),
        release("2.0.0", "1.0.0", "1.1.0"),
    ]
}

impl World {
    /// Starts everything and waits until it is ready.
    pub async fn start(directory: &Path, plan: &Plan, recorder: Arc<Recorder>) -> Result<Self, Error> {
        let releases = releases();
        for shipped in &releases {
            let ReplicaRelease {
                release,
                min_reconciler,
                min_apiserver,
            } = shipped;
            let to = bundle(directory, release);
            bundles::write(&to, "chaos", release, min_reconciler, min_apiserver)?;
        }
        let options = etcd::Options {
            members: SIZES.members,
            ..etcd::Options::default()
        };
        for number in 1..=SIZES.members {
            let member = format!("etcd-{number}");
            recorder.started(&member.clone(), Role::Etcd { member });
        }
        let etcd = Etcd::start(&directory.join("etcd"), &options).await?;
        let watch = Watch::start(etcd.endpoints(), recorder.clone(), 1);
        let apiserver = match plan.kubernetes {
            true => {
                recorder.started("apiserver", Role::Apiserver);
                Some(start_apiserver(directory, &etcd).await?)
            }
            false => None,
        };
        recorder.started("plugin", plugin_role());
        let (plugin, node_plugins) = start_plugins(directory, &plan.programs).await?;
        let operator = Operator::new(&plan.programs.quorate, etcd.endpoints(), recorder.clone());
        let mut world = Self {
            directory: directory.to_owned(),
            programs: plan.programs.clone(),
            tap: Tap::new(&recorder),
            recorder,
            releases,
            etcd,
            watch,
            apiserver,
            plugin,
            node_plugins,
            replicas: Vec::new(),
            agents: Vec::new(),
            operator,
        };
        world.start_replicas(plan).await?;
        world.start_agents(plan).await?;
        Ok(world)
    }

    /// Where agents reach the replicas, and the replicas themselves.
    async fn start_replicas(&mut self, plan: &Plan) -> Result<(), Error> {
        let ca = join::authorities(&self.programs.quorate, &self.directory).await?;
        for name in replica_names() {
            let members = self.etcd.members.iter();
            let urls: Vec<_> = members.map(|member| member.client_url.clone()).collect();
            let proxies: Vec<_> = urls.iter().map(|url| self.tap.proxy(name, url)).collect();
            let release = &self.releases[plan.release].release;
            let options = replica::Options {
                binary: self.programs.quorate.clone(),
                node_id: name.to_owned(),
                etcd_endpoints: proxies.iter().map(Proxy::url).collect(),
                kubeconfig: match &self.apiserver {
                    Some(server) => Some(server.write_kubeconfig(name, &token_of(name))?),
                    None => None,
                },
                flags: vec![
                    format!("--bundle={}", bundle(&self.directory, release).display()),
                    format!("--lease-ttl={}", LEASE_TTL.as_secs()),
                    // The proxies stand between it and the members, whose own URLs lead around them.
                    "--etcd-sync-endpoints=false".to_owned(),
                    format!("--ca-dir={}", ca.display()),
                    format!("--control-listen=127.0.0.1:{}", ports::free_port()?),
                    "--settle-ms=500".to_owned(),
                    "--pass-interval-ms=10000".to_owned(),
                ],
                env: variables(plan),
            };
            let role = Role::Replica {
                node_id: name.to_owned(),
                release: release.clone(),
            };
            self.recorder.started(name, role);
            self.replicas.push(Site {
                replica: Replica::start(&self.directory.join("replicas"), options)?,
                proxies,
                release: plan.release,
            });
        }
        for site in &mut self.replicas {
            site.replica.wait_until("/readyz", START_LIMIT).await?;
        }
        Ok(())
    }

    async fn start_agents(&mut self, plan: &Plan) -> Result<(), Error> {
        self.operator.introduce(self.plugin.endpoint()).await?;
        let ca = self.directory.join("ca");
        let etcd = [format!("--etcd-endpoints={}", self.etcd.endpoints().join(","))];
        let token = join::worker_token(&self.programs.quorate, &self.directory, &ca, &etcd).await?;
        let directory = self.directory.join("agents");
        let program = etcd::find()?;
        for (name, plugin) in agent_names().into_iter().zip(&self.node_plugins) {
            let mut flags = match plan.managers {
                true => agent::etcd_flags(&directory, name, &program)?,
                false => Vec::new(),
            };
            flags.push(format!("--csi-node={DRIVER}={}", plugin.endpoint()));
            let options = agent::Options {
                binary: self.programs.quorate.clone(),
                name: name.to_owned(),
                servers: self.servers(),
                token_file: Some(token.clone()),
                flags,
                env: Vec::new(),
            };
            let node = name.to_owned();
            self.recorder.started(name, Role::Agent { node });
            self.agents.push(Agent::start(&directory, options)?);
        }
        for agent in &mut self.agents {
            agent.wait_ready(START_LIMIT).await?;
        }
        Ok(())
    }

    fn servers(&self) -> Vec<String> {
        let flag = |site: &Site| site.replica.flag("--control-listen=");
        let addresses = self.replicas.iter().filter_map(flag);
        addresses.map(|address| format!("https://{address}")).collect()
    }

    /// The directory of the bundle of a release.
    pub fn bundle(&self, release: usize) -> PathBuf {
        bundle(&self.directory, &self.releases[release].release)
    }

    /// Stops everything in order. The history is complete after it, but for the logs.
    ///
    /// # Errors
    /// A process does not stop.
    pub async fn stop(mut self) -> Result<Stopped, Error> {
        for site in &mut self.replicas {
            site.replica.stop().await?;
        }
        if let Some(server) = &mut self.apiserver {
            server.stop().await?;
        }
        for agent in &mut self.agents {
            agent.stop().await?;
        }
        for plugin in self.node_plugins.iter_mut().chain([&mut self.plugin]) {
            plugin.stop().await?;
        }
        sleep(LAST_CHANGES).await;
        self.watch.stop().await;
        self.etcd.stop().await?;
        // The proxies end here, and with them what listens to them.
        self.replicas.clear();
        self.tap.join().map_err(|why| Error::Harness(why.to_owned()))?;
        Ok(Stopped {
            plugin: self.plugin,
            node_plugins: self.node_plugins,
        })
    }
}

/// What can still be read once everything is stopped.
pub struct Stopped {
    /// The plugin of the controller.
    pub plugin: PluginProcess,
    /// The plugins on nodes.
    pub node_plugins: Vec<PluginProcess>,
}

/// The role of the plugin of the controller.
pub fn plugin_role() -> Role {
    Role::Plugin {
        plugin: DRIVER.to_owned(),
    }
}

/// The names of the replicas.
pub fn replica_names() -> [&'static str; SIZES.replicas] {
    ["replica-a", "replica-b", "replica-c"]
}

/// The names of the agents and their nodes.
pub fn agent_names() -> [&'static str; SIZES.agents] {
    ["agent-1", "agent-2"]
}

/// The log of the apiserver's audit.
pub fn audit_log(directory: &Path) -> PathBuf {
    directory.join("audit.jsonl")
}

fn bundle(directory: &Path, release: &str) -> PathBuf {
    directory.join("bundles").join(release)
}

fn token_of(replica: &str) -> String {
    format!("token-of-{replica}")
}

fn variables(plan: &Plan) -> Vec<(String, std::ffi::OsString)> {
    let variables = plan.variables.iter();
    variables
        .map(|(name, value)| (name.clone(), value.into()))
        .collect()
}

/// Each replica is a user of its own, so that the audit says which one wrote.
async fn start_apiserver(directory: &Path, etcd: &Etcd) -> Result<ApiServer, Error> {
    let policy = directory.join("audit-policy.yaml");
    let text = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n\
                rules:\n- {level: Metadata, verbs: [create, update, patch, delete, deletecollection]}\n- {level: None}\n";
    fs::write(&policy, text).map_err(Error::write(&policy))?;
    let users = replica_names().map(|name| User {
        name: name.to_owned(),
        groups: vec!["system:masters".to_owned()],
        token: token_of(name),
    });
    let options = apiserver::Options {
        etcd_endpoints: etcd.endpoints(),
        users: users.to_vec(),
        flags: vec![
            // As JSON, so that a history can be read.
            "--storage-media-type=application/json".to_owned(),
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", audit_log(directory).display()),
        ],
    };
    Ok(ApiServer::start(&directory.join("kubernetes"), &options).await?)
}

async fn start_plugins(
    directory: &Path,
    programs: &Programs,
) -> Result<(PluginProcess, Vec<PluginProcess>), Error> {
    let home = directory.join("csi");
    let mut options = PluginOptions::in_directory(&home, DRIVER);
    options.offers.list = true;
    options.offers.list_nodes = true;
    let plugin = PluginProcess::start(&programs.quorate_dev, options).await?;
    let mut node_plugins = Vec::new();
    for name in agent_names() {
        let own = home.join(name);
        fs::create_dir_all(&own).map_err(Error::write(&own))?;
        let mut options = PluginOptions::in_directory(&own, DRIVER);
        options.backend = home.join("volumes");
        options.offers.controller = false;
        options.node = Some(NodeOptions::new(&format!("csi-{name}")));
        node_plugins.push(PluginProcess::start(&programs.quorate_dev, options).await?);
    }
    Ok((plugin, node_plugins))
}

/// How often something is in force, by what it is about.
#[derive(Clone, Debug)]
pub struct Counts<T>(BTreeMap<T, usize>);

impl<T> Default for Counts<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord> Counts<T> {
    /// Once more.
    pub fn more(&mut self, of: T) {
        *self.0.entry(of).or_default() += 1;
    }

    /// Once less; whether it is in force no longer.
    pub fn less(&mut self, of: &T) -> bool {
        let Some(count) = self.0.get_mut(of) else {
            return true;
        };
        *count -= 1;
        let over = *count == 0;
        if over {
            self.0.remove(of);
        }
        over
    }

    /// Whether it is in force.
    pub fn has(&self, of: &T) -> bool {
        self.0.contains_key(of)
    }
}
