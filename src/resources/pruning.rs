//! Objects that the inventory holds and the bundle does not.

use futures::{StreamExt, stream};

use super::act::{Actor, Pruned};
use super::controller::{Reconciler, api_server, etcd};
use super::observe::{Target, Unseen, World};
use super::report::{Outcome, Report, Stopped};
use crate::etcd::Fence;
use crate::kube::{Meta, ObjectRef, Resource};

impl Reconciler {
    /// Deletes what the bundle no longer holds.
    pub(super) async fn prune(
        &mut self,
        fence: &Fence,
        mut obsolete: Vec<Target>,
        world: &mut World,
        report: &mut Report,
    ) -> Result<(), Stopped> {
        world
            .look_through_other_versions(
                &self.kube,
                &mut self.discovery,
                &mut obsolete,
                self.settings.in_flight,
            )
            .await
            .map_err(api_server)?;
        let actor = self.actor();
        let mut deletions = Vec::with_capacity(obsolete.len());
        for Target { object, version } in &obsolete {
            let seen = world.look_up(&self.discovery, object, version);
            deletions.push(prune_one(&actor, object, seen, self.inventory.uid(object)));
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
}

async fn prune_one<'a>(
    actor: &Actor,
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
