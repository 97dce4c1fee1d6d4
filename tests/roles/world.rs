//! A cluster whose members belong to nodes: requests for changes of roles, and what can be observed.

use std::time::Duration;

use prost::Message;
use quorate::etcd::election::candidates;
use quorate::etcd::members::MemberList;
use quorate::etcd::{Event, KeyRange, KeyValue, MemberId, Revision, Txn, TxnError};
use quorate::proto::{Member, Metadata, Node, NodeSpec, NodeStatus, RemovedNode, Role};
use quorate::store::{Keys, Name, Store};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::client::{commit, config_of, connect_with, history, raft_leader};
use crate::support::etcd::TestEtcd;
use crate::support::wait::{eventually, same};

/// Long enough for a change of membership on a busy machine: etcd counts a member only 5 s after it connected.
pub const LONG: Duration = Duration::from_secs(90);

/// A cluster, its nodes and a client. A node has the name of its member: `etcd-1`.
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
    let mut config = config_of(etcd);
    // As by default: a request that is not answered in time is counted otherwise than one that is.
    config.request_timeout = Duration::from_secs(5);
    let etcd = connect_with(config).await;
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
        let world = Self::unmanaged(members, flags).await;
        let list = world.list().await;
        for member in &list.members {
            world.adopt(&member.name, member.id).await;
        }
        world
    }

    /// A cluster of this many members, which belong to no node, with these flags of etcd.
    pub async fn unmanaged(members: usize, flags: &[&str]) -> Self {
        let etcd = TestEtcd::with(members, flags).await;
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

    pub async fn list(&self) -> MemberList {
        eventually(LONG, "the member list", async || {
            self.store
                .etcd
                .list_members()
                .await
                .map_err(|error| error.to_string())
        })
        .await
    }

    async fn try_commit(&self, txn: Txn) -> Result<Revision, TxnError> {
        let written = commit(&self.store.etcd, txn).await?;
        Ok(written.revision)
    }

    pub async fn commit(&self, txn: Txn) -> Revision {
        eventually(LONG, "a write", async || self.try_commit(txn.clone()).await).await
    }

    /// Changes the value of a key, again if another write came first.
    pub async fn change(&self, key: &[u8], change: impl Fn(Option<&[u8]>) -> Vec<u8>) -> Revision {
        eventually(LONG, "a change of what was read", async || {
            let stored = self.read(key).await;
            let revision = stored.as_ref().map_or(Revision::ABSENT, |kv| kv.mod_revision);
            let value = change(stored.as_ref().map(|kv| &*kv.value));
            let txn = Txn::new().when_unchanged(key, revision).put(key, value);
            self.try_commit(txn).await
        })
        .await
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
    pub async fn desire(&self, of: &str, role: Role) -> Revision {
        let keys = &self.store.keys;
        let mut created = node(of, role, Role::Worker);
        let metadata = created.metadata.get_or_insert_default();
        // A uid is never used again.
        if self.read(&keys.removed(&metadata.uid)).await.is_some() {
            metadata.uid = uuid::Uuid::new_v4().to_string();
        }
        self.change(&keys.node(&name(of)), |stored| {
            let mut node = stored.map_or_else(|| created.clone(), |value| Node::decode(value).unwrap());
            node.spec.get_or_insert_default().desired_role = role.into();
            node.encode_to_vec()
        })
        .await
    }

    pub async fn promote(&self, of: &str) -> Revision {
        self.desire(of, Role::Manager).await
    }

    pub async fn demote(&self, of: &str) -> Revision {
        self.desire(of, Role::Worker).await
    }

    /// Deletes a node as `quorate delete node` does, without its checks.
    pub async fn remove_node(&self, of: &str) {
        let keys = &self.store.keys;
        let node = self.node(of).await.map(|(node, _)| node);
        let metadata = node.and_then(|node| node.metadata);
        let uid = metadata.map_or_else(|| format!("uid-of-{of}"), |metadata| metadata.uid);
        let removed = RemovedNode {
            name: of.to_owned(),
            ..RemovedNode::default()
        };
        let txn = Txn::new()
            .delete(&keys.node(&name(of)))
            .put(&keys.removed(&uid), removed.encode_to_vec());
        self.commit(txn).await;
    }

    /// The observed roles of a node from this revision on, in order.
    pub async fn observed_since(&self, of: &str, revision: Revision) -> Vec<Role> {
        let (_, last) = self.node(of).await.expect("the node exists");
        let key = KeyRange::key(self.store.keys.node(&name(of)));
        let events = history(&self.store.etcd, key, revision, last).await;
        let roles = events.iter().filter_map(|event| match event {
            Event::Put(kv) => Some(
                Node::decode(&*kv.value)
                    .unwrap()
                    .status
                    .unwrap_or_default()
                    .role(),
            ),
            Event::Delete { .. } => None,
        });
        roles.collect()
    }

    /// Waits for the observed role.
    pub async fn wait_role(&self, of: &str, role: Role) {
        eventually(LONG, &format!("{of} is observed as {role:?}"), async || {
            same(self.role(of).await, role)
        })
        .await;
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

    /// The name of etcd's own leader.
    pub async fn raft_leader(&self) -> String {
        raft_leader(&self.store.etcd).await.name
    }

    /// The create revision of the key of Quorate's leader.
    pub async fn term(&self) -> Revision {
        let election = self.store.keys.election();
        eventually(LONG, "the candidates", async || {
            let candidates = candidates(&self.store.etcd, &election)
                .await
                .map_err(|error| error.to_string())?;
            candidates
                .first()
                .map(|first| first.entered)
                .ok_or("none".to_owned())
        })
        .await
    }

    /// Waits until the members with a record are those of these nodes.
    pub async fn wait_records(&self, nodes: &[&str]) {
        let expected: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        eventually(LONG, &format!("the records are those of {nodes:?}"), async || {
            let (records, _) = self
                .store
                .etcd
                .list(&self.store.keys.members())
                .await
                .map_err(|error| error.to_string())?;
            let mut of: Vec<String> = records
                .iter()
                .map(|kv| Member::decode(&*kv.value).unwrap().node)
                .collect();
            of.sort();
            same(of, expected.clone())
        })
        .await;
    }
}
