//! The details of a gRPC status, as `grpc-status-details-bin` carries them: a message `google.rpc.Status`. Pure.

use prost::Message;
use prost_types::Any;

use crate::grpc_code::Code;

/// `google.rpc.Status`, as googleapis defines it.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// The bytes of a status with this code, message and detail.
pub fn encode(code: Code, message: &str, detail: Any) -> Vec<u8> {
    let status = Status {
        code: code.into(),
        message: message.to_owned(),
        details: vec![detail],
    };
    status.encode_to_vec()
}

/// A message as a detail. `full_name` is that of its type, with the package.
pub fn detail(full_name: &str, message: &impl Message) -> Any {
    Any {
        type_url: format!("type.googleapis.com/{full_name}"),
        value: message.encode_to_vec(),
    }
}

/// The first message of this type among the details of a status; `None` if there is none, or it cannot be read.
pub fn find<M: Message + Default>(full_name: &str, details: &[u8]) -> Option<M> {
    let status = Status::decode(details).ok()?;
    let mut of_type = status
        .details
        .iter()
        .filter(|any| any.type_url.rsplit('/').next() == Some(full_name));
    M::decode(&*of_type.next()?.value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Removed;

    #[test]
    fn a_detail_is_found_by_its_type() {
        let removed = Removed {
            node_uid: "u".to_owned(),
        };
        let bytes = encode(
            Code::PermissionDenied,
            "removed",
            detail("quorate.v1.Removed", &removed),
        );
        assert_eq!(find("quorate.v1.Removed", &bytes), Some(removed));
        assert_eq!(find::<Removed>("quorate.v1.Other", &bytes), None);
        assert_eq!(find::<Removed>("quorate.v1.Removed", &[0xff]), None);
        assert_eq!(find::<Removed>("quorate.v1.Removed", &[]), None);
    }
}
