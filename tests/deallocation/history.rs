//! Checks the whole recorded history: at no revision was an object deleted that was in use, and at none did a service
//! begin to use a marked network (INV-7).

use std::collections::BTreeMap;

use quorate::etcd::{Event, KeyRange, Revision};
use quorate::store::keys::DeallocatorKey;
use quorate::store::object::mark::Marked;
use quorate::store::object::service::networks_in_force;

use super::{World, decode_network, decode_service};
use crate::support::client::history;

/// What etcd held at one revision.
type State = BTreeMap<Vec<u8>, Vec<u8>>;

/// Reads every change since the first revision and returns how many services and networks were deleted. Panics if a
/// change broke a rule.
pub async fn check(world: &World) -> (usize, usize) {
    let end = b"/quorate/end-of-the-history".as_slice();
    let last = world.put("/end-of-the-history", "x").await;
    let range = KeyRange::prefix("/quorate/");
    let mut state = State::new();
    let mut deleted = (0, 0);
    let events = history(&world.store.etcd, range, Revision(1), last).await;
    let mut at = 0;
    while at < events.len() {
        let revision = events[at].revision();
        let same: Vec<&Event> = events[at..]
            .iter()
            .take_while(|event| event.revision() == revision)
            .collect();
        at += same.len();
        let before = state.clone();
        for event in &same {
            match event {
                Event::Put(kv) => state.insert(kv.key.clone(), kv.value.clone()),
                Event::Delete { key, .. } => state.remove(key),
            };
        }
        for event in same {
            judge(world, &before, &state, event, &mut deleted);
        }
    }
    assert!(state.contains_key(end));
    deleted
}

fn judge(world: &World, before: &State, after: &State, event: &Event, deleted: &mut (usize, usize)) {
    let keys = &world.store.keys;
    let revision = event.revision();
    match (event, keys.parse_deallocator(event.key())) {
        (Event::Delete { key, .. }, DeallocatorKey::Service(name)) => {
            let text = String::from_utf8_lossy(name);
            let service = decode_service(&before[key]).expect("a malformed service was deleted");
            assert!(service.mark().is_some(), "{revision}: {text} was not marked");
            let tasks = format!("/quorate/tasks/{text}/").into_bytes();
            let task = after.keys().find(|key| key.starts_with(&tasks));
            assert_eq!(task, None, "{revision}: {text} was deleted with a task");
            deleted.0 += 1;
        }
        (Event::Delete { key, .. }, DeallocatorKey::Network(name)) => {
            let text = String::from_utf8_lossy(name);
            let network = decode_network(&before[key]).expect("a malformed network was deleted");
            assert!(network.mark().is_some(), "{revision}: {text} was not marked");
            for (key, value) in services(after) {
                let service = decode_service(value)
                    .unwrap_or_else(|| panic!("{revision}: {text} was deleted beside a malformed service"));
                let uses = networks_in_force(&service).contains(&text.clone().into_owned());
                assert!(
                    !uses,
                    "{revision}: {text} was deleted while {} used it",
                    String::from_utf8_lossy(key)
                );
            }
            deleted.1 += 1;
        }
        (Event::Put(kv), DeallocatorKey::Service(_)) => {
            let Some(service) = decode_service(&kv.value) else {
                return;
            };
            let old = before.get(&kv.key).and_then(|value| decode_service(value));
            let old = old
                .map(|old| networks_in_force(&old).to_vec())
                .unwrap_or_default();
            for network in networks_in_force(&service)
                .iter()
                .filter(|network| !old.contains(network))
            {
                let key = format!("/quorate/networks/{network}").into_bytes();
                let used = before
                    .get(&key)
                    .unwrap_or_else(|| panic!("{revision}: {network} was not there"));
                let marked = decode_network(used).and_then(|network| network.mark().copied());
                assert_eq!(
                    marked, None,
                    "{revision}: a service began to use {network}, which was marked"
                );
            }
        }
        _ => {}
    }
}

fn services(state: &State) -> impl Iterator<Item = (&Vec<u8>, &Vec<u8>)> {
    let prefix = b"/quorate/services/".to_vec();
    state.iter().filter(move |(key, _)| key.starts_with(&prefix))
}
