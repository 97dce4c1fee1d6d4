//! The contents of `deploy/`: manifests, Dockerfile, bundled etcd, permissions, plugins.

mod agents;
mod apiserver;
mod audit;
mod bundled_etcd;
mod controllers;
mod dockerfile;
pub mod kustomize;
mod lost_volume;
mod manifests;
mod permissions;
mod plugins;
