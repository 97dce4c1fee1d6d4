//! Who may join as what. Pure.

use crate::grpc_code::Code;
use crate::proto::Role;
use crate::store::keys::Joiner;

/// What was found about a join.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Whom the token lets in; `None` if it is none of those in force that can be meant.
    pub joiner: Option<&'a Joiner>,
    /// The uid that the token names, if it is one for a node.
    pub node_of_token: &'a str,
    /// The uid of the node of the name, if there is one.
    pub node: Option<&'a str>,
    /// Whether the last request of that node has the key of this one.
    pub is_key_on_record: bool,
    /// Whether that request has no answer and waits for none: an operator asked for another one before the first was answered, or it
    /// failed. Without a certificate the node cannot renew one.
    pub is_abandoned: bool,
}

/// What becomes of a join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make a node with this desired role.
    Create(Role),
    /// Let the caller take over the node that exists: its token says so.
    TakeOver,
    /// The same join was made before, and its reply was lost.
    Known,
    /// The same join was made before, and its request has to be made again.
    Again,
}

impl Step {
    /// The same as a word of the metric.
    pub fn word(self) -> &'static str {
        match self {
            Self::Create(_) => "created",
            Self::TakeOver => "taken_over",
            Self::Known | Self::Again => "known",
        }
    }
}

/// Why a join is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The token is not one of those in force.
    #[error(
        "the token lets in no node here: it was rotated or used, is for another node, or of another cluster"
    )]
    WrongToken,
    /// Another node has the name.
    #[error(
        "another node has this name; with the token of that node (quorate token create --node NAME) an agent takes it over"
    )]
    NameInUse,
}

impl Refused {
    /// The code of the answer.
    pub fn code(self) -> Code {
        match self {
            Self::WrongToken => Code::InvalidArgument,
            Self::NameInUse => Code::AlreadyExists,
        }
    }
}

/// Decides about a join.
///
/// # Errors
/// Why it is refused.
pub fn plan(found: &Found<'_>) -> Result<Step, Refused> {
    let role = match (found.joiner, found.node) {
        // First: its holder may have lost all else, the key included.
        (Some(Joiner::Node(_)), Some(uid)) if uid == found.node_of_token => return Ok(Step::TakeOver),
        // Before the token is looked at: one for a node is gone once it was used, and the key proves who asks.
        (_, Some(_)) if found.is_key_on_record && found.is_abandoned => return Ok(Step::Again),
        (_, Some(_)) if found.is_key_on_record => return Ok(Step::Known),
        // The node that the token was made for does not exist any more.
        (Some(Joiner::Node(_)) | None, _) => return Err(Refused::WrongToken),
        (Some(Joiner::Worker), _) => Role::Worker,
        (Some(Joiner::Manager), _) => Role::Manager,
    };
    match found.node {
        None => Ok(Step::Create(role)),
        Some(_) => Err(Refused::NameInUse),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<'a>(joiner: Option<&'a Joiner>, node: Option<&'a str>, is_key_on_record: bool) -> Found<'a> {
        Found {
            joiner,
            node_of_token: "u",
            node,
            is_key_on_record,
            is_abandoned: false,
        }
    }

    #[test]
    fn the_token_decides_the_role_of_the_node_that_it_makes() {
        for (joiner, role) in [(Joiner::Worker, Role::Worker), (Joiner::Manager, Role::Manager)] {
            let step = plan(&found(Some(&joiner), None, false));
            assert_eq!(step, Ok(Step::Create(role)));
        }
    }

    #[test]
    fn a_name_in_use_belongs_to_the_holder_of_the_key_on_record() {
        for joiner in [Joiner::Worker, Joiner::Manager] {
            let taken = plan(&found(Some(&joiner), Some("u"), false));
            assert_eq!(taken, Err(Refused::NameInUse));
            let own = plan(&found(Some(&joiner), Some("u"), true));
            assert_eq!(own, Ok(Step::Known));
        }
    }

    #[test]
    fn a_first_request_that_has_no_answer_to_wait_for_is_made_again_by_its_own_key_alone() {
        let abandoned = |is_key_on_record| Found {
            is_abandoned: true,
            ..found(Some(&Joiner::Worker), Some("u"), is_key_on_record)
        };
        assert_eq!(plan(&abandoned(true)), Ok(Step::Again));
        assert_eq!(plan(&abandoned(false)), Err(Refused::NameInUse));
    }

    #[test]
    fn the_token_of_a_node_is_for_that_very_node() {
        let joiner = Joiner::Node("n1".parse().unwrap());
        for is_key_on_record in [false, true] {
            let step = plan(&found(Some(&joiner), Some("u"), is_key_on_record));
            assert_eq!(
                step,
                Ok(Step::TakeOver),
                "a new request, whatever the last one was"
            );
        }
        let later = plan(&found(Some(&joiner), Some("other"), false));
        assert_eq!(later, Err(Refused::WrongToken));
        assert_eq!(plan(&found(Some(&joiner), None, false)), Err(Refused::WrongToken));
    }

    #[test]
    fn without_a_token_in_force_only_a_lost_reply_is_repeated() {
        assert_eq!(plan(&found(None, None, false)), Err(Refused::WrongToken));
        assert_eq!(plan(&found(None, Some("u"), false)), Err(Refused::WrongToken));
        assert_eq!(plan(&found(None, Some("u"), true)), Ok(Step::Known));
    }
}
