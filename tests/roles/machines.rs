//! The machines of nodes: they ask to join, start what was added, and end once they were removed.

use prost::Message;
use quorate::etcd::members::ChangeFault;
use quorate::etcd::{MemberId, Revision, Txn};
use quorate::proto::join::Progress;
use quorate::proto::{Join, JoinRequest, Role};
use quorate_dev::etcd::Member;

use super::world::{LONG, World, name, node};
use crate::support::proxy::Proxy;
use crate::support::wait::{eventually, same};

fn request(id: &str, uid: String, peer_urls: &[String]) -> JoinRequest {
    JoinRequest {
        id: id.to_owned(),
        node_uid: uid,
        peer_urls: peer_urls.to_vec(),
        requested_at: Some(prost_types::Timestamp::from(std::time::SystemTime::now())),
        no_dial: false,
        ..JoinRequest::default()
    }
}

impl World {
    /// Adds a machine to the cluster of the test, without starting its etcd. Returns the name of its node.
    pub fn add_machine(&mut self) -> String {
        let member = self.etcd.add().unwrap();
        member.name.clone()
    }

    pub fn machine(&mut self, of: &str) -> &mut Member {
        let mut members = self.etcd.members.iter_mut();
        members
            .find(|member| member.name == of)
            .expect("there is such a machine")
    }

    /// Has clients reach the last member through a proxy.
    pub async fn last_behind_proxy(&mut self) -> Proxy {
        let last = self.etcd.members.len() - 1;
        let proxy = self.etcd.behind_proxy(last).await;
        let name = &self.etcd.members[last].name;
        eventually(LONG, "the proxy's address is known", async || {
            let list = self.list().await;
            let member = list.members.iter().find(|member| member.name == *name);
            same(member.unwrap().client_urls.clone(), vec![proxy.url()])
        })
        .await;
        proxy
    }

    pub fn peer_urls(&self, of: &str) -> Vec<String> {
        let member = self.etcd.members.iter().find(|member| member.name == of);
        vec![member.expect("there is such a machine").peer_url.clone()]
    }

    pub async fn join(&self, of: &str) -> Option<(Join, Revision)> {
        let stored = self.read(&self.store.keys.join(&name(of))).await?;
        Some((Join::decode(&*stored.value).unwrap(), stored.mod_revision))
    }

    /// Writes a request to join, as `quorate join` does. Returns its id.
    pub async fn ask_to_join(&self, of: &str, peer_urls: &[String]) -> String {
        let id = uuid::Uuid::new_v4().to_string();
        let uid = match self.node(of).await {
            Some((node, _)) => node.metadata.unwrap_or_default().uid,
            None => format!("uid-of-{of}"),
        };
        self.change(&self.store.keys.join(&name(of)), |stored| {
            let mut join = stored.map_or_else(Join::default, |value| Join::decode(value).unwrap());
            join.request = Some(request(&id, uid.clone(), peer_urls));
            join.encode_to_vec()
        })
        .await;
        id
    }

    /// Waits until the request has this progress.
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

    /// Waits until the member has no intent to move. Returns its record.
    pub async fn wait_settled(&self, id: MemberId) -> quorate::proto::Member {
        eventually(LONG, "the member has settled", async || {
            let record = self.member(id).await.ok_or("it has no record")?;
            match record.readdress {
                None => Ok(record),
                Some(_) => Err("it moves"),
            }
        })
        .await
    }

    /// Adds a learner without a record, and writes the intent to add it for this node, like a leader that ended while etcd
    /// added the member. The node is a manager, unless it is said to be gone. The request's id is `r`.
    pub async fn half_add(&self, of: &str, urls: &[String], gone: bool) -> MemberId {
        let voter = self.list().await.voters().next().unwrap().clone();
        let added = eventually(LONG, "etcd takes a learner", async || {
            // An attempt that failed may have been carried out all the same.
            let mut list = self.list().await.members.into_iter();
            match list.find(|member| member.peer_urls == urls) {
                Some(member) => Ok(member.id),
                None => {
                    let added = self.store.etcd.add_learner(&voter, urls).await;
                    added.map(|member| member.id)
                }
            }
        })
        .await;
        let uid = format!("uid-of-{of}");
        let join = Join {
            request: Some(request("r", uid.clone(), urls)),
            answers: "r".to_owned(),
            progress: Progress::Adding.into(),
            peer_urls: urls.to_vec(),
            node_uid: uid,
            changed_at: Some(prost_types::Timestamp::from(std::time::SystemTime::now())),
            ..Join::default()
        };
        let keys = &self.store.keys;
        let mut txn = Txn::new().put(&keys.join(&name(of)), join.encode_to_vec());
        if !gone {
            let manager = node(of, Role::Manager, Role::Manager).encode_to_vec();
            txn = txn.put(&keys.node(&name(of)), manager);
        }
        self.commit(txn).await;
        added
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

    /// Promotes the node, lets it join, and waits until its member votes.
    pub async fn bring_up(&mut self, of: &str) {
        self.wait_role(of, Role::Manager).await;
        let request = self.ask_to_join(of, &self.peer_urls(of)).await;
        self.wait_join(of, &request, Progress::Learner).await;
        self.start_added(of).await;
        self.wait_join(of, &request, Progress::Voter).await;
    }

    /// Takes a node's member out of the list, as an operator would with etcdctl.
    pub async fn take_out(&self, of: &str) {
        let list = self.list().await;
        let victim = list.members.iter().find(|member| member.name == of).unwrap();
        let through = list.voters().find(|member| member.id != victim.id).unwrap();
        eventually(LONG, "the member is taken out", async || {
            match self.store.etcd.remove_member(through, victim).await {
                Err(error) if error.fault != ChangeFault::MemberNotFound => Err(error),
                _ => Ok(()),
            }
        })
        .await;
    }

    /// Stops the etcd of a node that is no longer a member. Usually it has stopped by itself.
    pub async fn tear_down(&mut self, of: &str) {
        let machine = self.machine(of);
        machine.kill().await.unwrap();
        let log = std::fs::read_to_string(machine.log_file()).unwrap();
        assert!(
            !log.contains("panic"),
            "{of} was asked for its status while it left: {log}"
        );
    }
}
