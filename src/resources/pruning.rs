//! Objects that the inventory holds and the bundle does not.

use futures::{StreamExt, stream};
use tracing::warn;

use super::act::{Actor, Pruned};
use super::controller::{Reconciler, api_server, etcd};
use super::observe::{Seen, Target, Unseen, World};
use super::report::{Outcome, Report, Stopped};
use crate::etcd::Fence;
use crate::kube::{Meta, ObjectRef, Resource};

impl Reconciler {
    /// Deletes what the bundle no longer holds.
    pub(super) async fn prune(
        &mut self,
        fence: &Fence,
        obsolete: Vec<Target>,
        world: &mut World,
        report: &mut Report,
    ) -> Result<(), Stopped> {
        let mut found = Vec::with_capacity(obsolete.len());
        for Target { object, version } in obsolete {
            let version = self.current_version(&object, &version, world).await?;
            found.push((object, version));
        }
        let actor = Actor {
            kube: &self.kube,
            window: fence.window(),
            bundle: &self.bundle.name,
            gone_within: self.settings.gone_within,
        };
        let mut deletions = Vec::with_capacity(found.len());
        for (object, version) in &found {
            let seen = world.look_up(&self.discovery, object, version);
            let uid = self.inventory.get(object).map_or("", |entry| entry.uid.as_str());
            deletions.push(prune_one(&actor, object, seen, uid));
        }
        let mut deleting = stream::iter(deletions).buffered(self.settings.in_flight);
        let mut forgotten = Vec::new();
        let mut down = None;
        while let Some((object, pruned)) = deleting.next().await {
            match pruned {
                Pruned::Gone(outcome) => {
                    report.set(object.clone(), outcome);
                    forgotten.push(object.clone());
                }
                Pruned::Stays(outcome) => report.set(object.clone(), outcome),
                Pruned::Server(error) => {
                    down = Some(error);
                    break;
                }
            }
        }
        drop(deleting);
        for object in &forgotten {
            self.memory.forget(object);
        }
        self.inventory.forget(fence, &forgotten).await.map_err(etcd)?;
        down.map_or(Ok(()), |error| Err(api_server(error)))
    }

    /// The version to look at an object through, should the one that it was applied with not be served any more.
    async fn current_version(
        &mut self,
        object: &ObjectRef,
        applied: &str,
        world: &mut World,
    ) -> Result<String, Stopped> {
        let ObjectRef { group, kind, .. } = object;
        match world.kind(group, kind) {
            Some(Seen::Listed { resource, .. }) => return Ok(resource.version.clone()),
            Some(Seen::NotServed) => {}
            _ => return Ok(applied.to_owned()),
        }
        let preferred = match self.kube.preferred_version(group).await {
            Ok(Some(preferred)) if preferred != applied => preferred,
            Ok(_) => return Ok(applied.to_owned()),
            Err(error) if error.cause.is_the_server() => return Err(api_server(error)),
            Err(error) => {
                // Not knowing is no absence: the object stays in the inventory.
                warn!(%object, %error, "which versions are served is not known");
                world.unknown(group, kind, error);
                return Ok(applied.to_owned());
            }
        };
        let target = Target {
            object: object.clone(),
            version: preferred.clone(),
        };
        let later = self.observe(std::slice::from_ref(&target)).await?;
        world.extend(later);
        Ok(preferred)
    }
}

async fn prune_one<'a>(
    actor: &Actor<'_>,
    object: &'a ObjectRef,
    seen: Result<(&Resource, Option<&Meta>), Unseen>,
    inventory_uid: &str,
) -> (&'a ObjectRef, Pruned) {
    let pruned = match seen {
        Ok((resource, observed)) => actor.prune(resource, object, observed, inventory_uid).await,
        // With its kind, every object of it is gone.
        Err(Unseen::NotServed { .. }) => Pruned::Gone(Outcome::Pruned),
        Err(unseen) => Pruned::Stays(Outcome::Failed(unseen.to_string())),
    };
    (object, pruned)
}
