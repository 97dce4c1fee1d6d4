//! Kubernetes resources, against a real kube-apiserver.

mod alone;
mod at_once;
mod commands;
mod cost;
mod credentials;
mod deletions;
mod faults;
mod forgetting;
mod immutable;
mod inventory;
mod lists;
mod ownership;
mod passes;
mod paused;
mod process;
mod site;
mod trouble;
mod unseen;
mod versions;
