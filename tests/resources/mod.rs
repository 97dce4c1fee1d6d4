//! Kubernetes resources, against a real kube-apiserver.

mod commands;
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
