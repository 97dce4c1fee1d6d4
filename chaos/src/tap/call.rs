//! One request of a stream, and the event that it becomes.

use prost::Message;

use super::wire;
use crate::history::{
    At, Compare, LeaseCall, LeaseOp, MemberCall, MemberChange, Op, Outcome, Process, StoreCall, What,
};

/// The methods that are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Txn,
    Put,
    DeleteRange,
    Grant,
    KeepAlive,
    Revoke,
    MemberAdd,
    MemberPromote,
    MemberRemove,
    MemberUpdate,
}

impl Method {
    /// Of a path of gRPC; none for what is not recorded.
    pub fn of(path: &str) -> Option<Self> {
        Some(match path.strip_prefix("/etcdserverpb.")? {
            "KV/Txn" => Self::Txn,
            "KV/Put" => Self::Put,
            "KV/DeleteRange" => Self::DeleteRange,
            "Lease/LeaseGrant" => Self::Grant,
            "Lease/LeaseKeepAlive" => Self::KeepAlive,
            "Lease/LeaseRevoke" => Self::Revoke,
            "Cluster/MemberAdd" => Self::MemberAdd,
            "Cluster/MemberPromote" => Self::MemberPromote,
            "Cluster/MemberRemove" => Self::MemberRemove,
            "Cluster/MemberUpdate" => Self::MemberUpdate,
            _ => return None,
        })
    }
}

/// etcd's answer: the message, or none where it refused. Why it refused is in headers, which are not decoded.
pub type Answer<'a> = Option<&'a [u8]>;

/// What a request became, so far as it is known.
#[derive(Clone, Debug)]
pub struct Call {
    /// When the proxy got it.
    pub at: At,
    /// Which it is.
    pub method: Method,
    /// The message.
    pub request: Vec<u8>,
}

impl Call {
    /// The event of this call. `answer`: none where etcd gave none.
    pub fn event(
        &self,
        by: &Process,
        answer: Option<Answer<'_>>,
        answered: Option<At>,
        epoch: u32,
    ) -> Result<What, prost::DecodeError> {
        let by = by.clone();
        let request = &*self.request;
        Ok(match self.method {
            Method::Txn => {
                let txn = wire::TxnRequest::decode(request)?;
                let outcome = outcome(answer, |bytes| {
                    let answer = wire::TxnResponse::decode(bytes)?;
                    Ok(wire::applied(answer.header, answer.succeeded, epoch))
                })?;
                What::Store(StoreCall {
                    by,
                    compares: txn.compare.into_iter().map(Compare::from).collect(),
                    then: txn.success.into_iter().map(Op::from).collect(),
                    otherwise: txn.failure.into_iter().map(Op::from).collect(),
                    answered,
                    outcome,
                })
            }
            Method::Put | Method::DeleteRange => {
                let request = match self.method {
                    Method::Put => wire::Request::Put(wire::PutRequest::decode(request)?),
                    _ => wire::Request::DeleteRange(wire::RangeRequest::decode(request)?),
                };
                let op = wire::RequestOp {
                    request: Some(request),
                };
                let outcome = outcome(answer, |bytes| {
                    let answer = wire::HeaderResponse::decode(bytes)?;
                    Ok(wire::applied(answer.header, true, epoch))
                })?;
                What::Store(StoreCall {
                    by,
                    compares: Vec::new(),
                    then: vec![op.into()],
                    otherwise: Vec::new(),
                    answered,
                    outcome,
                })
            }
            Method::Grant | Method::KeepAlive | Method::Revoke => {
                self.lease(by, request, answer, answered)?
            }
            _ => {
                let (change, of) = self.member(request)?;
                let outcome = outcome(answer, |bytes| match of {
                    Some(id) => Ok(id),
                    None => Ok(wire::MemberAddResponse::decode(bytes)?
                        .member
                        .map_or(0, |it| it.id)),
                })?;
                What::Member(MemberCall {
                    by,
                    change,
                    answered,
                    outcome,
                })
            }
        })
    }

    fn lease(
        &self,
        by: Process,
        request: &[u8],
        answer: Option<Answer<'_>>,
        answered: Option<At>,
    ) -> Result<What, prost::DecodeError> {
        let asked = wire::IdRequest::decode(request)?;
        let mut granted = 0;
        let outcome = outcome(answer, |bytes| {
            if self.method == Method::Revoke {
                return Ok(0);
            }
            let answer = wire::LeaseResponse::decode(bytes)?;
            granted = answer.id;
            Ok(answer.ttl)
        })?;
        let (op, lease) = match self.method {
            // The first field of a grant is the TTL; etcd chooses the id.
            Method::Grant => (LeaseOp::Grant, granted),
            Method::KeepAlive => (LeaseOp::KeepAlive, asked.id),
            _ => (LeaseOp::Revoke, asked.id),
        };
        Ok(What::Lease(LeaseCall {
            by,
            lease,
            op,
            answered,
            outcome,
        }))
    }

    /// The change, and the id of the member that it names.
    fn member(&self, request: &[u8]) -> Result<(MemberChange, Option<u64>), prost::DecodeError> {
        Ok(match self.method {
            Method::MemberAdd => {
                let add = wire::MemberAddRequest::decode(request)?;
                let change = MemberChange::Add {
                    learner: add.is_learner,
                    peer_urls: add.peer_urls,
                };
                (change, None)
            }
            Method::MemberUpdate => {
                let update = wire::MemberUpdateRequest::decode(request)?;
                let change = MemberChange::Update {
                    id: update.id,
                    peer_urls: update.peer_urls,
                };
                (change, Some(update.id))
            }
            Method::MemberPromote => {
                let id = wire::MemberIdRequest::decode(request)?.id;
                (MemberChange::Promote(id), Some(id))
            }
            _ => {
                let id = wire::MemberIdRequest::decode(request)?.id;
                (MemberChange::Remove(id), Some(id))
            }
        })
    }
}

/// gRPC's code UNKNOWN, for a refusal whose code is not decoded.
const CODE_UNKNOWN: i32 = 2;

fn outcome<T>(
    answer: Option<Answer<'_>>,
    decode: impl FnOnce(&[u8]) -> Result<T, prost::DecodeError>,
) -> Result<Outcome<T>, prost::DecodeError> {
    Ok(match answer {
        Some(Some(bytes)) => Outcome::Done(decode(bytes)?),
        Some(None) => Outcome::Failed {
            code: CODE_UNKNOWN,
            message: String::new(),
        },
        None => Outcome::Unknown,
    })
}
