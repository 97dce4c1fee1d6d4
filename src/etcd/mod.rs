//! Everything that talks to etcd, and the only place that names `etcd_client`.
