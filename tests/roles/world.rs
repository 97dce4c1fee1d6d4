//! A cluster whose members belong to nodes, whoever asks for changes of roles, and whoever starts what was added.

use std::time::Duration;

use prost::Message;
use quorate::etcd::election::{Leadership, campaign};
use quorate::etcd::members::List;
use quorate::etcd::{Etcd, KeyValue, MemberId, Pulse, Revision, Txn};
use quorate::kube::events::Notice;
use quorate::proto::join::Progress;
use quorate::proto::{Join, JoinRequest, Member, Metadata, Node, NodeSpec, NodeStatus, Role};
use quorate::roles::controller::{RoleController, Settings};
use quorate::store::{Keys, Name, Store};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::client::{config, connect_with};
use crate::support::etcd::TestEtcd;
use crate::support::wait::{SOON, eventually, same};

/// Long enough for a change of membership on a busy machine: etcd counts a member only 5 s after it connected.
pub const LONG: Duration = Duration::from_secs(90);

/// A cluster, its nodes and a client. The node of a member is called as the member is: `etcd-1`.
pub struct World {
    pub etcd: TestEtcd,
    pub store: Store,
    _following: JoinSet<()>,
}

pub fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// A connection that follows the member list as long as the set lives.
pub async fn store(etcd: &TestEtcd, tasks: &mut JoinSet<()>) -> Store {
    let etcd = connect_with(config(etcd.endpoints())).await;
    let following = etcd.clone();
    tasks.spawn(async move { following.follow_endpoints(CancellationToken::new()).await });
    Store {
        etcd,
        keys: Keys::new("/quorate".parse().unwrap()),
    }
}

/// A node with these roles; its uid is derived from its name.
pub fn node(name: &str, desired: Role, observed: Role) -> Node {
    Node {
        metadata: Some(Metadata {
            name: name.to_owned(),
            uid: format!("uid-of-{name}"),
            generation: 1,
            ..Metadata::default()
        }),
        spec: Some(NodeSpec {
            desired_role: desired.into(),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            role: observed.into(),
            ..NodeStatus::default()
        }),
    }
}

impl World {
    /// A cluster of this many members, each adopted as a manager.
    pub async fn start(members: usize) -> Self {
        Self::start_with(members, &[]).await
    }

    /// The same, with these flags of etcd.
    pub async fn start_with(members: usize, flags: &[&str]) -> Self {
        let world = Self::on(TestEtcd::with(members, flags).await).await;
        let list = world.list().await;
        for member in &list.members {
            world.adopt(&member.name, member.id).await;
        }
        world
    }

    /// A cluster of this many members, which belong to no node.
    pub async fn unmanaged(members: usize) -> Self {
        Self::on(TestEtcd::with(members, &[]).await).await
    }

    async fn on(etcd: TestEtcd) -> Self {
        let members = etcd.members.len();
        let mut following = JoinSet::new();
        let store = store(&etcd, &mut following).await;
        let world = Self {
            etcd,
            store,
            _following: following,
        };
        eventually(LONG, "every member has its name", async || {
            let list = world.list().await;
            same(
                list.members.iter().filter(|member| member.is_started()).count(),
                members,
            )
        })
        .await;
        world
    }

    /// A node that is a manager, and the record that ties the member to it, as `quorate adopt` writes them.
    pub async fn adopt(&self, node_name: &str, id: MemberId) {
        let record = Member {
            node: node_name.to_owned(),
            node_uid: format!("uid-of-{node_name}"),
            peer_urls: self.list().await.member(id).unwrap().peer_urls.clone(),
            joined_at: Some(prost_types::Timestamp::from(std::time::SystemTime::now())),
            ..Member::default()
        };
        let manager = node(node_name, Role::Manager, Role::Manager).encode_to_vec();
        let keys = &self.store.keys;
        let txn = Txn::new()
            .put(&keys.node(&name(node_name)), manager)
            .put(&keys.member(id), record.encode_to_vec());
        self.commit(txn).await;
    }

    pub async fn list(&self) -> List {
        eventually(LONG, "the member list", async || {
            self.store
                .etcd
                .list_members()
                .await
                .map_err(|error| error.to_string())
        })
        .await
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a test plays operators, nodes and faults"
    )]
    pub async fn commit(&self, txn: Txn) -> Revision {
        eventually(LONG, "a write", async || {
            let written = self.store.etcd.unfenced(txn.clone()).await;
            written.map_err(|error| error.to_string())
        })
        .await
        .revision
    }

    pub async fn read(&self, key: &[u8]) -> Option<KeyValue> {
        let read = eventually(LONG, "a read", async || {
            self.store.etcd.get(key).await.map_err(|error| error.to_string())
        });
        read.await.0
    }

    pub async fn node(&self, of: &str) -> Option<(Node, Revision)> {
        let stored = self.read(&self.store.keys.node(&name(of))).await?;
        Some((Node::decode(&*stored.value).unwrap(), stored.mod_revision))
    }

    pub async fn member(&self, id: MemberId) -> Option<Member> {
        let stored = self.read(&self.store.keys.member(id)).await?;
        Some(Member::decode(&*stored.value).unwrap())
    }

    pub async fn join(&self, of: &str) -> Option<(Join, Revision)> {
        let stored = self.read(&self.store.keys.join(&name(of))).await?;
        Some((Join::decode(&*stored.value).unwrap(), stored.mod_revision))
    }

    /// The observed role.
    pub async fn role(&self, of: &str) -> Role {
        let (node, _) = self.node(of).await.expect("the node exists");
        node.status.unwrap_or_default().role()
    }

    /// The reason of a node's condition `RoleChangeBlocked`.
    pub async fn blocked(&self, of: &str) -> Option<String> {
        let (node, _) = self.node(of).await.expect("the node exists");
        let conditions = node.status.unwrap_or_default().conditions;
        let of_type = |condition: &&quorate::proto::Condition| condition.r#type == "RoleChangeBlocked";
        Some(conditions.iter().find(of_type)?.reason.clone())
    }

    pub async fn wait_blocked(&self, of: &str, reason: Option<&str>) {
        eventually(LONG, &format!("{of} is blocked: {reason:?}"), async || {
            same(self.blocked(of).await, reason.map(str::to_owned))
        })
        .await;
    }

    /// Writes the desired role, and nothing else, as the commands do once their checks have passed. Creates the node.
    pub async fn desire(&self, of: &str, role: Role) {
        loop {
            let key = self.store.keys.node(&name(of));
            let stored = self.read(&key).await;
            let (value, revision) = match stored {
                None => {
                    let mut node = node(of, role, Role::Worker);
                    let metadata = node.metadata.get_or_insert_default();
                    // A uid is never given again.
                    if self.read(&self.store.keys.removed(&metadata.uid)).await.is_some() {
                        metadata.uid = uuid::Uuid::new_v4().to_string();
                    }
                    (node, Revision::ABSENT)
                }
                Some(kv) => {
                    let mut node = Node::decode(&*kv.value).unwrap();
                    node.spec.get_or_insert_default().desired_role = role.into();
                    (node, kv.mod_revision)
                }
            };
            let txn = Txn::new()
                .when_unchanged(&key, revision)
                .put(&key, value.encode_to_vec());
            #[expect(clippy::disallowed_methods, reason = "a test plays operators")]
            if self.store.etcd.unfenced(txn).await.is_ok() {
                return;
            }
        }
    }

    pub async fn promote(&self, of: &str) {
        self.desire(of, Role::Manager).await;
    }

    pub async fn demote(&self, of: &str) {
        self.desire(of, Role::Worker).await;
    }

    /// Waits for the observed role.
    pub async fn wait_role(&self, of: &str, role: Role) {
        eventually(LONG, &format!("{of} is observed as {role:?}"), async || {
            same(self.role(of).await, role)
        })
        .await;
    }

    /// Writes a request to join, as `quorate join` does. Returns its id.
    pub async fn ask_to_join(&self, of: &str, peer_urls: &[String]) -> String {
        let id = uuid::Uuid::new_v4().to_string();
        let uid = match self.node(of).await {
            Some((node, _)) => node.metadata.unwrap_or_default().uid,
            None => format!("uid-of-{of}"),
        };
        loop {
            let key = self.store.keys.join(&name(of));
            let stored = self.read(&key).await;
            let revision = stored.as_ref().map_or(Revision::ABSENT, |kv| kv.mod_revision);
            let mut join = stored.map_or_else(Join::default, |kv| Join::decode(&*kv.value).unwrap());
            join.request = Some(JoinRequest {
                id: id.clone(),
                node_uid: uid.clone(),
                peer_urls: peer_urls.to_vec(),
                requested_at: Some(prost_types::Timestamp::from(std::time::SystemTime::now())),
                no_dial: false,
            });
            let txn = Txn::new()
                .when_unchanged(&key, revision)
                .put(&key, join.encode_to_vec());
            #[expect(clippy::disallowed_methods, reason = "a test plays a node")]
            if self.store.etcd.unfenced(txn).await.is_ok() {
                return id;
            }
        }
    }

    /// Waits until the request is answered with this.
    pub async fn wait_join(&self, of: &str, request: &str, progress: Progress) -> Join {
        eventually(LONG, &format!("the join of {of} is {progress:?}"), async || {
            let Some((join, _)) = self.join(of).await else {
                return Err("there is none".to_owned());
            };
            match join.answers == request && join.progress() == progress {
                true => Ok(join),
                false => Err(format!("{join:?}")),
            }
        })
        .await
    }

    /// One more member of the test's cluster, not started: its node's name.
    pub fn add_machine(&mut self) -> String {
        let member = self.etcd.add().unwrap();
        member.name.clone()
    }

    pub fn machine(&mut self, of: &str) -> &mut quorate::dev::etcd::Member {
        let mut members = self.etcd.members.iter_mut();
        members
            .find(|member| member.name == of)
            .expect("there is such a machine")
    }

    pub fn peer_urls(&self, of: &str) -> Vec<String> {
        let member = self.etcd.members.iter().find(|member| member.name == of);
        vec![member.expect("there is such a machine").peer_url.clone()]
    }

    /// Starts the etcd of a node whose member was added, as the node does once `quorate join` printed how.
    pub async fn start_added(&mut self, of: &str) {
        let list = self.list().await;
        let own = self.peer_urls(of);
        let entries: Vec<String> = list
            .members
            .iter()
            .map(|member| {
                let name = match member.has_peer_urls(&own) {
                    true => of,
                    false => member.name.as_str(),
                };
                format!("{name}={}", member.peer_urls[0])
            })
            .collect();
        self.machine(of).join(&entries.join(",")).unwrap();
    }

    /// From a promotion that was asked for to a voter.
    pub async fn bring_up(&mut self, of: &str) {
        self.wait_role(of, Role::Manager).await;
        let request = self.ask_to_join(of, &self.peer_urls(of)).await;
        self.wait_join(of, &request, Progress::Learner).await;
        self.start_added(of).await;
        self.wait_join(of, &request, Progress::Voter).await;
    }

    /// Stops the etcd of a node that is no member any more. It stops by itself, as a rule.
    pub async fn tear_down(&mut self, of: &str) {
        self.machine(of).kill().await.unwrap();
    }

    /// The names of the voters and of the learners, in order.
    pub async fn members(&self) -> (Vec<String>, Vec<String>) {
        let list = self.list().await;
        let names = |learner| {
            let members = list
                .members
                .iter()
                .filter(move |member| member.learner == learner);
            let mut names: Vec<String> = members.map(|member| member.name.clone()).collect();
            names.sort();
            names
        };
        (names(false), names(true))
    }

    /// Waits until these are the voters, and there is no learner.
    pub async fn wait_voters(&self, expected: &[&str]) {
        eventually(LONG, &format!("the voters are {expected:?}"), async || {
            let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
            same(self.members().await, (expected, Vec::new()))
        })
        .await;
    }

    pub async fn id_of(&self, of: &str) -> MemberId {
        let list = self.list().await;
        let member = list.members.iter().find(|member| member.name == of);
        member
            .unwrap_or_else(|| panic!("{of} is no member of {list:?}"))
            .id
    }

    pub async fn leader(&self) -> Leader {
        self.leader_with(Settings::default()).await
    }

    pub async fn leader_with(&self, settings: Settings) -> Leader {
        Leader::elect(&self.etcd, settings).await
    }
}

/// A leader in this process, which follows the desired roles and does nothing else.
pub struct Leader {
    leadership: Leadership,
    working: JoinSet<()>,
    /// What would be published as Events.
    pub notices: mpsc::Receiver<Notice>,
    _tasks: JoinSet<()>,
    pub etcd: Etcd,
}

impl Leader {
    pub async fn elect(etcd: &TestEtcd, settings: Settings) -> Self {
        let mut tasks = JoinSet::new();
        let store = store(etcd, &mut tasks).await;
        Self::elect_on(store, settings, tasks).await
    }

    /// One that looks below another prefix.
    pub async fn elect_below(etcd: &TestEtcd, prefix: &str) -> Self {
        let mut tasks = JoinSet::new();
        let mut store = store(etcd, &mut tasks).await;
        store.keys = Keys::new(prefix.parse().unwrap());
        Self::elect_on(store, Settings::default(), tasks).await
    }

    /// One on this connection, which lives with these tasks.
    pub async fn elect_on(store: Store, settings: Settings, mut tasks: JoinSet<()>) -> Self {
        let pulse = Pulse::default();
        pulse.beat();
        tasks.spawn(pulse.clone().beat_forever());
        let never = CancellationToken::new();
        let ttl = Duration::from_secs(20);
        // The members may be electing: then a candidacy ends, and the next one begins, as in a replica.
        let leadership = eventually(SOON, "it leads", async || {
            campaign(&store.etcd, &store.keys.election(), "test", ttl, &pulse, &never).await
        })
        .await;
        let etcd = store.etcd.clone();
        let (sender, notices) = mpsc::channel(1000);
        let controller = RoleController {
            store,
            fence: leadership.fence().clone(),
            notices: Some(sender),
            settings,
        };
        let mut working = JoinSet::new();
        working.spawn(controller.run());
        Self {
            leadership,
            working,
            notices,
            _tasks: tasks,
            etcd,
        }
    }

    pub fn metrics(&self) -> String {
        self.etcd.metrics().encode()
    }

    pub async fn resign(mut self) {
        self.working.shutdown().await;
        self.leadership.resign().await;
    }
}
