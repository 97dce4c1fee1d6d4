//! The one table of what follows from an answer: for every call and every gRPC code.

use std::fmt;

use tonic::Code;

/// The calls of the specification that are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// Whether the plugin is ready.
    Probe,
    /// Its name and version.
    GetPluginInfo,
    /// Which services it has.
    GetPluginCapabilities,
    /// What its Controller service does.
    ControllerGetCapabilities,
    /// Makes a volume.
    CreateVolume,
    /// Deletes one.
    DeleteVolume,
    /// Attaches one to a node.
    ControllerPublishVolume,
    /// Detaches it from there.
    ControllerUnpublishVolume,
    /// Makes one larger.
    ControllerExpandVolume,
    /// Lists them.
    ListVolumes,
}

impl Method {
    /// Every call.
    pub const ALL: [Self; 10] = [
        Self::Probe,
        Self::GetPluginInfo,
        Self::GetPluginCapabilities,
        Self::ControllerGetCapabilities,
        Self::CreateVolume,
        Self::DeleteVolume,
        Self::ControllerPublishVolume,
        Self::ControllerUnpublishVolume,
        Self::ControllerExpandVolume,
        Self::ListVolumes,
    ];

    /// Its name in the specification.
    pub fn name(self) -> &'static str {
        match self {
            Self::Probe => "Probe",
            Self::GetPluginInfo => "GetPluginInfo",
            Self::GetPluginCapabilities => "GetPluginCapabilities",
            Self::ControllerGetCapabilities => "ControllerGetCapabilities",
            Self::CreateVolume => "CreateVolume",
            Self::DeleteVolume => "DeleteVolume",
            Self::ControllerPublishVolume => "ControllerPublishVolume",
            Self::ControllerUnpublishVolume => "ControllerUnpublishVolume",
            Self::ControllerExpandVolume => "ControllerExpandVolume",
            Self::ListVolumes => "ListVolumes",
        }
    }

    /// Its path in a gRPC request, which is also how the usual dashboards of CSI name it.
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
            Self::ListVolumes => "/csi.v1.Controller/ListVolumes",
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
    /// What was asked for is the case.
    Done,
    /// It may go better in a moment: the same call again, with a growing delay.
    Retry,
    /// It may go better without anyone changing anything here, but hardly in a moment: begin with a long delay.
    RetrySlowly,
    /// The plugin is still at work on an earlier call for this volume, perhaps of the leader before: the same call
    /// again, with a growing delay. Not a fault.
    InProgress,
    /// Another object stands in the way, such as a publication to another node: the same call again when that is
    /// gone, and slowly until then, since the plugin may count what is not known here.
    WaitForOther,
    /// The same call cannot succeed: not again until the volume, its secrets, the plugin or its capabilities have
    /// changed, or somebody asks for it.
    Final,
}

/// Whether a call that failed may have had an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// This call changed nothing at the backend. Earlier ones may have.
    None,
    /// It may have done all, some or nothing, or may still be at it.
    Unknown,
}

/// What follows from this code, answered to this call.
///
/// From the error tables of the specification, and for the codes that those leave out from what the plugins in the
/// field mean by them.
pub fn classify(method: Method, code: Code) -> Class {
    use Class::{Done, Final, InProgress, Retry, RetrySlowly, WaitForOther};
    use Method as M;
    match (method, code) {
        (_, Code::Ok) => Done,

        // Nobody said no; and Internal is what many plugins answer whatever the cause.
        (
            _,
            Code::Cancelled | Code::Unknown | Code::DeadlineExceeded | Code::Unavailable | Code::Internal,
        ) => Retry,

        // Whatever a plugin says no to in its handshake: it is asked again for as long as somebody wants it, since it
        // may be replaced by one that answers.
        (M::Probe | M::GetPluginInfo | M::GetPluginCapabilities | M::ControllerGetCapabilities, code) => {
            if code == Code::Aborted {
                Retry
            } else {
                RetrySlowly
            }
        }

        // The request itself is wrong, or the plugin does not do such things: so it stays until one of them changes.
        (_, Code::InvalidArgument | Code::Unimplemented) => Final,

        // A plugin is to answer Ok here. Some say that what is to go is not there: so it is gone.
        (M::DeleteVolume, Code::NotFound) => Done,
        // A new node may not be known to the backend yet, nor what the parameters of a volume name. And where the node
        // of a publication is not found, it is not known whether the volume is detached: only Ok says so.
        (_, Code::NotFound) => RetrySlowly,

        // A volume of this name with other properties; the volume published there in another way.
        (M::CreateVolume | M::ControllerPublishVolume, Code::AlreadyExists) => Final,
        (_, Code::AlreadyExists) => RetrySlowly,

        // Permissions and credentials are also mended at the backend, where nobody tells.
        (_, Code::PermissionDenied | Code::Unauthenticated) => RetrySlowly,

        // The node has as many volumes as it can take.
        (M::ControllerPublishVolume, Code::ResourceExhausted) => WaitForOther,
        (_, Code::ResourceExhausted) => RetrySlowly,

        // In use; published to another node; grows only while it is published nowhere.
        (
            M::DeleteVolume | M::ControllerPublishVolume | M::ControllerExpandVolume,
            Code::FailedPrecondition,
        ) => WaitForOther,
        (_, Code::FailedPrecondition) => RetrySlowly,

        // The token of the next page is no longer good: again from the first page.
        (M::ListVolumes, Code::Aborted) => Retry,
        (_, Code::Aborted) => InProgress,

        // The capacity is beyond what the plugin does.
        (M::CreateVolume | M::ControllerPublishVolume | M::ControllerExpandVolume, Code::OutOfRange) => Final,
        // What is to go has to go some day.
        (_, Code::OutOfRange) => RetrySlowly,

        (_, Code::DataLoss) => RetrySlowly,
    }
}

/// Whether a call that was answered with this code may have had an effect.
pub fn effect(method: Method, code: Code) -> Effect {
    match (method, code) {
        // The plugin looked at the request, and did not begin.
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
        // Something is there already under this name: it may be what an earlier attempt made.
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
mod tests {
    use super::*;
    use crate::grpc_code;

    /// A row a code, by number; the columns are the calls that move volumes, then the list, then the questions of a
    /// handshake. D done, R retry, S slowly, P in progress, W wait for another, F final.
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
            &[Method::ControllerPublishVolume],
            &[Method::ControllerUnpublishVolume],
            &[Method::ControllerExpandVolume],
            &[Method::ListVolumes],
            &[
                Method::Probe,
                Method::GetPluginInfo,
                Method::GetPluginCapabilities,
                Method::ControllerGetCapabilities,
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
    fn nothing_that_may_have_happened_is_called_done_nor_what_is_final_still_under_way() {
        for method in Method::ALL {
            for code in (1..=16).map(Code::from_i32) {
                let done = classify(method, code) == Class::Done;
                assert_eq!(
                    done,
                    method == Method::DeleteVolume && code == Code::NotFound,
                    "{method} {code:?}: only what is to be deleted may be missing"
                );
                if classify(method, code) == Class::InProgress {
                    assert_eq!(effect(method, code), Effect::Unknown, "{method} {code:?}");
                }
            }
        }
    }

    #[test]
    fn a_call_that_was_only_looked_at_had_no_effect() {
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
