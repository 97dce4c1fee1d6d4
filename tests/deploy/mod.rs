//! The contents of `deploy/`: manifests, Dockerfile, bundled etcd, permissions, network, pod security, plugins.

mod agents;
mod apiserver;
mod audit;
mod bundled_etcd;
mod controllers;
mod dockerfile;
pub mod kustomize;
mod lost_volume;
mod manifests;
mod network;
mod permissions;
mod plugins;
mod pod_security;
