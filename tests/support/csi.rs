//! A real CSI plugin as a process, with a directory of its own.

use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quorate::csi::wire::volume_capability::access_mode::Mode;
use quorate::csi::wire::volume_capability::{AccessMode, AccessType, MountVolume};
use quorate::csi::wire::{CapacityRange, VolumeCapability};
use quorate::csi::{
    Context, CreateVolume, CsiNodeId, Endpoint, Plugin, PublishVolume, SecretValue, Secrets, Session,
    VolumeId, VolumeName,
};
use quorate::metrics::Metrics;
use quorate_dev::csi_plugin::faults::{Answer, Fault, Happening};
use quorate_dev::csi_plugin::log::Call;
use quorate_dev::csi_plugin::options::Options;
use quorate_dev::csi_plugin::order::Order;
use quorate_dev::csi_plugin::process::PluginProcess;
use tempfile::TempDir;

use super::quorate::programs;
use super::wait::{SOON, eventually, same};

/// The name of the plugin, unless a test needs another one.
pub const DRIVER: &str = "test.csi.quorate.dev";

/// A limit that no call reaches, on a machine that is busy with other tests.
pub const LONG: Duration = Duration::from_secs(60);

/// A plugin with a directory of its own. Dereferences to [`PluginProcess`].
pub struct TestPlugin {
    process: PluginProcess,
    directory: TempDir,
}

impl TestPlugin {
    /// One that creates and publishes.
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// One with other options.
    pub async fn start_with(change: impl FnOnce(&mut Options)) -> Self {
        // Short: a socket's path has 107 bytes at most.
        let directory = tempfile::Builder::new().prefix("qcsi-").tempdir().unwrap();
        let mut options = Options::in_directory(directory.path(), DRIVER);
        change(&mut options);
        let started = PluginProcess::start(&programs().quorate_dev, options).await;
        Self {
            process: started.unwrap_or_else(|error| panic!("{error}")),
            directory,
        }
    }

    /// The directory of its files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A new client of it, with this limit on every call.
    pub fn client(&self, limit: Duration) -> Plugin {
        self.client_at(self.endpoint().clone(), limit)
    }

    /// The same at another endpoint, such as a proxy's.
    pub fn client_at(&self, endpoint: Endpoint, limit: Duration) -> Plugin {
        Plugin::new(&self.options().driver, endpoint, limit, Metrics::new("test"))
    }

    /// Adds a fault to calls of this method, for this many calls or until it is cleared.
    pub async fn fault(&self, method: &str, times: impl Into<Option<u32>>, happens: Happening) {
        self.fault_for(method, None, None, times.into(), happens).await;
    }

    /// The same for one volume (by the backend's id) or one node alone.
    pub async fn fault_for(
        &self,
        method: &str,
        volume: Option<&str>,
        node: Option<&str>,
        times: Option<u32>,
        happens: Happening,
    ) {
        let fault = Fault {
            method: Some(method.to_owned()),
            volume: volume.map(str::to_owned),
            node: node.map(str::to_owned),
            times,
            happens,
        };
        self.order(Order::Fault(fault)).await;
    }

    /// Releases the calls that wait.
    pub async fn release(&self) {
        self.order(Order::Release).await;
    }

    /// Removes all faults.
    pub async fn clear_faults(&self) {
        self.order(Order::Clear).await;
    }

    /// Sends an order. Panics where it is refused.
    pub async fn order(&self, order: Order) {
        self.send(&order)
            .await
            .unwrap_or_else(|error| panic!("{order:?}: {error}"));
    }

    /// The calls of its log with this method.
    pub fn calls_of(&self, method: &str) -> Vec<Call> {
        let calls = self.calls().unwrap().into_iter();
        calls.filter(|call| call.begun.method == method).collect()
    }
}

impl Deref for TestPlugin {
    type Target = PluginProcess;

    fn deref(&self) -> &PluginProcess {
        &self.process
    }
}

impl DerefMut for TestPlugin {
    fn deref_mut(&mut self) -> &mut PluginProcess {
        &mut self.process
    }
}

/// An answer with this code.
pub fn answer(code: &str, message: &str) -> Answer {
    Answer {
        code: code.to_owned(),
        message: message.to_owned(),
    }
}

/// A file system that one node writes.
pub fn mount() -> VolumeCapability {
    let mount = MountVolume {
        fs_type: "ext4".to_owned(),
        mount_flags: vec!["noatime".to_owned()],
    };
    capability(Mode::SingleNodeWriter, AccessType::Mount(mount))
}

/// A volume that is used in this way.
pub fn capability(mode: Mode, access_type: AccessType) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(access_type),
    }
}

/// A request for a volume of 1 MiB.
pub fn create(name: &str) -> CreateVolume {
    CreateVolume {
        name: VolumeName::new(name).unwrap(),
        capacity: bytes(1 << 20, 0),
        capability: mount(),
        parameters: Context::from([("tier".to_owned(), "fast".to_owned())]),
        topology: None,
    }
}

/// A capacity range in bytes; zero leaves a bound out.
pub fn bytes(required_bytes: i64, limit_bytes: i64) -> Option<CapacityRange> {
    Some(CapacityRange {
        required_bytes,
        limit_bytes,
    })
}

/// A request to publish this volume to this node.
pub fn publish(volume: &VolumeId, node: &str) -> PublishVolume {
    PublishVolume {
        volume: volume.clone(),
        node: CsiNodeId::new(node).unwrap(),
        capability: mount(),
        read_only: false,
        context: Context::new(),
    }
}

/// Secrets from keys and values.
pub fn secrets(pairs: &[(&str, &str)]) -> Secrets {
    let pairs = pairs.iter().copied();
    pairs
        .map(|(key, value)| (key.to_owned(), SecretValue::new(value.to_owned())))
        .collect()
}

/// Waits for a session of the plugin.
pub async fn until_ready(client: &Plugin) -> Arc<Session> {
    eventually(SOON, "the plugin has a session", async || client.session().await).await
}

/// Waits for the end of the session's connection.
pub async fn ended(session: &Session) {
    eventually(SOON, "the session ends", async || same(session.has_ended(), true)).await;
}
