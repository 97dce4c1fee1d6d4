//! The reconciler of one term. The gate starts each pass; an Event reports when trouble begins, changes or ends.

use std::sync::Arc;

use jiff::Timestamp;

use super::bundle::Bundle;
use super::controller::{Reconciler, Settings};
use super::inventory::Inventory;
use super::report::{Report, Stopped};
use super::summary::ResourcesSummary;
use crate::etcd::Fence;
use crate::gate::controller::{PassFailed, Reconcile};
use crate::kube::KubeClient;
use crate::kube::events::{Notice, Severity};
use crate::store::Store;
use crate::summary::{Ends, Latest};
use crate::term::Notices;

/// The parts of every term's reconciler.
pub struct Config {
    /// The API server.
    pub kube: KubeClient,
    /// The objects to keep in place.
    pub bundle: Bundle,
    /// The store that holds the inventory.
    pub store: Store,
    /// The limits of a pass.
    pub settings: Settings,
    /// Gets the outcome of each pass, for people.
    pub summaries: Latest<ResourcesSummary>,
}

/// The reconciler of one term.
pub struct TermReconciler {
    reconciler: Reconciler,
    notices: Notices,
    /// The trouble of the last Event; `None` if that Event said that the resources are in place.
    reported: Option<String>,
    summary: ResourcesSummary,
    summaries: Latest<ResourcesSummary>,
    _ends: Ends<ResourcesSummary>,
}

impl TermReconciler {
    /// A function that makes the reconciler of a term. Each term starts without memory: another leader may have acted
    /// since the last one.
    pub fn factory(config: Config) -> impl Fn(Notices) -> Self + Send + Sync + 'static {
        let Config {
            kube,
            bundle,
            store,
            settings,
            summaries,
        } = config;
        let bundle = Arc::new(bundle);
        move |notices| {
            let metrics = store.etcd.metrics().clone();
            Self {
                reconciler: Reconciler::new(
                    kube.clone(),
                    bundle.clone(),
                    Inventory::new(store.clone()),
                    metrics,
                    settings,
                ),
                notices,
                reported: None,
                summary: ResourcesSummary::default(),
                summaries: summaries.clone(),
                _ends: summaries.ends(),
            }
        }
    }

    /// Publishes an Event for each deletion; and one when trouble begins, changes or ends, unless the API server could not
    /// accept one.
    fn report(&mut self, report: &Report) {
        for act in report.acts() {
            self.notices.send(Notice {
                severity: Severity::Normal,
                reason: act.reason(),
                action: "Reconcile",
                note: act.to_string(),
            });
        }
        let trouble = (!report.is_success()).then(|| report.summary());
        if trouble == self.reported
            || matches!(
                report.stopped(),
                Some(Stopped::ApiServer(_) | Stopped::LostLeadership)
            )
        {
            return;
        }
        self.notices.send(match &trouble {
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
        });
        self.reported = trouble;
    }
}

impl Reconcile for TermReconciler {
    async fn pass(&mut self, fence: &Fence) -> Result<(), PassFailed> {
        let report = self.reconciler.pass(fence).await;
        self.report(&report);
        self.summary = self.summary.after(&report, Timestamp::now());
        self.summaries.publish(self.summary.clone());
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

    async fn announce_blocked(&mut self, _: &Fence, message: &str) {
        self.notices.send(Notice {
            severity: Severity::Warning,
            reason: "GateBlocked",
            action: "Restrict",
            note: message.to_owned(),
        });
    }
}
