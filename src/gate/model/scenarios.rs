//! What the model is explored from. `make models` explores the same with one more fault each.

use super::*;
use crate::model_checking::{expect_ends, expect_holds, is_large};

/// A replica that runs at the beginning, and that the operator stops.
const fn goes(bundle: usize) -> Part {
    Part {
        bundle,
        runs: true,
        stays: false,
    }
}

/// One that is started.
const fn comes(bundle: usize) -> Part {
    Part {
        bundle,
        runs: false,
        stays: true,
    }
}

/// One that runs throughout.
const fn stays(bundle: usize) -> Part {
    Part {
        bundle,
        runs: true,
        stays: true,
    }
}

/// One that may be started and is stopped, or stopped before it is started.
const fn passes(bundle: usize) -> Part {
    Part {
        bundle,
        runs: false,
        stays: false,
    }
}

pub(super) const UPGRADE: [Part; 2] = [goes(0), comes(1)];
pub(super) const ROLLBACK: [Part; 2] = [goes(1), comes(0)];
pub(super) const FIRST_START: [Part; 2] = [passes(0), comes(1)];
/// Two releases side by side.
pub(super) const BESIDE: [Part; 2] = [stays(0), comes(1)];
/// A newer release is given up.
pub(super) const GIVEN_UP: [Part; 2] = [stays(0), passes(1)];
const THREE_RELEASES: [Part; 3] = [goes(0), passes(1), comes(2)];

/// A bundle of this release, and the two minimums of it.
fn bundle(minor: u32, min_reconciler: u32, min_apiserver: u32) -> BundleVersions {
    let release = |minor| Release::new(0, minor, 0);
    BundleVersions {
        version: release(minor).into(),
        min_reconciler: release(min_reconciler),
        min_apiserver: release(min_apiserver),
    }
}

/// Two releases, of which the second raises both minimums.
pub(super) fn excluding() -> Vec<BundleVersions> {
    vec![bundle(1, 1, 1), bundle(2, 2, 2)]
}

/// Two releases that are compatible.
pub(super) fn compatible() -> Vec<BundleVersions> {
    vec![bundle(1, 1, 1), bundle(2, 1, 1)]
}

/// The second release with each of the two minimums raised or not.
fn each_second() -> [Vec<BundleVersions>; 4] {
    [(1, 1), (1, 2), (2, 1), (2, 2)].map(|(min_reconciler, min_apiserver)| {
        vec![bundle(1, 1, 1), bundle(2, min_reconciler, min_apiserver)]
    })
}

/// The real gate with these replicas, of which nothing is reconciled at the beginning.
pub(super) fn gate(bundles: Vec<BundleVersions>, parts: &[Part]) -> Gate {
    Gate {
        bundles,
        parts: parts.to_vec(),
        begins_at: None,
        faults: 0,
        is_meddled_with: false,
        is_restored: false,
        decisions: Decisions::real(),
        without: None,
    }
}

impl Gate {
    /// With this bundle reconciled at the beginning.
    pub(super) fn at(mut self, bundle: usize) -> Self {
        self.begins_at = Some(bundle);
        self
    }

    /// With so many faults.
    pub(super) fn faulty(mut self, faults: u8) -> Self {
        self.faults = faults;
        self
    }

    pub(super) fn meddled_with(mut self) -> Self {
        self.is_meddled_with = true;
        self
    }

    pub(super) fn with_backup(mut self) -> Self {
        self.is_restored = true;
        self
    }

    /// Explores it with so many faults, and one more where that is asked for. Backups at every moment are enough beside one.
    #[track_caller]
    fn holds(self, name: &str, faults: u8, least: usize) {
        let more = is_large() && !self.is_restored;
        let gate = self.faulty(faults + u8::from(more));
        expect_holds(name, &gate, least);
        expect_ends(name, &gate);
    }
}

#[test]
fn an_upgrade_excludes_nothing_that_serves_and_is_completed() {
    for bundles in each_second() {
        gate(bundles, &UPGRADE).at(0).holds("upgrade", 1, 1_500);
    }
}

#[test]
fn a_rollback_excludes_nothing_that_serves_and_is_completed() {
    for bundles in each_second() {
        gate(bundles, &ROLLBACK).at(1).holds("rollback", 1, 2_000);
    }
}

#[test]
fn nor_does_an_upgrade_that_is_given_up_halfway() {
    for bundles in [compatible(), excluding()] {
        gate(bundles, &GIVEN_UP).at(0).holds("upgrade given up", 1, 1_500);
    }
}

#[test]
fn nor_does_a_first_start_with_two_releases() {
    gate(excluding(), &FIRST_START).holds("first start", 1, 5_000);
    if is_large() {
        gate(compatible(), &FIRST_START).holds("first start, compatible", 1, 5_000);
    }
}

#[test]
fn of_two_releases_that_stay_the_newer_reconciles_unless_that_excludes_the_older() {
    for bundles in [compatible(), excluding()] {
        gate(bundles, &BESIDE).at(0).holds("side by side", 1, 1_000);
    }
}

#[test]
fn a_status_that_is_deleted_or_garbled_lets_nothing_round_a_restriction() {
    let changed = |parts: &[Part], begins_at| gate(excluding(), parts).at(begins_at).meddled_with();
    changed(&UPGRADE, 0).holds("upgrade, status changed", 1, 2_000);
    changed(&ROLLBACK, 1).holds("rollback, status changed", 1, 2_000);
}

#[test]
fn a_restore_of_etcd_in_an_upgrade_excludes_nothing_that_serves() {
    let upgrade = gate(excluding(), &UPGRADE).at(0).with_backup();
    upgrade.holds("upgrade, restored", 1, 8_000);
    if is_large() {
        let rollback = gate(excluding(), &ROLLBACK).at(1).with_backup();
        rollback.holds("rollback, restored", 1, 10_000);
    }
}

#[test]
fn an_upgrade_overtakes_another() {
    let bundles = vec![bundle(1, 1, 1), bundle(2, 2, 2), bundle(3, 3, 3)];
    gate(bundles, &THREE_RELEASES)
        .at(0)
        .holds("three releases", 0, 900);
}
