//! What `deploy/` ships: the manifests, the images' recipe, the etcd that comes along, the permissions.

mod apiserver;
mod audit;
mod bundled_etcd;
mod controllers;
mod dockerfile;
mod kustomize;
mod manifests;
mod permissions;
mod plugins;
