//! `quorate apply`: from documents to stored objects.

mod backends;
pub mod command;
pub mod diff;
pub mod edit;
pub mod input;
mod references;
mod roles;
mod sealing;
