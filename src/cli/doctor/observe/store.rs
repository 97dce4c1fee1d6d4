//! What etcd holds: the members, every range of keys, what may be written, and the plugins by their records.

use std::time::Duration;

use futures::future::join_all;

use super::{LIMIT, plugins};
use crate::cli::doctor::seen::{RangeSeen, StoreSeen};
use crate::cli::exit::Failure;
use crate::etcd::checkup::{self, EndpointSeen};
use crate::etcd::{Config, ConnectError, Etcd, KeyRange, KeyValue};
use crate::metrics::Metrics;
use crate::roles::facts::Facts;
use crate::roles::membership::Membership;
use crate::store::keys::KeySpace;
use crate::store::{Keys, Store};

/// Reads everything, without a quorum if there is none.
///
/// # Errors
/// Why nothing can be read, in words.
pub async fn observe(config: &Config, keys: &Keys) -> Result<StoreSeen, String> {
    let etcd = connect(config).await?;
    let store = Store {
        etcd,
        keys: keys.clone(),
    };
    let (facts, ranges) = tokio::join!(Facts::with_health(&store), ranges(&store));
    let membership = facts
        .map(|facts| facts.membership)
        .map_err(|not_read| Failure::from(not_read).to_string().replace("\n  ", "; "));
    // A learner alone among the endpoints serves no linearizable read either, and the members may.
    let without_quorum = is_alone(&store) && !membership.as_ref().is_ok_and(Membership::serves);
    let stored = || {
        ranges
            .iter()
            .filter_map(|range| range.read.as_ref().ok())
            .flatten()
    };
    let (leader_ttl, plugins, members) = tokio::join!(
        leader_ttl(&store, stored()),
        plugins::observe(keys, stored()),
        members(config, membership.as_ref().ok()),
    );
    Ok(StoreSeen {
        without_quorum,
        membership,
        members,
        ranges,
        leader_ttl,
        plugins,
    })
}

/// Connects to the endpoints that answer; to those that answer by themselves where none serves.
async fn connect(config: &Config) -> Result<Etcd, String> {
    let metrics = || Metrics::new(env!("CARGO_PKG_VERSION"));
    let refused = match Etcd::connect(config.clone(), metrics()).await {
        Ok(etcd) => return Ok(etcd),
        Err(refused) => refused,
    };
    let alone = Config {
        serializable: true,
        ..config.clone()
    };
    let connected = Etcd::connect(alone, metrics()).await;
    connected.map_err(|_| match refused {
        ConnectError::Config(_) | ConnectError::Setup(_) => "the settings are wrong".to_owned(),
        ConnectError::NoneAnswers(_) => "no endpoint answers".to_owned(),
        ConnectError::Unopened(_) => "the connection cannot be opened".to_owned(),
        ConnectError::SeveralClusters(_) => "the endpoints belong to several clusters".to_owned(),
    })
}

/// Whether this is what single members hold.
fn is_alone(store: &Store) -> bool {
    store.etcd.config().serializable
}

/// Every range that Quorate reads and writes.
fn ranges_of(keys: &Keys) -> Vec<KeyRange> {
    vec![
        keys.nodes(),
        keys.all_alive(),
        keys.joins(),
        keys.members(),
        keys.all_removed(),
        KeyRange::key(keys.roles_pause()),
        KeyRange::key(keys.last_roles_pause()),
        keys.log_levels(),
        keys.services(),
        keys.networks(),
        keys.tasks(),
        keys.volumes(),
        keys.publications(),
        keys.plugins(),
        keys.secrets(),
        KeyRange::key(keys.encryption_key()),
        keys.tombstones(),
        keys.join_tokens(),
        KeySpace::CERTIFICATES.all(keys),
        KeySpace::ETCD_CERTIFICATES.all(keys),
        KeyRange::key(keys.revocation_list()),
        KeyRange::key(keys.rotation_request()),
        KeyRange::key(keys.rotation()),
        keys.replica_trusts(),
        keys.reconciler(),
    ]
}

async fn ranges(store: &Store) -> Vec<RangeSeen> {
    let Store { etcd, keys } = store;
    let asked = ranges_of(keys).into_iter().map(async |range| {
        let write = async {
            match is_alone(store) {
                true => None,
                false => Some(etcd.may_write(range.start()).await),
            }
        };
        let (read, write) = tokio::join!(etcd.list(&range), write);
        RangeSeen {
            prefix: String::from_utf8_lossy(range.start()).into_owned(),
            read: read.map(|(keys, _)| keys),
            write,
        }
    });
    join_all(asked).await
}

/// The TTL that etcd granted the leader's lease; `None` without a leader, or where etcd does not say it.
async fn leader_ttl<'s>(store: &Store, stored: impl Iterator<Item = &'s KeyValue>) -> Option<Duration> {
    let candidates = store.keys.candidates();
    let standing = stored.filter(|kv| candidates.contains(&kv.key));
    let lease = standing.min_by_key(|kv| kv.create_revision)?.lease?;
    if is_alone(store) {
        return None;
    }
    store.etcd.granted_ttl(lease).await.ok()
}

/// Looks at the members' own client URLs, those that are no configured endpoints.
async fn members(config: &Config, membership: Option<&Membership>) -> Vec<EndpointSeen> {
    let listed = membership.into_iter().flat_map(Membership::listed);
    let urls = listed.filter_map(|member| Some(&member.listed.as_ref()?.client_urls));
    let urls = urls.flatten().filter(|url| !config.endpoints.contains(url));
    let endpoints: Vec<String> = urls.cloned().collect();
    if endpoints.is_empty() {
        return Vec::new();
    }
    let own = Config {
        endpoints,
        ..config.clone()
    };
    // A URL that does not fit the settings is found with its member.
    checkup::look(&own, LIMIT).await.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::objects::kinds::registry::KINDS;

    #[test]
    fn every_kind_lies_in_a_range_that_is_read() {
        let keys = Keys::new("/q".parse().unwrap());
        let ranges = ranges_of(&keys);
        for kind in KINDS {
            let start = kind.space.all(&keys).start().to_vec();
            let is_read = ranges
                .iter()
                .any(|range| range.start() == start || range.contains(&start));
            assert!(is_read, "{kind:?}");
        }
    }
}
