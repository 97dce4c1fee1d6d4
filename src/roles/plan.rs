//! Decides what to do next about etcd's member list: one step with its reason, or what is in the way. Pure.
//!
//! A plan is made from a [`Membership`]: what the store says, what etcd's list says, and what each member has answered so
//! far. A member that has not answered counts as unhealthy, so further answers only allow more. A change that quorum
//! depends on is planned twice: first for the intent, which is committed together with the proof that its grounds still
//! hold; then for the call, from answers that were requested no earlier than the intent (INV-3, INV-5).

use super::membership::Membership;
use rule::Rule;

mod joins;
mod promotion;
mod readdress;
mod removal;
mod rule;
mod step;

pub use rule::{Limits, Plan};
pub use step::{Step, cause_words, progress_word};

/// Decides what to do next.
pub fn plan(membership: &Membership, limits: &Limits) -> Plan {
    let mut plan = Plan::default();
    // Changes under way are completed before others begin. Promotions come before removals because they strengthen the
    // quorum; joins come last because they add a member that may never start.
    let rules: [Rule; 9] = [
        removal::forget,
        joins::record,
        removal::depose,
        removal::carry_out,
        promotion::promote,
        readdress::carry_out,
        joins::conclude,
        removal::decide,
        joins::begin,
    ];
    plan.step = rules.iter().find_map(|rule| rule(membership, limits, &mut plan));
    if membership.paused {
        plan.probe.clear();
    }
    plan
}

#[cfg(test)]
mod tests;
