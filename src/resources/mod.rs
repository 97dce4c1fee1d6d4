//! The base set of Kubernetes resources: bundle, plan, reconciliation.
