//! Explores the models, which are of the real decision functions, in the checker `stateright`: `src/gate/model.rs` and
//! `src/roles/plan/tests/model/checked.rs`.
//!
//! The checker's own `eventually` overlooks paths that meet another one and paths that go in a circle. So liveness is in two parts here:
//! every path ends ([`expect_ends`]), and what must hold where one ends is a property of every state, as safety is.

use std::collections::{BTreeSet, HashSet};
use std::fmt::{Debug, Write as _};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::time::Instant;

use stateright::{Checker as _, Expectation, HasDiscoveries, Model, Path};

/// Whether the large sizes are asked for (`make models`), which take minutes.
pub(crate) fn is_large() -> bool {
    std::env::var_os("MODELS").is_some_and(|size| size == "large")
}

/// Explores every state and says how many there are. Fails with the shortest path to a fault, if there is one, and where no more than
/// `least` states were explored: a model that explores nothing finds no fault.
#[track_caller]
pub(crate) fn expect_holds<M>(name: &str, model: &M, least: usize)
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let begun = Instant::now();
    let checker = model.clone().checker();
    let checker = checker
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let found: BTreeSet<&str> = checker.discoveries().into_keys().collect();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    eprintln!(
        "{name}: {states} states, {} transitions, {depth} deep, in {:.1?}",
        checker.state_count(),
        begun.elapsed()
    );
    for property in model.properties() {
        let is_found = found.contains(property.name);
        if property.expectation.discovery_is_failure() {
            assert!(!is_found, "{name}: {}", fault_of(model, property.name));
        } else {
            assert!(is_found, "{name}: never found: {}", property.name);
        }
    }
    assert!(states > least, "{name}: {states} states only");
}

/// Checks that the model finds this fault, and says the shortest path to it.
#[track_caller]
pub(crate) fn expect_fault<M>(name: &str, model: &M, property: &'static str)
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    assert_ne!(
        model.property(property).expectation,
        Expectation::Sometimes,
        "{property} is no fault"
    );
    eprintln!("{name}: {}", fault_of(model, property));
}

/// The shortest path to a state that breaks this property, in words.
#[track_caller]
fn fault_of<M>(model: &M, property: &'static str) -> String
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let mut shortest: Option<Path<M::State, M::Action>> = None;
    loop {
        // The checker looks for a while after its first discovery, and keeps the last. So it is asked for ever shorter ones. No states
        // means no limit.
        let limit = shortest
            .as_ref()
            .map_or(0, |path| path.clone().into_states().len());
        let checker = model.clone().checker().target_max_depth(limit);
        let wanted = HasDiscoveries::AnyOf(BTreeSet::from([property]));
        let checker = checker.finish_when(wanted).spawn_bfs().join();
        match checker.discovery(property) {
            Some(found) => shortest = Some(found),
            None => break,
        }
    }
    let path = shortest.unwrap_or_else(|| panic!("the model finds no fault in: {property}"));
    let mut text = format!("not so: {property}, after\n");
    for action in path.clone().into_actions() {
        let _ = writeln!(text, "  {}", model.format_action(&action));
    }
    let _ = write!(text, "in {:#?}", path.last_state());
    text
}

/// Fails where a path goes in a circle, with that path. Faults are limited in number, so that a path without an end would be one on
/// which nothing goes wrong any more.
#[track_caller]
pub(crate) fn expect_ends<M>(name: &str, model: &M)
where
    M: Model,
    M::State: Debug + Hash,
    M::Action: Debug,
{
    /// A state of the present path.
    struct Visit<M: Model> {
        id: u64,
        /// What led there; `None` for the first one.
        action: Option<M::Action>,
        /// What was not followed yet.
        left: Vec<(M::Action, M::State)>,
    }
    let mut ended = HashSet::new();
    for first in model.init_states() {
        let (mut path, mut on_path) = (Vec::<Visit<M>>::new(), HashSet::new());
        let mut next = Some((None, first));
        loop {
            if let Some((action, state)) = next.take() {
                let id = id_of(&state);
                if on_path.contains(&id) {
                    let actions = path.iter().filter_map(|visit| visit.action.as_ref());
                    let actions: Vec<_> = actions.chain(&action).collect();
                    panic!("{name}: a path goes in a circle: {actions:#?}\nto {state:#?}");
                }
                if !ended.contains(&id) {
                    on_path.insert(id);
                    let left = model.next_steps(&state);
                    path.push(Visit { id, action, left });
                }
            }
            let Some(visit) = path.last_mut() else { break };
            let id = visit.id;
            next = visit.left.pop().map(|(action, state)| (Some(action), state));
            if next.is_none() {
                path.pop();
                on_path.remove(&id);
                ended.insert(id);
            }
        }
    }
}

fn id_of(state: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}
