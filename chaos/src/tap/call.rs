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

/// How a call ended.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// etcd's answer; none where it gave none.
    pub answer: Option<Answer<'a>>,
    /// When the process got the answer.
    pub answered: Option<At>,
    /// When the call was over, for one that was not answered.
    pub given_up: Option<At>,
}

impl<'a> End<'a> {
    /// Of a call that was over at this instant, without its process having got the answer.
    pub fn given_up(at: At, answer: Option<Answer<'a>>) -> Self {
        Self {
            answer,
            answered: None,
            given_up: Some(at),
        }
    }
}

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
    /// The event of this call. A call without a known caller is of interest only if it changes members.
    pub fn event(
        &self,
        by: Option<&Process>,
        end: End<'_>,
        epoch: u32,
    ) -> Result<Option<What>, prost::DecodeError> {
        let End { answer, answered, .. } = end;
        let event = match (self.method, by.cloned()) {
            (Method::Txn, Some(by)) => self.transaction(by, answer, answered, epoch),
            (Method::Put | Method::DeleteRange, Some(by)) => self.write(by, answer, answered, epoch),
            (Method::Grant | Method::KeepAlive | Method::Revoke, Some(by)) => {
                self.lease(by, answer, answered)
            }
            (Method::MemberAdd | Method::MemberPromote | Method::MemberRemove | Method::MemberUpdate, by) => {
                self.member(by, end)
            }
            (_, None) => return Ok(None),
        };
        event.map(Some)
    }

    fn transaction(
        &self,
        by: Process,
        answer: Option<Answer<'_>>,
        answered: Option<At>,
        epoch: u32,
    ) -> Result<What, prost::DecodeError> {
        let txn = wire::TxnRequest::decode(&*self.request)?;
        let outcome = outcome(answer, |bytes| {
            let answer = wire::TxnResponse::decode(bytes)?;
            Ok(wire::applied(answer.header, answer.succeeded, epoch))
        })?;
        Ok(What::Store(StoreCall {
            by,
            compares: txn.compare.into_iter().map(Compare::from).collect(),
            then: txn.success.into_iter().map(Op::from).collect(),
            otherwise: txn.failure.into_iter().map(Op::from).collect(),
            answered,
            outcome,
        }))
    }

    fn write(
        &self,
        by: Process,
        answer: Option<Answer<'_>>,
        answered: Option<At>,
        epoch: u32,
    ) -> Result<What, prost::DecodeError> {
        let request = &*self.request;
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
        Ok(What::Store(StoreCall {
            by,
            compares: Vec::new(),
            then: vec![op.into()],
            otherwise: Vec::new(),
            answered,
            outcome,
        }))
    }

    fn lease(
        &self,
        by: Process,
        answer: Option<Answer<'_>>,
        answered: Option<At>,
    ) -> Result<What, prost::DecodeError> {
        let asked = wire::IdRequest::decode(&*self.request)?;
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

    fn member(&self, by: Option<Process>, end: End<'_>) -> Result<What, prost::DecodeError> {
        let End {
            answer,
            answered,
            given_up,
        } = end;
        let (change, of) = self.change()?;
        let outcome = outcome(answer, |bytes| match of {
            Some(id) => Ok(id),
            None => Ok(wire::MemberAddResponse::decode(bytes)?
                .member
                .map_or(0, |it| it.id)),
        })?;
        Ok(What::Member(MemberCall {
            by,
            change,
            answered,
            given_up,
            outcome,
        }))
    }

    /// The change of members, and the id of the member that it names.
    fn change(&self) -> Result<(MemberChange, Option<u64>), prost::DecodeError> {
        let request = &*self.request;
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
