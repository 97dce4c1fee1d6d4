//! Kubernetes resources, against a real kube-apiserver.

mod commands;
mod faults;
mod ownership;
mod passes;
mod paused;
mod process;
mod site;
mod trouble;
