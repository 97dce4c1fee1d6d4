//! The pure core of the gate: the cost of one event of watch-nodes, and of a decision.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use quorate::gate::plan::{BundleVersions, may_restrict, plan};
use quorate::gate::releases::{Reported, Tally};
use quorate::gate::status::{State, Status};
use quorate::release::{Release, Version};
use quorate::store::keys::NodeKey;

fn version(major: u32, minor: u32) -> Version {
    Version {
        release: Release::new(major, minor, 0),
        git: None,
    }
}

/// Controllers at releases from 1.0.0 on, below the own release. In a healthy cluster `minimum` is not above them.
fn tally(minimum: Release, controllers: u32, releases: u32) -> (Tally, Vec<Reported>) {
    let mut tally = Tally::new(Release::new(3, 0, 0), minimum);
    let reported: Vec<Reported> = (0..releases)
        .map(|minor| Reported::Release(Release::new(1, minor, 0)))
        .collect();
    for (number, release) in (0..controllers).zip(reported.iter().cycle()) {
        tally.change(NodeKey::Node(&format!("node-{number}")), None, Some(release));
    }
    (tally, reported)
}

/// A node changes its release, and the sum is computed, as after every event.
fn one_event(c: &mut Criterion) {
    let mut group = c.benchmark_group("gate/event");
    let (healthy, upgrading) = (Release::new(1, 0, 0), Release::new(2, 0, 0));
    for (state, minimum, controllers, releases) in [
        ("healthy", healthy, 100, 2),
        ("healthy", healthy, 100_000, 2),
        ("healthy", healthy, 100_000, 100),
        ("all too old", upgrading, 100_000, 2),
    ] {
        let (mut tally, reported) = tally(minimum, controllers, releases);
        let id = format!("{controllers} controllers, {releases} releases, {state}");
        group.bench_function(BenchmarkId::from_parameter(id), |b| {
            let (mut from, mut to) = (&reported[0], &reported[1]);
            b.iter(|| {
                tally.change(NodeKey::Node("node-0"), Some(from), Some(to));
                std::mem::swap(&mut from, &mut to);
                black_box(tally.sum(None))
            });
        });
    }
    group.finish();
}

fn decisions(c: &mut Criterion) {
    let bundle = BundleVersions {
        version: version(2, 0),
        min_reconciler: Release::new(1, 0, 0),
        min_apiserver: Release::new(1, 5, 0),
    };
    let stored = Status::new(State::Done, version(1, 4), Release::new(1, 0, 0));
    c.bench_function("gate/plan: restrict", |b| {
        b.iter(|| plan(black_box(Some(&stored)), true, black_box(&bundle)));
    });
    let (tally, _) = tally(Release::new(1, 0, 0), 100_000, 2);
    let releases = tally.sum(None);
    c.bench_function("gate/may restrict", |b| {
        b.iter(|| may_restrict(black_box(&releases), black_box(&bundle)));
    });
}

criterion_group! {
    name = benches;
    // Each takes nanoseconds: a longer measurement would not be more precise.
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .without_plots();
    targets = one_event, decisions
}
criterion_main!(benches);
