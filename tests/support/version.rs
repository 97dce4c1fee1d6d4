//! Which etcd a test runs on.

use std::path::PathBuf;

use quorate::cli::companion::find_on_path;
use quorate_dev::etcd::next_release;

/// The releases of etcd that a test can run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtcdVersion {
    /// The one on `PATH`: that which is installed, or another one in a run of `make matrix`.
    Installed,
    /// That of Debian's next release.
    Next,
}

impl EtcdVersion {
    /// The path of `etcd` or `etcdctl`. Panics where there is none.
    pub fn program(self, name: &str) -> PathBuf {
        match self {
            Self::Installed => find_on_path(name).unwrap_or_else(|| {
                panic!("{name} is not installed (Debian packages etcd-server and etcd-client)")
            }),
            Self::Next => Self::folder().join(name),
        }
    }

    /// The program that restores snapshots: that of its own since 3.5, etcdctl before.
    pub fn restorer(self) -> PathBuf {
        match self {
            Self::Installed => find_on_path("etcdutl").unwrap_or_else(|| self.program("etcdctl")),
            Self::Next => self.program("etcdutl"),
        }
    }

    fn folder() -> PathBuf {
        next_release()
            .unwrap_or_else(|| panic!("the etcd of Debian's next release is missing: run .ci/etcd next"))
    }
}
