//! What follows from an answer: one table of every call and every gRPC code.

use std::fmt;

use tonic::Code;

/// The calls of the specification that are used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// Asks whether the plugin is ready.
    Probe,
    /// Asks for the plugin's name and version.
    GetPluginInfo,
    /// Asks which services the plugin has.
    GetPluginCapabilities,
    /// Asks what the plugin's Controller service offers.
    ControllerGetCapabilities,
    /// Creates a volume.
    CreateVolume,
    /// Deletes a volume.
    DeleteVolume,
    /// Attaches a volume to a node.
    ControllerPublishVolume,
    /// Detaches a volume from a node.
    ControllerUnpublishVolume,
    /// Expands a volume.
    ControllerExpandVolume,
    /// Asks whether a volume exists and can be used in a way.
    ValidateVolumeCapabilities,
    /// Lists the plugin's volumes.
    ListVolumes,
    /// Asks for how many bytes there is room.
    GetCapacity,
    /// Asks what the plugin's Node service offers.
    NodeGetCapabilities,
    /// Asks for the plugin's id of the node and the place where the node is.
    NodeGetInfo,
    /// Prepares a volume on the node, once for all its uses there.
    NodeStageVolume,
    /// Undoes NodeStageVolume.
    NodeUnstageVolume,
    /// Makes a volume usable at a path of the node.
    NodePublishVolume,
    /// Undoes NodePublishVolume.
    NodeUnpublishVolume,
    /// Expands what is on a volume, such as its file system.
    NodeExpandVolume,
}

impl Method {
    /// The call's name in the specification.
    pub fn name(self) -> &'static str {
        let path = self.path();
        path.rsplit_once('/').map_or(path, |(_, name)| name)
    }

    /// The call's path in a gRPC request, which the usual dashboards of CSI use as a label.
    pub fn path(self) -> &'static str {
        match self {
            Self::Probe => "/csi.v1.Identity/Probe",
            Self::GetPluginInfo => "/csi.v1.Identity/GetPluginInfo",
            Self::GetPluginCapabilities => "/csi.v1.Identity/GetPluginCapabilities",
            Self::ControllerGetCapabilities => "/csi.v1.Controller/ControllerGetCapabilities",
            Self::CreateVolume => "/csi.v1.Controller/CreateVolume",
            Self::DeleteVolume => "/csi.v1.Controller/DeleteVolume",
            Self::ControllerPublishVolume => "/csi.v1.Controller/ControllerPublishVolume",
            Self::ControllerUnpublishVolume => "/csi.v1.Controller/ControllerUnpublishVolume",
            Self::ControllerExpandVolume => "/csi.v1.Controller/ControllerExpandVolume",
            Self::ValidateVolumeCapabilities => "/csi.v1.Controller/ValidateVolumeCapabilities",
            Self::ListVolumes => "/csi.v1.Controller/ListVolumes",
            Self::GetCapacity => "/csi.v1.Controller/GetCapacity",
            Self::NodeGetCapabilities => "/csi.v1.Node/NodeGetCapabilities",
            Self::NodeGetInfo => "/csi.v1.Node/NodeGetInfo",
            Self::NodeStageVolume => "/csi.v1.Node/NodeStageVolume",
            Self::NodeUnstageVolume => "/csi.v1.Node/NodeUnstageVolume",
            Self::NodePublishVolume => "/csi.v1.Node/NodePublishVolume",
            Self::NodeUnpublishVolume => "/csi.v1.Node/NodeUnpublishVolume",
            Self::NodeExpandVolume => "/csi.v1.Node/NodeExpandVolume",
        }
    }
}

impl Method {
    /// Whether the call is made before every other one in a session.
    pub(super) fn is_of_handshake(self) -> bool {
        match self {
            Self::Probe
            | Self::GetPluginInfo
            | Self::GetPluginCapabilities
            | Self::ControllerGetCapabilities
            | Self::NodeGetCapabilities
            | Self::NodeGetInfo => true,
            Self::CreateVolume
            | Self::DeleteVolume
            | Self::ControllerPublishVolume
            | Self::ControllerUnpublishVolume
            | Self::ControllerExpandVolume
            | Self::ValidateVolumeCapabilities
            | Self::ListVolumes
            | Self::GetCapacity
            | Self::NodeStageVolume
            | Self::NodeUnstageVolume
            | Self::NodePublishVolume
            | Self::NodeUnpublishVolume
            | Self::NodeExpandVolume => false,
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What follows from an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// What was asked for is done.
    Done,
    /// The same call may succeed in a moment: repeat it, with a growing delay.
    Retry,
    /// The same call may succeed though nothing changes here, but hardly in a moment: begin with a long delay.
    RetrySlowly,
    /// The plugin is still at work on an earlier call for this volume, perhaps of the leader before: repeat the call, with
    /// a growing delay. Not a fault.
    InProgress,
    /// Another object is in the way, such as a publication to another node: repeat the call slowly, since the plugin may
    /// count what is not known here.
    WaitForOther,
    /// The same call cannot succeed: do not repeat it until the volume, its secrets, the plugin or its capabilities change,
    /// or an operator asks for a retry.
    Final,
}

/// Whether a failed call may have had an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// This call changed nothing at the backend. Earlier ones may have.
    None,
    /// This call may have done all, some or nothing, or may still be at work.
    Unknown,
}

/// What follows from this code as the answer to this call.
///
/// The rows are from the error tables of the specification; for codes that are not in them, from what plugins in the field
/// mean by them.
pub fn classify(method: Method, code: Code) -> Class {
    use Class::{Done, Final, InProgress, Retry, RetrySlowly, WaitForOther};
    use Method as M;
    match (method, code) {
        (_, Code::Ok) => Done,

        // The plugin did not refuse; and many plugins answer Internal whatever the cause.
        (
            _,
            Code::Cancelled | Code::Unknown | Code::DeadlineExceeded | Code::Unavailable | Code::Internal,
        ) => Retry,

        // A refused handshake is repeated while a session is wanted: the plugin may be replaced by one that answers.
        (method, Code::Aborted) if method.is_of_handshake() => Retry,
        (method, _) if method.is_of_handshake() => RetrySlowly,

        // The request is wrong, or the plugin does not offer the call. Neither changes by itself.
        (_, Code::InvalidArgument | Code::Unimplemented) => Final,

        // The specification asks for OK here. Some plugins answer that the volume does not exist: it is deleted.
        (M::DeleteVolume, Code::NotFound) => Done,
        // The backend may not know a new node yet, nor what a volume's parameters name. And where the node of a publication
        // is not found, the volume may still be attached: only OK says that it is not.
        (_, Code::NotFound) => RetrySlowly,

        // A volume of this name with other properties; or the volume is published there in another way.
        (
            M::CreateVolume | M::ControllerPublishVolume | M::NodeStageVolume | M::NodePublishVolume,
            Code::AlreadyExists,
        ) => Final,
        (_, Code::AlreadyExists) => RetrySlowly,

        // Permissions and credentials may be mended at the backend, which is not seen here.
        (_, Code::PermissionDenied | Code::Unauthenticated) => RetrySlowly,

        // The node has as many volumes as it can have.
        (M::ControllerPublishVolume | M::NodeStageVolume | M::NodePublishVolume, Code::ResourceExhausted) => {
            WaitForOther
        }
        (_, Code::ResourceExhausted) => RetrySlowly,

        // The volume is in use, or published to another node, or not staged, or expanded only while it is published nowhere.
        (
            M::DeleteVolume
            | M::ControllerPublishVolume
            | M::ControllerExpandVolume
            | M::NodeStageVolume
            | M::NodePublishVolume
            | M::NodeExpandVolume,
            Code::FailedPrecondition,
        ) => WaitForOther,
        (_, Code::FailedPrecondition) => RetrySlowly,

        // The token of the next page has expired: list from the first page again.
        (M::ListVolumes, Code::Aborted) => Retry,
        (_, Code::Aborted) => InProgress,

        // The capacity is out of the plugin's range.
        (
            M::CreateVolume
            | M::ControllerPublishVolume
            | M::ControllerExpandVolume
            | M::NodeStageVolume
            | M::NodePublishVolume
            | M::NodeExpandVolume,
            Code::OutOfRange,
        ) => Final,
        // Detaching and deleting must succeed in the end.
        (_, Code::OutOfRange) => RetrySlowly,

        (_, Code::DataLoss) => RetrySlowly,
    }
}

/// Whether a call with this answer may have had an effect.
pub fn effect(method: Method, code: Code) -> Effect {
    match (method, code) {
        // The plugin rejected the request before it began.
        (
            _,
            Code::InvalidArgument
            | Code::NotFound
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented,
        ) => Effect::None,
        // Something exists under this name already: an earlier attempt may have made it.
        (_, Code::AlreadyExists)
        | (
            _,
            Code::Ok
            | Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss,
        ) => Effect::Unknown,
    }
}

#[cfg(test)]
impl Method {
    /// Every call, in the order of [`Method`].
    pub(crate) const ALL: [Self; 19] = [
        Self::Probe,
        Self::GetPluginInfo,
        Self::GetPluginCapabilities,
        Self::ControllerGetCapabilities,
        Self::CreateVolume,
        Self::DeleteVolume,
        Self::ControllerPublishVolume,
        Self::ControllerUnpublishVolume,
        Self::ControllerExpandVolume,
        Self::ValidateVolumeCapabilities,
        Self::ListVolumes,
        Self::GetCapacity,
        Self::NodeGetCapabilities,
        Self::NodeGetInfo,
        Self::NodeStageVolume,
        Self::NodeUnstageVolume,
        Self::NodePublishVolume,
        Self::NodeUnpublishVolume,
        Self::NodeExpandVolume,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc_code;

    /// A row a code, by number. The columns are the calls about volumes (validation and room with unpublication, the calls on a node
    /// with those of the controller that they resemble), then the list, then the handshake. D done, R retry, S slowly, P in progress,
    /// W wait for another, F final.
    const TABLE: [(&str, &str); 17] = [
        //                    create delete publish unpublish expand | list | handshake
        ("OK", "DDDDD D D"),
        ("Canceled", "RRRRR R R"),
        ("Unknown", "RRRRR R R"),
        ("InvalidArgument", "FFFFF F S"),
        ("DeadlineExceeded", "RRRRR R R"),
        ("NotFound", "SDSSS S S"),
        ("AlreadyExists", "FSFSS S S"),
        ("PermissionDenied", "SSSSS S S"),
        ("ResourceExhausted", "SSWSS S S"),
        ("FailedPrecondition", "SWWSW S S"),
        ("Aborted", "PPPPP R R"),
        ("OutOfRange", "FSFSF S S"),
        ("Unimplemented", "FFFFF F S"),
        ("Internal", "RRRRR R R"),
        ("Unavailable", "RRRRR R R"),
        ("DataLoss", "SSSSS S S"),
        ("Unauthenticated", "SSSSS S S"),
    ];

    fn class(letter: char) -> Class {
        match letter {
            'D' => Class::Done,
            'R' => Class::Retry,
            'S' => Class::RetrySlowly,
            'P' => Class::InProgress,
            'W' => Class::WaitForOther,
            'F' => Class::Final,
            other => panic!("no class {other}"),
        }
    }

    #[test]
    fn every_code_of_every_call_has_its_class() {
        let columns: [&[Method]; 7] = [
            &[Method::CreateVolume],
            &[Method::DeleteVolume],
            &[
                Method::ControllerPublishVolume,
                Method::NodeStageVolume,
                Method::NodePublishVolume,
            ],
            &[
                Method::ControllerUnpublishVolume,
                Method::ValidateVolumeCapabilities,
                Method::GetCapacity,
                Method::NodeUnstageVolume,
                Method::NodeUnpublishVolume,
            ],
            &[Method::ControllerExpandVolume, Method::NodeExpandVolume],
            &[Method::ListVolumes],
            &[
                Method::Probe,
                Method::GetPluginInfo,
                Method::GetPluginCapabilities,
                Method::ControllerGetCapabilities,
                Method::NodeGetCapabilities,
                Method::NodeGetInfo,
            ],
        ];
        let mut checked = 0;
        for (number, (name, row)) in TABLE.iter().enumerate() {
            let code = Code::from_i32(i32::try_from(number).unwrap());
            assert_eq!(grpc_code::name(code), *name);
            let letters: Vec<char> = row.chars().filter(|letter| *letter != ' ').collect();
            assert_eq!(letters.len(), columns.len(), "{name}");
            for (methods, letter) in columns.iter().zip(letters) {
                for method in *methods {
                    assert_eq!(classify(*method, code), class(letter), "{method} {name}");
                    checked += 1;
                }
            }
        }
        assert_eq!(checked, Method::ALL.len() * 17);
    }

    #[test]
    fn only_a_missing_volume_is_done_and_what_is_in_progress_may_have_had_an_effect() {
        for method in Method::ALL {
            for code in (1..=16).map(Code::from_i32) {
                let done = classify(method, code) == Class::Done;
                assert_eq!(
                    done,
                    method == Method::DeleteVolume && code == Code::NotFound,
                    "{method} {code:?}: only a volume to delete may be missing"
                );
                if classify(method, code) == Class::InProgress {
                    assert_eq!(effect(method, code), Effect::Unknown, "{method} {code:?}");
                }
            }
        }
    }

    #[test]
    fn a_call_that_was_rejected_had_no_effect() {
        let untouched: Vec<_> = (0..=16)
            .map(Code::from_i32)
            .filter(|code| effect(Method::CreateVolume, *code) == Effect::None)
            .map(grpc_code::name)
            .collect();
        assert_eq!(
            untouched,
            [
                "InvalidArgument",
                "NotFound",
                "PermissionDenied",
                "FailedPrecondition",
                "OutOfRange",
                "Unimplemented",
                "Unauthenticated"
            ]
        );
    }

    #[test]
    fn the_path_of_a_call_ends_with_its_name() {
        for method in Method::ALL {
            assert!(
                method.path().ends_with(&format!("/{method}")),
                "{}",
                method.path()
            );
        }
    }
}
