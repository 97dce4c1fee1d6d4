//! Checks of requests, and the errors of the backend.

use std::io;

use tonic::Status;

use crate::csi_plugin::wire;
use crate::csi_plugin::wire::volume_capability::AccessType;
use crate::csi_plugin::wire::volume_capability::access_mode::Mode;

/// The largest capacity of this backend, in bytes.
const MOST_CAPACITY: u64 = 1 << 40;

/// Whether the capability is for a block device, and the number of its access mode.
pub(super) fn capability(capability: Option<&wire::VolumeCapability>) -> Result<(bool, i32), Status> {
    let missing = || Status::invalid_argument("a volume capability is missing");
    let capability = capability.ok_or_else(missing)?;
    let access = capability.access_type.as_ref().ok_or_else(missing)?;
    let mode = capability.access_mode.as_ref().map_or(0, |mode| mode.mode);
    if mode == i32::from(Mode::Unknown) {
        return Err(missing());
    }
    Ok((matches!(access, AccessType::Block(_)), mode))
}

/// The bounds of a capacity range, in bytes.
pub(super) fn ends(range: Option<&wire::CapacityRange>) -> Result<(u64, u64), Status> {
    let range = range.copied().unwrap_or_default();
    let negative = || Status::invalid_argument("a capacity cannot be negative");
    let least = u64::try_from(range.required_bytes).map_err(|_| negative())?;
    let most = u64::try_from(range.limit_bytes).map_err(|_| negative())?;
    let most = if most == 0 {
        MOST_CAPACITY
    } else {
        most.min(MOST_CAPACITY)
    };
    if least > most {
        return Err(Status::out_of_range(format!(
            "{least} bytes are more than {most}"
        )));
    }
    Ok((least, most))
}

pub(super) fn wire_bytes(bytes: u64) -> i64 {
    // It is MOST_CAPACITY at most, so it fits.
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

pub(super) fn broken(error: io::Error) -> Status {
    Status::internal(format!("the backend's directory: {error}"))
}
