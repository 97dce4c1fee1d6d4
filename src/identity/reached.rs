//! Where the etcd of a node is reached, as far as that is on record: what its certificate says. Pure.

use std::collections::BTreeMap;

use super::etcd::Host;
use super::plan::Refusal;
use crate::etcd::{KeyValue, MemberId, Revision};
use crate::proto::Join;
use crate::proto::join::Progress;
use crate::store::object::member::{decode_join, decode_member, is_answered};

/// The record of a member, as far as certificates depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedMember {
    /// The name of its node.
    pub node: Box<str>,
    /// The uid of its node.
    pub uid: Box<str>,
    /// Whether its removal is decided.
    pub leaves: bool,
    /// Whether its promotion to a voter is decided. The record says so for good.
    pub is_promoted: bool,
    /// Whether other peer URLs for it are decided.
    pub moves: bool,
    /// Its peer URLs.
    pub peer_urls: Vec<String>,
    /// When the record was made: which of two members had a host first.
    pub created: Revision,
    /// When it was last written.
    pub revision: Revision,
}

impl RecordedMember {
    /// Reads a stored record; `None` if it cannot be read.
    pub fn read(kv: &KeyValue) -> Option<Self> {
        let member = decode_member(&kv.value).ok()?;
        Some(Self {
            node: member.node.into(),
            uid: member.node_uid.into(),
            leaves: member.removal.is_some(),
            is_promoted: member.promotion.is_some(),
            moves: member.readdress.is_some(),
            peer_urls: member.peer_urls,
            created: kv.create_revision,
            revision: kv.mod_revision,
        })
    }
}

/// A join, as far as certificates depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedJoin {
    /// The uid of the node that asks.
    pub uid: Box<str>,
    /// The peer URLs and the client URLs that it asks with, and those of the add that was made for it.
    pub urls: Vec<String>,
    /// When it was last written.
    pub revision: Revision,
}

impl RecordedJoin {
    /// Reads a stored join; `None` if it cannot be read, or holds no request.
    pub fn read(kv: &KeyValue) -> Option<Self> {
        Self::of(decode_join(&kv.value).ok()?, kv.mod_revision)
    }

    /// The facts of a join that was last written at this revision; `None` if it holds no request.
    pub fn of(join: Join, revision: Revision) -> Option<Self> {
        let is_refused = is_answered(&join) && join.progress() == Progress::Refused;
        let request = join.request?;
        let mut urls = request.client_urls;
        // The member never gets a peer URL that was refused.
        if !is_refused {
            urls.extend(request.peer_urls);
        }
        if join.node_uid == request.node_uid {
            urls.extend(join.peer_urls);
        }
        Some(Self {
            uid: request.node_uid.into(),
            urls,
            revision,
        })
    }
}

/// A node whose join is in force: it has a member that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The member, and when its record was last written.
    pub member: (MemberId, Revision),
    /// When the join was last written.
    pub join: Revision,
    /// What the certificate says: the hosts on record for the node, and its name.
    pub hosts: Vec<Host>,
}

/// How good the claim of a node to a host is; the least is the best. What etcd's own list says counts more than what a node asks for,
/// and of two members the one that was recorded first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    /// A peer URL of its member has the host, whose record was made at this revision.
    Member(Revision),
    /// It has a member, and its join names the host.
    Joined,
    /// It asks to join with the host.
    Asks,
}

/// Members and joins as they are on record.
pub struct Place<'a> {
    /// Every record of a member that can be read.
    pub members: &'a [(MemberId, &'a RecordedMember)],
    /// The joins of all managers that can be read, by the names of their nodes.
    pub joins: &'a [(&'a str, &'a RecordedJoin)],
}

impl Place<'_> {
    /// What the certificate of this node's member says.
    ///
    /// # Errors
    /// The node has no join in force, or a host of its is on record for another node.
    pub fn joined(&self, node: &str, uid: &str) -> Result<Joined, Refusal> {
        let own = self
            .members
            .iter()
            .find(|(_, member)| &*member.uid == uid && !member.leaves);
        let join = self
            .joins
            .iter()
            .find(|(name, join)| *name == node && &*join.uid == uid);
        let (Some((id, member)), Some((_, join))) = (own, join) else {
            return Err(Refusal::NotJoined);
        };
        let mut claims = Claims::default();
        claims.add(&member.peer_urls, Claim::Member(member.created), node);
        claims.add(&join.urls, Claim::Joined, node);
        // A name that is no host is that of no machine.
        claims.add_host(Host::parse(node).ok(), Claim::Joined, node);
        let others = self.claims_of_others(node, uid);
        let taken = claims.0.iter().find_map(|(host, (own, _))| {
            let (claim, other) = others.0.get(host)?;
            (claim <= own).then(|| Refusal::HostTaken {
                host: host.to_string(),
                node: (*other).to_owned(),
            })
        });
        match taken {
            Some(refusal) => Err(refusal),
            None => Ok(Joined {
                member: (*id, member.revision),
                join: join.revision,
                hosts: claims.0.into_keys().collect(),
            }),
        }
    }

    fn claims_of_others(&self, node: &str, uid: &str) -> Claims<'_> {
        let mut claims = Claims::default();
        let others = self.members.iter().filter(|(_, member)| &*member.uid != uid);
        for (_, member) in others {
            claims.add(&member.peer_urls, Claim::Member(member.created), &member.node);
        }
        for (name, join) in self.joins.iter().filter(|(name, _)| *name != node) {
            let has_member = self.members.iter().any(|(_, member)| member.uid == join.uid);
            let claim = if has_member { Claim::Joined } else { Claim::Asks };
            claims.add(&join.urls, claim, name);
        }
        claims
    }
}

/// The best claim to each host, with the name of the node.
#[derive(Default)]
struct Claims<'a>(BTreeMap<Host, (Claim, &'a str)>);

impl<'a> Claims<'a> {
    fn add(&mut self, urls: &[String], claim: Claim, node: &'a str) {
        for url in urls {
            self.add_host(Host::of_url(url), claim, node);
        }
    }

    fn add_host(&mut self, host: Option<Host>, claim: Claim, node: &'a str) {
        // Every machine has these for itself.
        if let Some(host) = host.filter(|host| !host.is_local()) {
            let best = self.0.entry(host).or_insert((claim, node));
            *best = (*best).min((claim, node));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::JoinRequest;

    fn member(node: &str, urls: &[&str], created: i64) -> RecordedMember {
        RecordedMember {
            node: node.into(),
            uid: format!("uid-of-{node}").into(),
            leaves: false,
            is_promoted: false,
            moves: false,
            peer_urls: urls.iter().map(ToString::to_string).collect(),
            created: Revision(created),
            revision: Revision(created),
        }
    }

    fn join(node: &str, urls: &[&str]) -> RecordedJoin {
        RecordedJoin {
            uid: format!("uid-of-{node}").into(),
            urls: urls.iter().map(ToString::to_string).collect(),
            revision: Revision(30),
        }
    }

    type Members<'a> = [(&'a str, &'a [&'a str], i64)];
    type Joins<'a> = [(&'a str, &'a [&'a str])];

    /// The hosts of the certificate of n1.
    fn hosts(members: &Members<'_>, joins: &Joins<'_>) -> Result<Vec<String>, Refusal> {
        let members: Vec<RecordedMember> = members
            .iter()
            .map(|(node, urls, created)| member(node, urls, *created))
            .collect();
        let ids = (1..).map(MemberId).zip(&members).collect::<Vec<_>>();
        let made: Vec<(&str, RecordedJoin)> = joins
            .iter()
            .map(|(node, urls)| (*node, join(node, urls)))
            .collect();
        let joins: Vec<(&str, &RecordedJoin)> = made.iter().map(|(node, join)| (*node, join)).collect();
        let place = Place {
            members: &ids,
            joins: &joins,
        };
        let joined = place.joined("n1", "uid-of-n1")?;
        Ok(joined.hosts.iter().map(ToString::to_string).collect())
    }

    fn taken(host: &str, node: &str) -> Refusal {
        Refusal::HostTaken {
            host: host.to_owned(),
            node: node.to_owned(),
        }
    }

    #[test]
    fn the_hosts_are_those_of_the_member_and_of_its_join_and_the_name() {
        let (peer, client) = ("https://10.0.0.1:2380", "https://etcd-1.example:2379");
        let made = hosts(&[("n1", &[peer], 5)], &[("n1", &[peer, client])]).unwrap();
        assert_eq!(made, ["etcd-1.example", "n1", "10.0.0.1"]);
        let local = ["https://127.0.0.1:2380", "https://localhost:2379"];
        let made = hosts(
            &[("n1", &local, 5), ("n2", &local, 4)],
            &[("n1", &local), ("n2", &local)],
        );
        assert_eq!(made.unwrap(), ["n1"], "each machine has those of its own");
    }

    #[test]
    fn without_a_member_that_stays_or_a_join_of_this_very_node_nothing_is_in_force() {
        let urls: &[&str] = &["https://10.0.0.1:2380"];
        assert_eq!(hosts(&[], &[("n1", urls)]), Err(Refusal::NotJoined));
        assert_eq!(hosts(&[("n1", urls, 5)], &[]), Err(Refusal::NotJoined));
        assert_eq!(
            hosts(&[("n2", urls, 5)], &[("n1", urls)]),
            Err(Refusal::NotJoined),
            "the member of another node"
        );
        let (stays, own) = (member("n1", urls, 5), join("n1", urls));
        let leaving = RecordedMember {
            leaves: true,
            ..stays.clone()
        };
        let earlier = RecordedJoin {
            uid: "earlier".into(),
            ..own.clone()
        };
        let is_joined = |member: &RecordedMember, join: &RecordedJoin| {
            let place = Place {
                members: &[(MemberId(1), member)],
                joins: &[("n1", join)],
            };
            place.joined("n1", "uid-of-n1").is_ok()
        };
        assert!(is_joined(&stays, &own));
        assert!(!is_joined(&leaving, &own));
        assert!(!is_joined(&stays, &earlier));
    }

    #[test]
    fn a_host_on_record_for_another_node_is_refused() {
        let (own, other): (&[&str], &[&str]) = (&["https://10.0.0.1:2380"], &["https://10.0.0.2:2380"]);
        let client: &[&str] = &["https://10.0.0.2:2379"];
        let two: &Members<'_> = &[("n1", own, 5), ("n2", other, 9)];
        assert_eq!(hosts(two, &[("n1", client)]), Err(taken("10.0.0.2", "n2")));
        let joins: &Joins<'_> = &[("n1", client), ("n3", client)];
        assert!(hosts(&[("n1", own, 5)], joins).is_ok(), "n3 only asks");
        let third: &Members<'_> = &[("n1", own, 5), ("n3", other, 9)];
        assert_eq!(hosts(third, joins), Err(taken("10.0.0.2", "n3")));
        // In whatever form it is written: etcd takes a certificate with one for the other.
        let mapped: &[&str] = &["https://[::ffff:10.0.0.2]:2379"];
        assert_eq!(hosts(two, &[("n1", mapped)]), Err(taken("10.0.0.2", "n2")));
        let all: &[&str] = &["https://*.example:2379"];
        assert_eq!(hosts(two, &[("n1", all)]).unwrap(), ["n1", "10.0.0.1"]);
        // The name, too, is a host.
        let named: &[&str] = &["https://n1:2380"];
        assert_eq!(
            hosts(&[("n1", own, 5), ("n2", named, 9)], &[("n1", own)]),
            Err(taken("n1", "n2"))
        );
    }

    #[test]
    fn of_two_members_with_one_host_the_first_one_has_it() {
        let urls: &[&str] = &["https://10.0.0.1:2380"];
        let joins: &Joins<'_> = &[("n1", urls), ("n2", urls)];
        assert!(hosts(&[("n1", urls, 5), ("n2", urls, 9)], joins).is_ok());
        assert_eq!(
            hosts(&[("n1", urls, 9), ("n2", urls, 5)], joins),
            Err(taken("10.0.0.1", "n2"))
        );
    }

    #[test]
    fn peer_urls_that_were_refused_do_not_count_and_those_that_are_asked_for_do() {
        let asked = |progress: Progress, answers: &str| Join {
            request: Some(JoinRequest {
                id: "2".to_owned(),
                node_uid: "u".to_owned(),
                peer_urls: vec!["new".to_owned()],
                client_urls: vec!["client".to_owned()],
                ..JoinRequest::default()
            }),
            answers: answers.to_owned(),
            progress: progress.into(),
            peer_urls: vec!["old".to_owned()],
            node_uid: "u".to_owned(),
            ..Join::default()
        };
        let urls = |join| RecordedJoin::of(join, Revision(1)).unwrap().urls;
        assert_eq!(urls(asked(Progress::Voter, "2")), ["client", "new", "old"]);
        assert_eq!(urls(asked(Progress::Refused, "2")), ["client", "old"]);
        assert_eq!(urls(asked(Progress::Refused, "1")), ["client", "new", "old"]);
        let mut of_another = asked(Progress::Voter, "2");
        of_another.node_uid = "earlier".to_owned();
        assert_eq!(urls(of_another), ["client", "new"]);
        assert_eq!(RecordedJoin::of(Join::default(), Revision(1)), None);
    }
}
