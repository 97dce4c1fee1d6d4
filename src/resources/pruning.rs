//! Objects that the inventory holds and the bundle does not.

use futures::{StreamExt, stream};

use super::act::{Actor, PruneResult};
use super::controller::{Reconciler, api_server, etcd};
use super::observe::{ClusterState, LookupError, Target};
use super::report::{Outcome, Report, Stopped};
use crate::etcd::Fence;
use crate::kube::{Meta, ObjectRef, Resource};

impl Reconciler {
    /// Deletes what the bundle no longer holds.
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
            match pruned {
                PruneResult::Gone(outcome) => {
                    report.set(object.clone(), outcome);
                    forgotten.push(object.clone());
                }
                PruneResult::Stays(outcome) => report.set(object.clone(), outcome),
                PruneResult::Server(error) => {
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
    seen: Result<(&Resource, Option<&Meta>), LookupError>,
    inventory_uid: &str,
) -> (&'a ObjectRef, PruneResult) {
    let pruned = match seen {
        Ok((resource, observed)) => actor.prune(resource, object, observed, inventory_uid).await,
        // With its kind, every object of it is gone.
        Err(LookupError::NotServed { .. }) => PruneResult::Gone(Outcome::Pruned),
        Err(error) => PruneResult::Stays(Outcome::Failed(error.to_string())),
    };
    (object, pruned)
}
