//! Objects that the inventory holds and the bundle does not.

use tracing::warn;

use super::act::{Actor, Pruned};
use super::controller::{Reconciler, api_server, etcd};
use super::observe::{Seen, Target, Unseen, World};
use super::report::{Outcome, Report, Stopped};
use crate::etcd::Fence;
use crate::kube::ObjectRef;

impl Reconciler {
    /// Deletes what the bundle no longer holds.
    pub(super) async fn prune(
        &mut self,
        fence: &Fence,
        obsolete: Vec<Target>,
        world: &mut World,
        report: &mut Report,
    ) -> Result<(), Stopped> {
        let mut forgotten = Vec::new();
        let mut down = None;
        for target in obsolete {
            let Target { object, version } = &target;
            let version = self.current_version(object, version, world).await?;
            let looked_up = world.look_up(&self.discovery, object, &version);
            let pruned = match looked_up {
                Ok((resource, observed)) => {
                    let actor = Actor {
                        kube: &self.kube,
                        window: fence.window(),
                        bundle: &self.bundle.name,
                        gone_within: self.settings.gone_within,
                    };
                    let uid = self.inventory.get(object).map_or("", |entry| entry.uid.as_str());
                    actor.prune(resource, object, observed, uid).await
                }
                // With its kind, every object of it is gone.
                Err(Unseen::NotServed { .. }) => Pruned::Gone(Outcome::Pruned),
                Err(unseen) => Pruned::Stays(Outcome::Failed(unseen.to_string())),
            };
            match pruned {
                Pruned::Gone(outcome) => {
                    self.memory.forget(object);
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
