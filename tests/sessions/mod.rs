//! Sessions: a raw client of the control API stands in for the agent, so that what a replica does is seen as it is.

mod agent;
mod crowd;
mod duplicates;
mod endings;
mod lost;
mod shown;
mod views;
