//! The names of gRPC codes, in metrics and messages.

pub use tonic::Code;

/// The code's name in Go's gRPC library, which the usual dashboards of etcd and of CSI expect.
pub fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

/// The code with this name; `None` if no code has it.
pub fn named(text: &str) -> Option<Code> {
    let all = (0..=16).map(Code::from_i32);
    all.into_iter().find(|code| name(*code) == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_found_by_its_name() {
        for code in (0..=16).map(Code::from_i32) {
            assert_eq!(named(name(code)), Some(code));
        }
        assert_eq!(named("Ok"), None);
    }
}
