//! What is asked of a CSI plugin without a controller.

use anyhow::Result;
use quorate::csi::wire::volume_capability::access_mode::Mode;
use quorate::csi::wire::volume_capability::{AccessMode, AccessType, MountVolume};
use quorate::csi::wire::{CapacityRange, VolumeCapability};
use quorate::csi::{Context, CreateVolume, VolumeName};

/// A volume of this name: a file system of 1 MiB for one node.
pub fn create(name: String) -> Result<CreateVolume> {
    let capability = VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    };
    Ok(CreateVolume {
        name: VolumeName::new(name)?,
        capacity: Some(CapacityRange {
            required_bytes: 1 << 20,
            limit_bytes: 0,
        }),
        capability,
        parameters: Context::new(),
        topology: None,
    })
}
