//! The messages of etcd's API that a tap decodes, with the fields that it needs. Their numbers are those of etcd's rpc.proto.

use prost::Message;

use crate::history::{Applied, Bytes, Compare, Is, Op, Revision, Target};

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Header {
    #[prost(int64, tag = "3")]
    pub revision: i64,
    #[prost(uint64, tag = "4")]
    pub raft_term: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub lease: i64,
    #[prost(bool, tag = "6")]
    pub ignore_lease: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct RequestOp {
    #[prost(oneof = "Request", tags = "1, 2, 3")]
    pub request: Option<Request>,
}

/// A transaction within a transaction is left out: Quorate sends none.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Request {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    DeleteRange(RangeRequest),
}

#[derive(Clone, PartialEq, Message)]
pub struct CompareMessage {
    #[prost(int32, tag = "1")]
    pub result: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    #[prost(oneof = "TargetUnion", tags = "4, 5, 6, 7, 8")]
    pub target: Option<TargetUnion>,
    #[prost(int32, tag = "2")]
    pub target_kind: i32,
    #[prost(bytes = "vec", tag = "64")]
    pub range_end: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum TargetUnion {
    #[prost(int64, tag = "4")]
    Version(i64),
    #[prost(int64, tag = "5")]
    Created(i64),
    #[prost(int64, tag = "6")]
    Modified(i64),
    #[prost(bytes, tag = "7")]
    Value(Vec<u8>),
    #[prost(int64, tag = "8")]
    Lease(i64),
}

#[derive(Clone, PartialEq, Message)]
pub struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<CompareMessage>,
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<RequestOp>,
}

/// The answer to a transaction; that to a put or a deletion has the header alone.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct HeaderResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
}

/// A request that names a lease or a member by its id alone.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct IdRequest {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct MemberIdRequest {
    #[prost(uint64, tag = "1")]
    pub id: u64,
}

/// The answer to a grant and to a renewal.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct LeaseResponse {
    #[prost(int64, tag = "2")]
    pub id: i64,
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct MemberAddRequest {
    #[prost(string, repeated, tag = "1")]
    pub peer_urls: Vec<String>,
    #[prost(bool, tag = "2")]
    pub is_learner: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct MemberUpdateRequest {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, repeated, tag = "2")]
    pub peer_urls: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct MemberAddResponse {
    #[prost(message, optional, tag = "2")]
    pub member: Option<MemberIdRequest>,
}

impl From<RequestOp> for Op {
    fn from(op: RequestOp) -> Self {
        match op.request {
            Some(Request::Put(put)) => Self::Put {
                key: put.key.into(),
                value: put.value.into(),
                lease: put.lease,
                keep_lease: put.ignore_lease,
            },
            Some(Request::DeleteRange(range)) => Self::Delete {
                key: range.key.into(),
                end: range.range_end.into(),
            },
            Some(Request::Range(range)) => Self::Get {
                key: range.key.into(),
                end: range.range_end.into(),
            },
            None => Self::Get {
                key: Bytes::default(),
                end: Bytes::default(),
            },
        }
    }
}

impl From<CompareMessage> for Compare {
    fn from(compare: CompareMessage) -> Self {
        let target = match (compare.target, compare.target_kind) {
            (Some(TargetUnion::Version(version)), _) => Target::Version(version),
            (Some(TargetUnion::Created(revision)), _) => Target::Created(revision),
            (Some(TargetUnion::Modified(revision)), _) => Target::Modified(revision),
            (Some(TargetUnion::Value(value)), _) => Target::Value(value.into()),
            (Some(TargetUnion::Lease(lease)), _) => Target::Lease(lease),
            // An encoder may leave a zero out.
            (None, 1) => Target::Created(0),
            (None, 2) => Target::Modified(0),
            (None, 3) => Target::Value(Bytes::default()),
            (None, 4) => Target::Lease(0),
            (None, _) => Target::Version(0),
        };
        let is = match compare.result {
            1 => Is::Greater,
            2 => Is::Less,
            3 => Is::NotEqual,
            _ => Is::Equal,
        };
        Self {
            key: compare.key.into(),
            end: compare.range_end.into(),
            target,
            is,
        }
    }
}

/// The answer to a write, in the store's history of this epoch.
pub fn applied(header: Option<Header>, succeeded: bool, epoch: u32) -> Applied {
    let header = header.unwrap_or_default();
    Applied {
        succeeded,
        revision: Revision {
            epoch,
            revision: header.revision,
        },
        raft_term: header.raft_term,
    }
}
