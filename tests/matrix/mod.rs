//! The same behaviour on every release of etcd, whatever it demands of its clients. `make matrix` runs this and larger parts of the
//! other tests in each cell: an etcd on `PATH`, and `QUORATE_TEST_ETCD_ACCESS`.

mod chain;
mod known_faults;
mod one_role;
