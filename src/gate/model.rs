//! The gate as a model, explored in full: replicas of several releases that start, register, judge the status, are elected, restrict,
//! reconcile and stop, each step at any moment; processes that crash or are paused for longer than their windows, so that others take
//! over while what they sent is still under way; a status that is deleted or garbled; and etcd restored from a backup.
//!
//! The decisions are the real ones ([`Decisions::real`]); what is around them has as few steps as can be. Three things are taken for
//! granted, as ARCHITECTURE.md says: what a leader has sent to Kubernetes arrives before its successor reconciles, a backup of etcd
//! goes with one of Kubernetes from the same moment, and a restore takes longer than a window is open. That an older replica yields to a
//! newer one is simpler here than in `replica::eligibility`: no newer one is passed over because it does not lead within its trial.

use stateright::{Model, Property};

use super::plan::{self, Blockers, BundleVersions, Plan};
use super::releases::{Releases, Reported, Tally};
use super::status::Status;
use crate::release::Release;
use crate::store::keys::NodeKey;
use replica::{LeadStep, Process, Read, Replica};
use store::{Registration, Store, Stored};

mod mutants;
mod next;
mod properties;
mod replica;
mod scenarios;
mod steps;
mod store;

/// The functions that decide.
#[derive(Clone, Copy)]
struct Decisions {
    plan: fn(Option<&Status>, bool, &BundleVersions) -> Plan,
    may_restrict: fn(&Releases, &BundleVersions) -> Result<(), Blockers>,
    admits: fn(&Status, Release, Release) -> Result<(), String>,
    yields: fn(&Releases) -> bool,
}

impl Decisions {
    fn real() -> Self {
        Self {
            plan: plan::plan,
            may_restrict: plan::may_restrict,
            admits: plan::admits,
            yields: |releases| !releases.newer.is_empty(),
        }
    }
}

/// What keeps the decisions true until they take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    /// Of every write of the leader (INV-1).
    Fence,
    /// That no node was written since the releases were read.
    Nodes,
    /// The window of a leader closes before etcd ends its lease (INV-2).
    Margin,
    /// A replica serves no longer than the window of its registration is open.
    ServingWindow,
    /// A leader reconciles no longer than its window is open (INV-3).
    LeadingWindow,
    /// A replica registers before it judges the status.
    RegistrationFirst,
    /// A restore takes longer than a window is open. The product does not see to that.
    LongRestore,
}

/// A replica of the model.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// The bundle that it has, by its place.
    bundle: usize,
    /// Whether it runs and serves at the beginning. Else it is started.
    runs: bool,
    /// Whether the operator leaves it running. Else it is stopped, sooner or later.
    stays: bool,
}

#[derive(Clone)]
struct Gate {
    bundles: Vec<BundleVersions>,
    parts: Vec<Part>,
    /// The bundle that is reconciled at the beginning; `None` before the first start.
    begins_at: Option<usize>,
    /// How much may go wrong.
    faults: u8,
    /// Whether the status may be deleted and garbled.
    is_meddled_with: bool,
    /// Whether a backup may be made and restored.
    is_restored: bool,
    decisions: Decisions,
    without: Option<Guard>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    store: Store,
    backup: Option<Store>,
    replicas: Vec<Replica>,
    faults: u8,
}

/// What happens next, and to which replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Start(usize),
    Stop(usize),
    Register(usize),
    Judge(usize),
    Elect(usize),
    Lead(usize, LeadStep),
    Yield(usize),
    /// Its window has closed, and it ends its term.
    EndTerm(usize),
    /// etcd ends the lease.
    ExpireRegistration(usize),
    ExpireLeader,
    // What costs a fault.
    Crash(usize),
    /// It is paused, or cut off, until its windows have closed. What it has sent is still under way.
    Pause(usize),
    DeleteStatus,
    GarbleStatus,
    Restore,
    /// Costs nothing, but is of use only before a restore.
    BackUp,
}

impl Gate {
    fn bundle(&self, replica: usize) -> &BundleVersions {
        &self.bundles[self.parts[replica].bundle]
    }

    fn lacks(&self, guard: Guard) -> bool {
        self.without == Some(guard)
    }

    fn admits(&self, status: Option<&Status>, replica: usize) -> bool {
        let BundleVersions {
            version,
            min_reconciler,
            ..
        } = self.bundle(replica);
        status.is_some_and(|status| (self.decisions.admits)(status, version.release, *min_reconciler).is_ok())
    }

    /// The plan of a replica that has read this.
    fn plan(&self, read: &Read, replica: usize) -> Plan {
        let status = read.status.as_ref().and_then(Stored::status);
        (self.decisions.plan)(status.as_ref(), read.preceded, self.bundle(replica))
    }

    /// The releases that are registered, as a replica sums them up.
    fn releases(&self, store: &Store, replica: usize) -> Releases {
        let bundle = self.bundle(replica);
        let mut tally = Tally::new(bundle.version.release, bundle.min_apiserver);
        for registered in store.registrations.keys() {
            let name = format!("replica-{registered}");
            let reported = Reported::Release(self.bundle(*registered).version.release);
            tally.change(NodeKey::Registration(&name), None, Some(&reported));
        }
        tally.sum(None)
    }

    fn begin(&self) -> State {
        let mut store = Store::default();
        if let Some(bundle) = self.begins_at {
            store.put_status(self.bundles[bundle].final_status().encode());
            store.begun = true;
            store.reconciled.insert(bundle);
        }
        let mut replicas = vec![Replica::default(); self.parts.len()];
        for (at, replica) in replicas.iter_mut().enumerate() {
            if self.parts[at].runs {
                let (written, own) = (store.write(), true);
                store.registrations.insert(at, Registration { written, own });
                replica.process = Some(Process {
                    registered: true,
                    ..Process::default()
                });
            }
        }
        State {
            store,
            backup: None,
            replicas,
            faults: self.faults,
        }
    }
}

impl Model for Gate {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.begin()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(self.progress(state));
        if state.faults > 0 {
            actions.extend(self.may_go_wrong(state));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.act(&mut next, action);
        next.number_revisions();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
