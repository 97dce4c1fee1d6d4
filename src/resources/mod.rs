//! The base set of Kubernetes resources: bundle, plan, reconciliation.

pub mod bundle;
pub mod kinds;
pub mod plan;

pub use bundle::{BadBundle, Bundle};

use crate::{etcd::Fence, gate::controller::*, kube::KubeClient, store::Store};
pub struct InTerm;
impl InTerm {
    pub fn factory(_: KubeClient, _: Bundle, _: Store) -> impl Fn(&Fence) -> InTerm + Send + Sync + 'static {
        |_| InTerm
    }
}
impl Reconcile for InTerm {
    async fn pass(&mut self, _: &Fence) -> Result<(), PassFailed> {
        Ok(())
    }
    async fn changed(&mut self) {
        std::future::pending().await
    }
    async fn announce_blocked(&mut self, _: &Fence, _: &str) {}
}
