//! Three members that stay, and one that comes and goes: by etcd's own calls, or through roles.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use etcd_client::{Client, MemberAddOptions};
use prost::Message;
use quorate::proto::join::Progress;
use quorate::proto::{Join, JoinRequest, Member, Role};
use quorate_dev::etcd::{Etcd as Server, Options};

use super::seen::Seen;
use super::{LIMIT, node, uid};

/// Three members that stay, and a machine for one that comes and goes.
pub struct Cluster {
    server: Server,
    /// A connection to the three members that stay.
    client: Client,
    machine: usize,
}

impl Cluster {
    pub async fn start(directory: &Path) -> Result<Self> {
        let options = Options {
            members: 3,
            flags: vec!["--strict-reconfig-check=false".to_owned()],
            ..Options::default()
        };
        let mut server = Server::start(directory, &options).await?;
        let client = Client::connect(server.endpoints(), None).await?;
        let machine = server.members.len();
        server.add()?;
        let cluster = Self {
            server,
            client,
            machine,
        };
        let mut client = cluster.client.clone();
        for member in client.member_list().await?.members() {
            let record = Member {
                node: member.name().to_owned(),
                node_uid: uid(member.name()),
                peer_urls: member.peer_urls().to_vec(),
                ..Member::default()
            };
            let key = format!("/quorate/members/{:016x}", member.id());
            client.put(key, record.encode_to_vec(), None).await?;
            let key = format!("/quorate/nodes/{}", member.name());
            client
                .put(key, node(member.name(), Role::Manager, Role::Manager), None)
                .await?;
        }
        Ok(cluster)
    }

    /// The client URL of one of the three.
    pub fn endpoint(&self) -> String {
        self.server.members[0].client_url.clone()
    }

    pub async fn stop(mut self) -> Result<()> {
        Ok(self.server.stop().await?)
    }

    pub async fn one_put(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        self.client.put("/put", "", None).await?;
        Ok(begun.elapsed())
    }

    /// Starts the machine's etcd as the member that was added for it.
    async fn start_machine(&mut self, id: u64) -> Result<()> {
        let machine = &self.server.members[self.machine];
        let (name, peer_url) = (machine.name.clone(), machine.peer_url.clone());
        // The member that answers may not have it yet.
        let listed = loop {
            let listed = self.client.member_list().await?;
            if listed.members().len() == 4 && listed.members().iter().any(|member| member.id() == id) {
                break listed;
            }
        };
        let entries: Vec<String> = listed
            .members()
            .iter()
            .map(|member| {
                let url = member.peer_urls().concat();
                let name = if url == peer_url { &name } else { member.name() };
                format!("{name}={url}")
            })
            .collect();
        Ok(self.server.members[self.machine].join(&entries.join(","))?)
    }

    async fn stop_machine(&mut self) -> Result<()> {
        self.server.members[self.machine].kill().await?;
        // A member's id is made of its peer URLs and the second in which it is added, and never used again.
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(())
    }

    /// A client of the raft leader, the leader's id, and whether that is the machine's.
    async fn raft_leader(&self) -> Result<(Client, u64)> {
        for member in &self.server.members {
            let Ok(mut client) = Client::connect([&member.client_url], None).await else {
                continue;
            };
            let Ok(status) = client.status().await else {
                continue;
            };
            if status
                .header()
                .is_some_and(|header| header.member_id() == status.leader())
            {
                return Ok((client, status.leader()));
            }
        }
        bail!("no member is the raft leader")
    }

    /// Lets the machine's member lead.
    async fn let_lead(&self, member: u64) -> Result<()> {
        let (mut client, leader) = self.raft_leader().await?;
        if leader != member {
            client.move_leader(member).await?;
        }
        Ok(())
    }

    /// Adds the machine's member, and waits until it votes, with etcd's calls alone; its id.
    async fn raw_join(&mut self) -> Result<u64> {
        let peer_url = self.server.members[self.machine].peer_url.clone();
        let begun = Instant::now();
        let options = MemberAddOptions::new().with_is_learner();
        let added = self.client.member_add([peer_url], Some(options)).await?;
        let id = added.member().context("a member")?.id();
        self.start_machine(id).await?;
        while self.client.member_promote(id).await.is_err() {
            if begun.elapsed() > LIMIT {
                bail!("the learner is not promoted within {LIMIT:?}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(id)
    }

    /// The time from the add to a voter, and from the removal to its end, with etcd's calls alone.
    pub async fn raw(&mut self, leading: bool) -> Result<(Duration, Duration)> {
        let begun = Instant::now();
        let id = self.raw_join().await?;
        let up = begun.elapsed();
        if leading {
            self.let_lead(id).await?;
        }
        let begun = Instant::now();
        if leading {
            let (mut client, _) = self.raft_leader().await?;
            let other = self.client.member_list().await?;
            let other = other
                .members()
                .iter()
                .find(|member| member.id() != id)
                .context("another member")?;
            client.move_leader(other.id()).await?;
        }
        self.client.member_remove(id).await?;
        let down = begun.elapsed();
        self.stop_machine().await?;
        Ok((up, down))
    }

    /// The time of the writes that a demotion cannot do without, with etcd's calls alone: the request, the intent, the
    /// removal and its result, one after the other.
    pub async fn raw_writes_of_a_demotion(&mut self) -> Result<Duration> {
        let id = self.raw_join().await?;
        let begun = Instant::now();
        self.client.put("/request", "", None).await?;
        self.client.put("/intent", "", None).await?;
        self.client.member_remove(id).await?;
        self.client.put("/result", "", None).await?;
        let took = begun.elapsed();
        self.stop_machine().await?;
        Ok(took)
    }

    /// The time to replace the machine's member, whose disk is lost, with etcd's calls alone.
    pub async fn raw_replacement(&mut self) -> Result<Duration> {
        let lost = self.raw_join().await?;
        self.stop_machine().await?;
        let begun = Instant::now();
        self.client.member_remove(lost).await?;
        let id = self.raw_join().await?;
        let took = begun.elapsed();
        self.client.member_remove(id).await?;
        self.stop_machine().await?;
        Ok(took)
    }

    /// The keys of the machine's node and of its join.
    fn keys(&self) -> (String, String) {
        let name = &self.server.members[self.machine].name;
        (format!("/quorate/nodes/{name}"), format!("/quorate/joins/{name}"))
    }

    /// Requests a join of the machine, in the place of the lost member if one is given, starts its etcd, and waits until it
    /// votes; its member.
    async fn join(&mut self, seen: &mut Seen, replaces: u64) -> Result<u64> {
        let machine = &self.server.members[self.machine];
        let join = Join {
            request: Some(JoinRequest {
                id: uuid::Uuid::new_v4().to_string(),
                node_uid: uid(&machine.name),
                peer_urls: vec![machine.peer_url.clone()],
                replaces,
                ..JoinRequest::default()
            }),
            ..Join::default()
        };
        let (_, key) = self.keys();
        self.client.put(key.as_str(), join.encode_to_vec(), None).await?;
        let member = seen.progress(&key, Progress::Learner).await?;
        self.start_machine(member).await?;
        seen.progress(&key, Progress::Voter).await?;
        Ok(member)
    }

    /// The time of a replacement through roles.
    pub async fn replacement_through_roles(&mut self) -> Result<Duration> {
        let name = self.server.members[self.machine].name.clone();
        let (node_key, join_key) = self.keys();
        self.client.delete(join_key.as_str(), None).await?;
        let mut seen = Seen::watch(&self.client, "/quorate/").await?;
        self.client
            .put(node_key.as_str(), node(&name, Role::Manager, Role::Manager), None)
            .await?;
        let lost = self.join(&mut seen, 0).await?;
        self.stop_machine().await?;
        let begun = Instant::now();
        self.join(&mut seen, lost).await?;
        let took = begun.elapsed();
        self.client
            .put(node_key.as_str(), node(&name, Role::Worker, Role::Manager), None)
            .await?;
        seen.role(&node_key, Role::Worker).await?;
        self.stop_machine().await?;
        Ok(took)
    }

    /// The same as [`Cluster::raw`] through roles, requested by the writes of operators and nodes.
    pub async fn through_roles(&mut self, leading: bool) -> Result<(Duration, Duration)> {
        let name = self.server.members[self.machine].name.clone();
        let (node_key, join_key) = self.keys();
        self.client
            .put(node_key.as_str(), node(&name, Role::Worker, Role::Worker), None)
            .await?;
        self.client.delete(join_key.as_str(), None).await?;
        let mut seen = Seen::watch(&self.client, "/quorate/").await?;

        let begun = Instant::now();
        self.client
            .put(node_key.as_str(), node(&name, Role::Manager, Role::Worker), None)
            .await?;
        seen.role(&node_key, Role::Manager).await?;
        let member = self.join(&mut seen, 0).await?;
        let up = begun.elapsed();
        if leading {
            self.let_lead(member).await?;
        }
        let begun = Instant::now();
        self.client
            .put(node_key.as_str(), node(&name, Role::Worker, Role::Manager), None)
            .await?;
        seen.role(&node_key, Role::Worker).await?;
        let down = begun.elapsed();
        self.stop_machine().await?;
        Ok((up, down))
    }
}
