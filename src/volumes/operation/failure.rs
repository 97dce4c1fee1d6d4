//! Why a step failed, and when it may be tried again.

use crate::csi::{CallError, Class};
use crate::volumes::record::Blocked;
use crate::volumes::retry::Pace;

/// Why a step failed, and when it may be tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For the condition.
    pub why: Blocked,
    /// `None`: not before something has changed.
    pub pace: Option<Pace>,
    /// Not worth a condition: it would not reach etcd either.
    pub is_quiet: bool,
}

impl Failure {
    /// A read or a write failed.
    pub fn etcd(error: &crate::etcd::Error) -> Self {
        Self {
            why: Blocked {
                reason: "EtcdFailed".to_owned(),
                message: error.to_string(),
            },
            pace: Some(Pace::Quick),
            is_quiet: true,
        }
    }

    /// Others write the records faster than they can be looked at.
    pub fn restless() -> Self {
        Self {
            why: Blocked {
                reason: "Restless".to_owned(),
                message: "its records change faster than they can be acted on".to_owned(),
            },
            pace: Some(Pace::Quick),
            is_quiet: true,
        }
    }

    /// What follows from a call that failed, by the table of its codes.
    pub fn of_call(error: &CallError) -> Self {
        let pace = match error.class() {
            // The table calls it done only where the call is taken for a success.
            Class::Done | Class::Retry | Class::InProgress => Some(Pace::Quick),
            Class::RetrySlowly | Class::WaitForOther => Some(Pace::Slow),
            Class::Final => None,
        };
        Self {
            why: Blocked {
                reason: error.code_name().to_owned(),
                message: error.to_string(),
            },
            pace,
            is_quiet: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::class::{Effect, effect};
    use crate::csi::{Code, Method, class::classify};

    /// INV-6, INV-9: each code of each call has a pace, and what a refusal to create proves is what the table says.
    #[test]
    fn what_follows_from_every_code_of_every_call_is_what_the_table_says() {
        for method in Method::ALL {
            for code in (1..=16).map(Code::from_i32) {
                let error = CallError {
                    method,
                    code,
                    message: "no".to_owned(),
                };
                let failure = Failure::of_call(&error);
                let expected = match classify(method, code) {
                    Class::Final => None,
                    Class::RetrySlowly | Class::WaitForOther => Some(Pace::Slow),
                    Class::Done | Class::Retry | Class::InProgress => Some(Pace::Quick),
                };
                assert_eq!(failure.pace, expected, "{method} {code:?}");
                assert!(failure.why.message.contains("no") && !failure.is_quiet);
                assert_eq!(failure.why.reason, error.code_name());
            }
        }
        // A volume that may be there is never taken for refused.
        assert_eq!(effect(Method::CreateVolume, Code::AlreadyExists), Effect::Unknown);
        assert_eq!(
            effect(Method::CreateVolume, Code::DeadlineExceeded),
            Effect::Unknown
        );
        assert_eq!(effect(Method::CreateVolume, Code::OutOfRange), Effect::None);
    }
}
