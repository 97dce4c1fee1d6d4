//! Sessions: a raw client of the control API stands in for the agent, so that what a replica does is seen as it is. A crowd is one of
//! real agents.

mod agent;
#[path = "../../benches/shared/crowd.rs"]
mod agents;
mod certificates;
mod crowd;
mod duplicates;
mod endings;
mod events;
mod lost;
mod shown;
mod views;
