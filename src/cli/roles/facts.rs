//! What requests about roles are checked against: etcd's member list, the health of its members, their records, and the
//! nodes of the records.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::cli::exit::Failure;
use crate::etcd::members::{ListedMember, MemberList, MemberReport};
use crate::etcd::{MemberId, Revision, Txn};
use crate::proto::{Member, Node, Role};
use crate::roles::checks::{Managed, Managers};
use crate::roles::owner::NodeRoles;
use crate::roles::quorum::Vote;
use crate::store::object::{Malformed, decode, member};
use crate::store::{Name, Store, keys::RoleKey};

/// How long a member may take to prove that it is healthy.
pub const HEALTH_LIMIT: Duration = Duration::from_secs(2);

/// The store's part and etcd's part, read for a single decision.
pub struct Facts {
    /// etcd's own list, read linearizably.
    pub list: MemberList,
    /// The answer of each member. Members that are being removed are not asked, since a request for the status can crash them.
    pub surveys: Vec<MemberReport>,
    /// Every member record.
    pub records: BTreeMap<MemberId, Record>,
    /// The input of the checks.
    pub managers: Managers,
    /// The nodes that the records name, and when each was last written; [`Revision::ABSENT`] if it does not exist.
    nodes: BTreeMap<Name, Revision>,
    /// The revision at which the records were read.
    revision: Revision,
}

/// A record below `/members/`.
pub struct Record {
    /// The record, if it can be read.
    pub member: Result<Member, Malformed>,
    /// When the record was last written.
    pub revision: Revision,
}

/// The records below `/members/`, and the revision at which they were read.
///
/// # Errors
/// etcd did not answer.
pub async fn records(store: &Store) -> Result<(BTreeMap<MemberId, Record>, Revision), Failure> {
    let (stored, revision) = store
        .etcd
        .list(&store.keys.members())
        .await
        .map_err(Failure::failed)?;
    let records = stored.iter().filter_map(|kv| {
        let RoleKey::Member(id) = store.keys.parse_role(&kv.key) else {
            return None;
        };
        let record = Record {
            member: member::decode_member(&kv.value),
            revision: kv.mod_revision,
        };
        Some((id, record))
    });
    Ok((records.collect(), revision))
}

/// Asks the listed members for their health, except those that are being removed.
pub async fn survey(
    store: &Store,
    list: &MemberList,
    records: &BTreeMap<MemberId, Record>,
) -> Vec<MemberReport> {
    let stays = |member: &&ListedMember| !records.get(&member.id).is_some_and(Record::is_removal_decided);
    let asked: Vec<ListedMember> = list.members.iter().filter(stays).cloned().collect();
    store.etcd.survey(&asked, HEALTH_LIMIT).await
}

impl Record {
    /// Whether the removal of the member is decided.
    pub fn is_removal_decided(&self) -> bool {
        self.member.as_ref().is_ok_and(|member| member.removal.is_some())
    }
}

impl Facts {
    /// Reads everything, and asks each member for its health.
    ///
    /// # Errors
    /// etcd did not answer: what could not be read proves nothing.
    pub async fn with_health(store: &Store) -> Result<Self, Failure> {
        Self::gather(store, true).await
    }

    /// Reads everything but the health of the members. They count as unhealthy, which only checks of quorum use.
    ///
    /// # Errors
    /// etcd did not answer: what could not be read proves nothing.
    pub async fn without_health(store: &Store) -> Result<Self, Failure> {
        Self::gather(store, false).await
    }

    async fn gather(store: &Store, health: bool) -> Result<Self, Failure> {
        let list = store.etcd.list_members().await.map_err(|error| {
            Failure::failed(format!("the member list cannot be read: {error}"))
                .hint("does etcd have a quorum? etcdctl endpoint health --cluster")
        })?;
        // As late as possible, since a member is not asked once its removal is recorded.
        let (records, revision) = records(store).await?;
        let surveys = match health {
            true => survey(store, &list, &records).await,
            false => Vec::new(),
        };
        let mut facts = Self {
            list,
            surveys,
            records,
            managers: Managers::default(),
            nodes: BTreeMap::new(),
            revision,
        };
        facts.tie(store).await?;
        Ok(facts)
    }

    /// Reads the node of each listed member that has a record.
    async fn tie(&mut self, store: &Store) -> Result<(), Failure> {
        for listed in &self.list.members {
            let survey = self.surveys.iter().find(|survey| survey.id == listed.id);
            let vote = Vote {
                id: listed.id,
                learner: listed.learner,
                healthy: survey.is_some_and(MemberReport::is_healthy),
            };
            let readable = self
                .records
                .get(&listed.id)
                .and_then(|record| Some((record.member.as_ref().ok()?, record.revision)));
            let Some((record, revision)) = readable else {
                self.managers.unmanaged.push((vote, listed.peer_urls.clone()));
                continue;
            };
            let roles = match record.node.parse::<Name>() {
                Ok(name) => {
                    let (node, _) = store
                        .etcd
                        .get(&store.keys.node(&name))
                        .await
                        .map_err(Failure::failed)?;
                    let found = node.as_ref().map_or(Revision::ABSENT, |kv| kv.mod_revision);
                    let roles = node.and_then(|kv| {
                        let node: Node = decode(name.as_str(), &kv.value).ok()?;
                        is_of(&node, &record.node_uid).then(|| roles_of(&node, kv.mod_revision))
                    });
                    self.nodes.insert(name, found);
                    roles
                }
                Err(_) => None,
            };
            self.managers.managed.push(Managed {
                vote,
                peer_urls: listed.peer_urls.clone(),
                record: revision,
                removal: record.removal.is_some(),
                node: record.node.clone(),
                roles,
            });
        }
        Ok(())
    }

    /// Adds the compares that nothing has changed that the check used, except the node of the request itself, which the
    /// request compares. etcd's own list cannot be compared; the leader reads it again.
    pub fn compare(&self, mut txn: Txn, store: &Store, except: &Name) -> Txn {
        for (name, revision) in self.nodes.iter().filter(|(name, _)| *name != except) {
            txn = txn.when_unchanged(&store.keys.node(name), *revision);
        }
        for (id, record) in &self.records {
            txn = txn.when_unchanged(&store.keys.member(*id), record.revision);
        }
        // No record was added either.
        txn.when_range_unwritten_since(&store.keys.members(), self.revision)
    }

    /// The listed members of a node, by its records.
    pub fn members_of(&self, node: &Name) -> Vec<&ListedMember> {
        let own = self.managers.of(node.as_str());
        own.filter_map(|managed| self.list.member(managed.vote.id))
            .collect()
    }
}

/// The roles of a node, for the checks.
pub fn roles_of(node: &Node, revision: Revision) -> NodeRoles {
    let role = |role: i32| Role::try_from(role).unwrap_or(Role::Unspecified);
    NodeRoles {
        desired: role(node.spec.unwrap_or_default().desired_role),
        observed: role(node.status.as_ref().map_or(0, |status| status.role)),
        revision,
    }
}

fn is_of(node: &Node, uid: &str) -> bool {
    node.metadata.as_ref().is_some_and(|metadata| metadata.uid == uid)
}
