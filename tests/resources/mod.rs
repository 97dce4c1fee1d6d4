//! Kubernetes resources, against a real kube-apiserver.

mod alone;
mod commands;
mod deletions;
mod faults;
mod immutable;
mod lists;
mod ownership;
mod passes;
mod paused;
mod process;
mod site;
mod trouble;
mod versions;
