//! Commands about volumes: `publish`, `unpublish`, `retry`, `tombstone`, `expanded`, and `drain` of a node.

use std::time::Duration;

use super::exit::Failure;
use super::objects::pending::plugin_status;
use super::wait::{Progress, until};
use crate::etcd::{KeyRange, KeyValue};
use crate::proto::publication_status::State;
use crate::proto::{Publication, Volume};
use crate::store::object::publication::{is_published, shown_state, state};
use crate::store::object::volume::driver;
use crate::store::object::{decode, plugin};
use crate::store::{Name, Store};
use crate::volumes::record::blocked;

pub mod drain;
pub mod expanded;
mod force;
pub mod publish;
pub mod retry;
mod stray;
pub mod tombstone;
pub mod unpublish;

/// What may have happened to a request whose transaction got no answer.
const REQUESTED: &str = "requested";

/// Waits until a publication is as `is_done` says. Prints meanwhile what it and its volume wait for.
async fn wait_for(
    store: &Store,
    volume: &Name,
    node: &Name,
    limit: Option<Duration>,
    mut is_done: impl FnMut(Option<&KeyValue>) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let hint = format!("the request stands; quorate describe volume {volume} says what it waits for");
    let (key, of_volume) = (store.keys.publication(volume, node), store.keys.volume(volume));
    let ranges = vec![
        KeyRange::key(key.clone()),
        KeyRange::key(of_volume.clone()),
        store.keys.plugins(),
    ];
    until(store, ranges, limit, &hint, |view| {
        let stored = view.get(&key);
        if is_done(stored)? {
            return Ok(Progress::Done(()));
        }
        let id = format!("{volume}/{node}");
        let publication = stored.and_then(|kv| decode::<Publication>(&id, &kv.value).ok());
        let stored = view.get(&of_volume);
        let volume = stored.and_then(|kv| decode::<Volume>(volume.as_str(), &kv.value).ok());
        let mut lines = waits(&id, publication.as_ref(), volume.as_ref());
        if let Some(volume) = &volume
            && let Some(status) = plugin_status(view, driver(volume))
            && let Some((reason, message)) = plugin::not_ready(&status)
        {
            lines.push(format!(
                "plugin/{} is not ready: {reason}: {message}",
                driver(volume)
            ));
        }
        Ok(Progress::Waiting(lines))
    })
    .await
}

/// The state of a publication, and what blocks it or its volume.
fn waits(id: &str, publication: Option<&Publication>, volume: Option<&Volume>) -> Vec<String> {
    let Some(publication) = publication else {
        return vec![format!("publication/{id} cannot be read")];
    };
    let status = publication.status.as_ref();
    let is_again = publication.spec.as_ref().is_some_and(|spec| spec.again);
    let is_published = is_published(publication);
    let why = match (
        blocked(status.map_or(&[], |status| &status.conditions)),
        state(publication),
    ) {
        (Some(why), _) => format!(": {}: {}", why.reason, why.message),
        (None, State::PendingNodeUnpublish) => {
            ": its node has not confirmed that it no longer uses the volume".to_owned()
        }
        (None, State::Published) if !is_published => {
            ": the call that publishes it has yet to succeed".to_owned()
        }
        (None, State::Published) if is_again => " to a former node of that name".to_owned(),
        (None, _) => String::new(),
    };
    let mut lines = vec![format!("publication/{id} is {}{why}", shown_state(publication))];
    let status = volume.and_then(|volume| volume.status.as_ref());
    if let Some(why) = blocked(status.map_or(&[], |status| &status.conditions)) {
        let volume = id.split_once('/').map_or(id, |(volume, _)| volume);
        lines.push(format!(
            "volume/{volume} is blocked: {}: {}",
            why.reason, why.message
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::volumes::record::{Blocked, set_blocked};

    #[test]
    fn a_wait_names_what_blocks_the_publication_and_its_volume() {
        let why = |reason: &str, message: &str| Blocked {
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        let mut publication = Publication::default();
        let mut volume = Volume::default();
        let lines =
            |publication: &Publication, volume: &Volume| waits("data/n1", Some(publication), Some(volume));

        publication
            .status
            .get_or_insert_default()
            .set_state(State::PendingPublish);
        assert_eq!(
            lines(&publication, &volume),
            ["publication/data/n1 is pendingPublish"]
        );
        let status = volume.status.get_or_insert_default();
        let missing = why("PluginMissing", "plugin p does not exist");
        set_blocked(&mut status.conditions, Some(&missing), 1, Timestamp::UNIX_EPOCH);
        assert_eq!(
            lines(&publication, &volume),
            [
                "publication/data/n1 is pendingPublish",
                "volume/data is blocked: PluginMissing: plugin p does not exist",
            ]
        );
        let status = publication.status.get_or_insert_default();
        let late = why("PluginFailed", "UNAVAILABLE: later");
        set_blocked(&mut status.conditions, Some(&late), 1, Timestamp::UNIX_EPOCH);
        assert_eq!(
            lines(&publication, &volume)[0],
            "publication/data/n1 is pendingPublish: PluginFailed: UNAVAILABLE: later"
        );
        let status = publication.status.get_or_insert_default();
        status.conditions.clear();
        status.set_state(State::Published);
        status.unrecorded = true;
        assert_eq!(
            lines(&publication, &volume)[0],
            "publication/data/n1 is published (unrecorded): the call that publishes it has yet to succeed"
        );
        let status = publication.status.get_or_insert_default();
        status.unrecorded = false;
        status.set_state(State::PendingNodeUnpublish);
        assert!(
            lines(&publication, &volume)[0].ends_with("has not confirmed that it no longer uses the volume")
        );
        assert_eq!(
            waits("data/n1", None, None),
            ["publication/data/n1 cannot be read"]
        );
    }
}
