//! The cluster that a run breaks: all of its processes, on loopback.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quorate_dev::admission::Admission;
use quorate_dev::agent::{self, Agent};
use quorate_dev::apiserver::ApiServer;
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
use crate::watch::{Watch, client};
use servers::{start_apiserver, start_plugins};

mod counts;
mod servers;

pub use counts::Counts;

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
    /// Three members, each with a proxy through which the others reach it.
    pub etcd: Etcd,
    /// Their ids, in their order. A restore keeps them.
    pub member_ids: Vec<u64>,
    /// The watch of the history, from the first start of etcd to its end.
    pub watch: Watch,
    /// The apiserver, unless the run has none.
    pub apiserver: Option<ApiServer>,
    /// What it asks before it writes.
    pub admission: Option<Admission>,
    /// The plugin of the controller.
    pub plugin: PluginProcess,
    /// The plugin on the node of each agent.
    pub node_plugins: Vec<PluginProcess>,
    /// Three replicas.
    pub replicas: Vec<Site>,
    /// The proxies at the client URLs that the members advertise, in their order.
    pub addresses: Vec<Proxy>,
    /// Two agents.
    pub agents: Vec<Agent>,
    /// The proxies of each agent.
    pub links: Vec<AgentLinks>,
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

/// The proxies of an agent.
pub struct AgentLinks {
    /// Through which it reaches the replicas, in their order.
    pub replicas: Vec<Proxy>,
    /// Through which members reach that which it keeps; none where it keeps none.
    pub peers: Option<Proxy>,
    /// At the client URL that this member advertises.
    pub clients: Option<Proxy>,
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
        let mut tap = Tap::new(&recorder);
        let addresses: Vec<_> = (0..SIZES.members).map(|_| tap.in_front_of_none()).collect();
        let options = etcd::Options {
            members: SIZES.members,
            peer_proxies: true,
            advertised: addresses.iter().map(Proxy::url).collect(),
            ..etcd::Options::default()
        };
        for number in 1..=SIZES.members {
            let member = format!("etcd-{number}");
            recorder.started(&member.clone(), Role::Etcd { member });
        }
        let etcd = Etcd::start(&directory.join("etcd"), &options).await?;
        for (address, member) in addresses.iter().zip(&etcd.members) {
            address.lead_to(&member.client_url);
        }
        let watch = Watch::start(etcd.endpoints(), recorder.clone(), 1);
        let (apiserver, admission) = match plan.kubernetes {
            true => {
                recorder.started("apiserver", Role::Apiserver);
                let (apiserver, admission) = start_apiserver(directory, &etcd).await?;
                (Some(apiserver), Some(admission))
            }
            false => (None, None),
        };
        recorder.started("plugin", plugin_role());
        let (plugin, node_plugins) = start_plugins(directory, &plan.programs).await?;
        let operator = Operator::new(&plan.programs.quorate, etcd.endpoints(), recorder.clone());
        let mut world = Self {
            directory: directory.to_owned(),
            programs: plan.programs.clone(),
            tap,
            addresses,
            recorder,
            releases,
            member_ids: member_ids(&etcd).await?,
            etcd,
            watch,
            apiserver,
            admission,
            plugin,
            node_plugins,
            replicas: Vec::new(),
            agents: Vec::new(),
            links: Vec::new(),
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
            let proxies: Vec<_> = urls.iter().map(|url| self.tap.beside(name, url)).collect();
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
            let replica = Replica::start(&self.directory.join("replicas"), options)?;
            self.recorder.runs_as(name, replica.pid());
            self.replicas.push(Site {
                replica,
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
            let mut links = AgentLinks {
                replicas: self.servers(),
                peers: None,
                clients: None,
            };
            let mut flags = Vec::new();
            if plan.managers {
                flags = agent::etcd_flags(&directory, name, &program)?;
                links.peers = reached_through(&mut flags, "peer", between_members);
                links.clients = reached_through(&mut flags, "client", |url| Some(self.tap.in_front_of(url)));
            }
            flags.push(format!("--csi-node={DRIVER}={}", plugin.endpoint()));
            let options = agent::Options {
                binary: self.programs.quorate.clone(),
                name: name.to_owned(),
                servers: links.replicas.iter().map(Proxy::url).collect(),
                token_file: Some(token.clone()),
                flags,
                env: Vec::new(),
            };
            let node = name.to_owned();
            self.recorder.started(name, Role::Agent { node });
            let agent = Agent::start(&directory, options)?;
            self.recorder.runs_as(name, agent.pid());
            self.agents.push(agent);
            self.links.push(links);
        }
        for agent in &mut self.agents {
            agent.wait_ready(START_LIMIT).await?;
        }
        Ok(())
    }

    /// A proxy in front of the control port of each replica.
    fn servers(&self) -> Vec<Proxy> {
        let flag = |site: &Site| site.replica.flag("--control-listen=");
        let addresses = self.replicas.iter().filter_map(flag);
        addresses
            .map(|address| Proxy::in_front_of(&format!("https://{address}")))
            .collect()
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
        self.addresses.clear();
        self.links.clear();
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

/// The ids of the members, in their order.
async fn member_ids(etcd: &Etcd) -> Result<Vec<u64>, Error> {
    let failed = |error: etcd_client::Error| Error::Harness(format!("the members are not listed: {error}"));
    let mut client = client(&etcd.members[0].client_url).await.map_err(failed)?;
    let list = client.member_list().await.map_err(failed)?;
    let id_of = |name: &str| {
        let mut members = list.members().iter();
        members.find(|member| member.name() == name).map(|it| it.id())
    };
    let ids = etcd.members.iter().map(|member| id_of(&member.name));
    let ids: Option<Vec<u64>> = ids.collect();
    ids.ok_or_else(|| Error::Harness("a member is not in its list".to_owned()))
}

/// Puts a proxy in front of the etcd that an agent with these flags keeps, towards other members (`peer`) or clients (`client`).
fn reached_through(
    flags: &mut Vec<String>,
    by: &str,
    mut proxy: impl FnMut(&str) -> Option<Proxy>,
) -> Option<Proxy> {
    let name = format!("--{by}-url=");
    let at = flags.iter().position(|flag| flag.starts_with(&name))?;
    let url = flags[at][name.len()..].to_owned();
    let proxy = proxy(&url)?;
    flags[at] = format!("{name}{}", proxy.url());
    flags.push(format!("--etcd-listen-{by}-url={url}"));
    Some(proxy)
}

fn between_members(url: &str) -> Option<Proxy> {
    let port = url.rsplit_once(':')?.1.parse().ok()?;
    Some(Proxy::between_members(port))
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
