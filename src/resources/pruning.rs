//! Deletes the objects that the inventory holds and the bundle does not.

use futures::{StreamExt, stream};

use super::act::{Actor, PruneResult};
use super::controller::{Reconciler, api_server, etcd};
use super::observe::{ClusterState, LookupError, Target};
use super::report::{Outcome, Report, Stopped};
use crate::etcd::Fence;
use crate::kube::{Error as ApiError, Meta, ObjectRef, Resource};

impl Reconciler {
    /// Deletes the `obsolete` objects, as far as the plan allows, and removes the deleted ones from the inventory.
    pub(super) async fn prune(
        &mut self,
        fence: &Fence,
        mut obsolete: Vec<Target>,
        cluster: &mut ClusterState,
        report: &mut Report,
    ) -> Result<(), Stopped> {
        cluster
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
            let seen = cluster.look_up(&self.discovery, object, version);
            deletions.push(prune_one(&actor, object, seen, self.inventory.uid(object)));
        }
        let mut deleting = stream::iter(deletions).buffered(self.settings.in_flight);
        let mut forgotten = Vec::new();
        let mut down = None;
        while let Some((object, pruned)) = deleting.next().await {
            let outcome = match pruned {
                Ok(PruneResult::Gone(outcome)) => {
                    forgotten.push(object.clone());
                    outcome
                }
                Ok(PruneResult::Stays(outcome)) => outcome,
                Err(error) if error.cause.is_the_server() => {
                    down = Some(error);
                    break;
                }
                Err(error) => Outcome::Failed(error.to_string()),
            };
            report.set(object.clone(), outcome);
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
    seen: Result<(&Resource, Option<&Meta>), LookupError>,
    inventory_uid: &str,
) -> (&'a ObjectRef, Result<PruneResult, ApiError>) {
    let pruned = match seen {
        Ok((resource, observed)) => actor.prune(resource, object, observed, inventory_uid).await,
        // The objects of a kind go with the kind.
        Err(LookupError::NotServed { .. }) => Ok(PruneResult::Gone(Outcome::Pruned)),
        Err(error) => Ok(PruneResult::Stays(Outcome::Failed(error.to_string()))),
    };
    (object, pruned)
}
