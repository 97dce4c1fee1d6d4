//! Decisions that are wrong on purpose, and guards that are missing: the model finds each of them out.

use super::properties::{ADMITS, ALONE, SERVES, SETTLED};
use super::scenarios::{BESIDE, FIRST_START, GIVEN_UP, ROLLBACK, UPGRADE, compatible, excluding, gate};
use super::*;
use crate::gate::status::State as Progress;
use crate::model_checking::expect_fault;

impl Gate {
    fn planning(mut self, wrong: fn(Option<&Status>, bool, &BundleVersions) -> Plan) -> Self {
        self.decisions.plan = wrong;
        self
    }

    fn restricting(mut self, wrong: fn(&Releases, &BundleVersions) -> Result<(), Blockers>) -> Self {
        self.decisions.may_restrict = wrong;
        self
    }

    fn admitting(mut self, wrong: fn(&Status, Release, Release) -> Result<(), String>) -> Self {
        self.decisions.admits = wrong;
        self
    }

    fn without(mut self, guard: Guard) -> Self {
        self.without = Some(guard);
        self
    }

    #[track_caller]
    fn breaks(self, name: &str, property: &'static str) {
        expect_fault(name, &self, property);
    }
}

fn upgrade() -> Gate {
    gate(excluding(), &UPGRADE).at(0)
}

fn rollback() -> Gate {
    gate(excluding(), &ROLLBACK).at(1)
}

#[test]
fn a_plan_that_never_restricts_is_found_out() {
    fn wrong(stored: Option<&Status>, preceded: bool, bundle: &BundleVersions) -> Plan {
        match (plan::plan(stored, preceded, bundle), stored) {
            (Plan::Restrict(_), Some(stored)) => Plan::Work(stored.in_state(Progress::Working)),
            (plan, _) => plan,
        }
    }
    upgrade().planning(wrong).breaks("never restricts", SERVES);
}

#[test]
fn a_plan_that_restricts_to_the_new_state_instead_of_the_intersection_is_found_out() {
    fn wrong(stored: Option<&Status>, preceded: bool, bundle: &BundleVersions) -> Plan {
        match plan::plan(stored, preceded, bundle) {
            Plan::Restrict(_) => Plan::Restrict(bundle.final_status().in_state(Progress::Working)),
            plan => plan,
        }
    }
    upgrade()
        .planning(wrong)
        .breaks("upgrade to the new state", SERVES);
    rollback()
        .planning(wrong)
        .breaks("rollback to the old state", ADMITS);
}

#[test]
fn a_plan_that_takes_a_status_that_is_gone_for_a_first_start_is_found_out() {
    let wrong = upgrade().planning(|stored, _, bundle| plan::plan(stored, false, bundle));
    wrong
        .meddled_with()
        .faulty(1)
        .breaks("no evidence of an earlier leader", SERVES);
}

#[test]
fn a_plan_that_leaves_what_another_release_began_is_found_out() {
    fn wrong(stored: Option<&Status>, preceded: bool, bundle: &BundleVersions) -> Plan {
        match stored {
            Some(stored) if stored.version.release == bundle.version.release => Plan::Leave,
            stored => plan::plan(stored, preceded, bundle),
        }
    }
    let given_up = gate(compatible(), &GIVEN_UP).at(0);
    given_up.planning(wrong).breaks("leaves WORKING", SETTLED);
}

#[test]
fn a_restriction_that_waits_for_no_node_is_found_out() {
    upgrade()
        .restricting(|_, _| Ok(()))
        .breaks("waits for no node", SERVES);
}

#[test]
fn a_restriction_that_overlooks_older_or_newer_nodes_is_found_out() {
    upgrade()
        .restricting(|releases, bundle| without(releases, bundle, |of, own| of < own))
        .breaks("overlooks older nodes", SERVES);
    rollback()
        .restricting(|releases, bundle| without(releases, bundle, |of, own| of > own))
        .faulty(1)
        .breaks("overlooks newer nodes", SERVES);
}

/// Whether the status may be restricted, as far as the other nodes go.
fn without(
    releases: &Releases,
    bundle: &BundleVersions,
    overlooked: fn(Release, Release) -> bool,
) -> Result<(), Blockers> {
    let own = bundle.version.release;
    let outside = releases.outside.first.iter();
    let seen = outside.filter(|(release, _)| !overlooked(*release, own));
    let seen: Vec<(Release, String)> = seen.cloned().collect();
    let releases = Releases {
        outside: seen.into(),
        ..releases.clone()
    };
    plan::may_restrict(&releases, bundle)
}

#[test]
fn a_restriction_that_waits_for_ever_is_found_out() {
    let wrong = upgrade().restricting(|_, _| {
        Err(Blockers {
            named: Vec::new(),
            more: 1,
        })
    });
    wrong.breaks("waits for ever", SETTLED);
}

#[test]
fn a_replica_that_overlooks_one_of_the_two_minimums_is_found_out() {
    rollback()
        .admitting(|status, release, min_reconciler| {
            plan::admits(status, release.max(status.minimum_compatible), min_reconciler)
        })
        .breaks("overlooks the minimum of the state", SERVES);
    upgrade()
        .admitting(|status, release, _| plan::admits(status, release, Release::default()))
        .breaks("overlooks the minimum of the replica", SERVES);
}

#[test]
fn an_older_leader_that_yields_to_no_newer_replica_is_found_out() {
    let mut wrong = gate(compatible(), &BESIDE).at(0);
    wrong.decisions.yields = |_| false;
    wrong.breaks("never yields", SETTLED);
}

#[test]
fn writes_of_the_leader_without_a_fence_are_found_out() {
    let wrong = gate(excluding(), &FIRST_START).without(Guard::Fence);
    wrong.faulty(1).breaks("no fence", SERVES);
}

#[test]
fn a_window_that_is_longer_than_the_lease_is_found_out() {
    upgrade()
        .without(Guard::Margin)
        .breaks("a window beyond the lease", ALONE);
}

#[test]
fn a_restriction_without_proof_that_no_node_registered_is_found_out() {
    upgrade()
        .without(Guard::Nodes)
        .faulty(1)
        .breaks("no proof of the nodes", SERVES);
}

#[test]
fn a_replica_that_serves_beyond_its_window_is_found_out() {
    upgrade()
        .without(Guard::ServingWindow)
        .faulty(1)
        .breaks("serves beyond its window", SERVES);
}

#[test]
fn a_leader_that_reconciles_beyond_its_window_is_found_out() {
    upgrade()
        .without(Guard::LeadingWindow)
        .faulty(1)
        .breaks("reconciles beyond its window", SERVES);
}

#[test]
fn a_replica_that_judges_the_status_before_it_registers_is_found_out() {
    let wrong = gate(excluding(), &FIRST_START).at(0);
    wrong
        .without(Guard::RegistrationFirst)
        .breaks("judges before it registers", SERVES);
}

/// Why operators stop all replicas before a restore.
#[test]
fn a_restore_that_is_over_within_a_window_is_found_out() {
    let restored = gate(excluding(), &FIRST_START).at(0).with_backup();
    restored
        .without(Guard::LongRestore)
        .faulty(1)
        .breaks("a restore within a window", SERVES);
}
