//! `quorate apply`: from documents to stored objects.

mod backends;
pub mod command;
mod input;
mod references;
mod roles;
