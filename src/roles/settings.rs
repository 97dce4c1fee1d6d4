//! The settings with which etcd starts as a member that is listed already. Pure.

use std::collections::BTreeSet;

use crate::etcd::MemberId;
use crate::etcd::members::{ListedMember, MemberList};
use crate::store::Name;

/// etcd's usual port for clients.
const CLIENT_PORT: u16 = 2379;

/// What etcd starts with as a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdSettings {
    /// Whether the member does not vote yet.
    pub learner: bool,
    /// Whether it has started before: it then starts on the data that it has, and on no other.
    pub started: bool,
    /// The environment variables, in the order in which they are shown.
    pub variables: Vec<(&'static str, String)>,
}

impl EtcdSettings {
    /// The settings for this member of the node; `None` if it is not in the list.
    pub fn new(
        node: &Name,
        member: MemberId,
        list: &MemberList,
        peer_urls: &[String],
        client_urls: &[String],
    ) -> Option<Self> {
        let own = list.member(member)?;
        let own_name = own_name(node, own, list);
        let is_unique = |name: &str| {
            let others = list.members.iter().filter(|other| other.id != member);
            name != own_name && others.filter(|other| other.name == name).count() == 1
        };
        let name_of = |listed: &ListedMember| match listed.id == member {
            true => own_name.clone(),
            false if is_plain(&listed.name) && is_unique(&listed.name) => listed.name.clone(),
            // etcd compares the number of members and their URLs, so any unique name will do: for a member that never
            // started, and for one whose name etcd would take for something else.
            false => listed.id.to_string(),
        };
        let mut variables = vec![("ETCD_NAME", own_name.clone())];
        // With the members, etcd would start a member that has lost its data as one that has forgotten its log and its
        // votes: acknowledged writes could be lost. Without them, an empty directory is an error, and a data directory
        // needs none.
        if !own.is_started() {
            let entries = list.members.iter().flat_map(|listed| {
                let name = name_of(listed);
                listed.peer_urls.iter().map(move |url| format!("{name}={url}"))
            });
            variables.push(("ETCD_INITIAL_CLUSTER", entries.collect::<Vec<_>>().join(",")));
        }
        variables.extend([
            ("ETCD_INITIAL_CLUSTER_STATE", "existing".to_owned()),
            ("ETCD_INITIAL_ADVERTISE_PEER_URLS", peer_urls.join(",")),
        ]);
        // etcd listens on addresses, not on host names.
        if peer_urls.iter().all(|url| is_address(url)) {
            variables.push(("ETCD_LISTEN_PEER_URLS", peer_urls.join(",")));
        }
        let client_urls = match (client_urls.is_empty(), own.client_urls.is_empty()) {
            (false, _) => client_urls.to_vec(),
            (true, false) => own.client_urls.clone(),
            (true, true) => default_client_urls(peer_urls),
        };
        variables.push(("ETCD_ADVERTISE_CLIENT_URLS", client_urls.join(",")));
        if client_urls.iter().all(|url| is_address(url)) {
            variables.push(("ETCD_LISTEN_CLIENT_URLS", client_urls.join(",")));
        }
        Some(Self {
            learner: own.learner,
            started: own.is_started(),
            variables,
        })
    }
}

/// Whether etcd reads this in a list of members as it is. The list has the form of a URL's query.
fn is_plain(name: &str) -> bool {
    let plain = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.');
    !name.is_empty() && name.chars().all(plain)
}

/// The name of the member if it has one, else that of the node. etcd would take two members with one name for a single one
/// with the URLs of both.
fn own_name(node: &Name, own: &ListedMember, list: &MemberList) -> String {
    let wanted = if own.is_started() {
        own.name.clone()
    } else {
        node.to_string()
    };
    let taken = |listed: &ListedMember| listed.id != own.id && listed.name == wanted;
    match list.members.iter().any(taken) {
        true => format!("{wanted}-{}", own.id),
        false => wanted,
    }
}

/// The hosts of the peer URLs at etcd's usual port for clients. Without any, etcd would advertise localhost, where no other
/// machine reaches it.
pub fn default_client_urls(peer_urls: &[String]) -> Vec<String> {
    let hosts: BTreeSet<String> = peer_urls
        .iter()
        .filter_map(|url| Some(format!("{}:{CLIENT_PORT}", url.rsplit_once(':')?.0)))
        .collect();
    hosts.into_iter().collect()
}

fn is_address(url: &str) -> bool {
    let authority = url.split_once("://").map_or(url, |(_, authority)| authority);
    authority.parse::<std::net::SocketAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(id: u64, name: &str, peer_urls: &[&str]) -> ListedMember {
        ListedMember {
            id: MemberId(id),
            name: name.to_owned(),
            peer_urls: peer_urls.iter().map(ToString::to_string).collect(),
            client_urls: Vec::new(),
            learner: name.is_empty(),
        }
    }

    fn list(members: Vec<ListedMember>) -> MemberList {
        MemberList {
            members,
            answered_by: MemberId(1),
        }
    }

    fn variable<'a>(settings: &'a EtcdSettings, name: &str) -> Option<&'a str> {
        let found = settings.variables.iter().find(|(own, _)| *own == name);
        found.map(|(_, value)| value.as_str())
    }

    #[test]
    fn the_cluster_has_every_member_and_the_new_one_under_the_name_of_its_node() {
        let list = list(vec![
            listed(1, "etcd-1", &["http://10.0.0.1:2380"]),
            listed(2, "", &["http://10.0.0.4:2380", "http://[::1]:2380"]),
        ]);
        let urls = list.members[1].peer_urls.clone();
        let client = ["http://n4:2379".to_owned()];
        let made = EtcdSettings::new(&"n4".parse().unwrap(), MemberId(2), &list, &urls, &client).unwrap();
        let said: Vec<String> = made
            .variables
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            said,
            [
                "ETCD_NAME=n4",
                "ETCD_INITIAL_CLUSTER=etcd-1=http://10.0.0.1:2380,n4=http://10.0.0.4:2380,n4=http://[::1]:2380",
                "ETCD_INITIAL_CLUSTER_STATE=existing",
                "ETCD_INITIAL_ADVERTISE_PEER_URLS=http://10.0.0.4:2380,http://[::1]:2380",
                "ETCD_LISTEN_PEER_URLS=http://10.0.0.4:2380,http://[::1]:2380",
                "ETCD_ADVERTISE_CLIENT_URLS=http://n4:2379",
            ]
        );
        assert!(made.learner && !made.started);
    }

    #[test]
    fn a_member_whose_name_etcd_would_misread_or_that_another_one_has_goes_by_its_id() {
        let list = list(vec![
            listed(1, "a=b,c", &["http://a:2380"]),
            listed(2, "default", &["http://b:2380"]),
            listed(3, "default", &["http://c:2380"]),
            listed(4, "", &["http://d:2380"]),
        ]);
        let urls = list.members[3].peer_urls.clone();
        let made = EtcdSettings::new(&"n4".parse().unwrap(), MemberId(4), &list, &urls, &[]).unwrap();
        assert_eq!(
            variable(&made, "ETCD_INITIAL_CLUSTER"),
            Some(
                "0000000000000001=http://a:2380,0000000000000002=http://b:2380,0000000000000003=http://c:2380,\
                 n4=http://d:2380"
            )
        );
    }

    #[test]
    fn no_two_members_get_the_same_name() {
        let list = list(vec![
            listed(1, "n4", &["http://a:2380"]),
            listed(2, "", &["http://b:2380"]),
        ]);
        let urls = list.members[1].peer_urls.clone();
        let made = EtcdSettings::new(&"n4".parse().unwrap(), MemberId(2), &list, &urls, &[]).unwrap();
        assert_eq!(
            variable(&made, "ETCD_ADVERTISE_CLIENT_URLS"),
            Some("http://b:2379"),
            "where none is given"
        );
        assert_eq!(variable(&made, "ETCD_NAME"), Some("n4-0000000000000002"));
        assert_eq!(
            variable(&made, "ETCD_INITIAL_CLUSTER"),
            Some("n4=http://a:2380,n4-0000000000000002=http://b:2380")
        );
        assert_eq!(variable(&made, "ETCD_LISTEN_PEER_URLS"), None, "b is a host name");
    }

    #[test]
    fn a_started_member_keeps_its_name_and_gets_no_settings_for_an_empty_disk_and_an_unlisted_one_is_a_failure()
     {
        let list = list(vec![listed(1, "other", &["http://a:2380"])]);
        let node = "n1".parse().unwrap();
        let made = EtcdSettings::new(&node, MemberId(1), &list, &["http://a:2380".to_owned()], &[]).unwrap();
        assert_eq!(variable(&made, "ETCD_NAME"), Some("other"));
        assert_eq!(variable(&made, "ETCD_INITIAL_CLUSTER"), None);
        // Without this, etcd would start a cluster of its own.
        assert_eq!(variable(&made, "ETCD_INITIAL_CLUSTER_STATE"), Some("existing"));
        assert!(!made.learner && made.started);
        assert_eq!(EtcdSettings::new(&node, MemberId(9), &list, &[], &[]), None);
    }
}
