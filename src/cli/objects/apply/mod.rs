//! `quorate apply`: from documents to stored objects.

pub mod command;
mod input;
mod references;
mod roles;
