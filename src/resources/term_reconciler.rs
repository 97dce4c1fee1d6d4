//! The reconciler as the gate drives it: a pass when it says so, and Events about what goes wrong.

use std::sync::Arc;

use super::bundle::Bundle;
use super::controller::{Reconciler, Settings};
use super::inventory::Inventory;
use super::report::{Report, Stopped};
use crate::etcd::Fence;
use crate::gate::controller::{PassFailed, Reconcile};
use crate::kube::KubeClient;
use crate::kube::events::{Events, Notice, Pod, Severity};
use crate::store::Store;

/// What is reconciled, where, and in whose name it is reported.
pub struct Config {
    /// The API server.
    pub kube: KubeClient,
    /// What is kept in place.
    pub bundle: Bundle,
    /// Where the inventory lies.
    pub store: Store,
    /// The limits of a pass.
    pub settings: Settings,
    /// The pod that Events are about, if this process runs in one.
    pub pod: Option<Pod>,
    /// This replica's id.
    pub replica: String,
}

/// The reconciler of one term.
pub struct TermReconciler {
    reconciler: Reconciler,
    events: Events,
    /// The trouble that was last told of.
    told: Option<String>,
}

impl TermReconciler {
    /// Makes the reconciler of each term: what one remembers ends with it, as others may act in between.
    pub fn factory(subject: Config) -> impl Fn(&Fence) -> Self + Send + Sync + 'static {
        let Config {
            kube,
            bundle,
            store,
            settings,
            pod,
            replica,
        } = subject;
        let bundle = Arc::new(bundle);
        move |_| {
            let metrics = store.etcd.metrics().clone();
            Self {
                reconciler: Reconciler::new(
                    kube.clone(),
                    bundle.clone(),
                    Inventory::new(store.clone()),
                    metrics,
                    settings,
                ),
                events: Events::new(kube.clone(), pod.clone(), &replica),
                told: None,
            }
        }
    }

    /// An Event when trouble begins, changes or ends. None that the API server could not take anyway.
    async fn tell(&mut self, fence: &Fence, report: &Report) {
        let trouble = (!report.is_success()).then(|| report.summary());
        if trouble == self.told
            || matches!(
                report.stopped(),
                Some(Stopped::ApiServer(_) | Stopped::LostLeadership)
            )
        {
            return;
        }
        let notice = match &trouble {
            Some(summary) => Notice {
                severity: Severity::Warning,
                reason: report.reason(),
                action: "Reconcile",
                note: summary.clone(),
            },
            None => Notice {
                severity: Severity::Normal,
                reason: "ResourcesInPlace",
                action: "Reconcile",
                note: report.summary(),
            },
        };
        self.told = trouble;
        self.publish(fence, notice).await;
    }

    /// INV-3: within the window, or not at all.
    async fn publish(&mut self, fence: &Fence, notice: Notice) {
        tokio::select! {
            biased;
            () = fence.window().closed() => {}
            () = self.events.publish(&notice) => {}
        }
    }
}

impl Reconcile for TermReconciler {
    async fn pass(&mut self, fence: &Fence) -> Result<(), PassFailed> {
        let report = self.reconciler.pass(fence).await;
        self.tell(fence, &report).await;
        match report.is_success() {
            true => Ok(()),
            false => Err(PassFailed {
                reason: report.reason(),
                message: report.summary(),
            }),
        }
    }

    async fn changed(&mut self) {
        self.reconciler.changed().await;
    }

    async fn announce_blocked(&mut self, fence: &Fence, message: &str) {
        let notice = Notice {
            severity: Severity::Warning,
            reason: "GateBlocked",
            action: "Restrict",
            note: message.to_owned(),
        };
        self.publish(fence, notice).await;
    }
}
