//! A request to join, as a command or an agent makes it: whether it is the one on record, what is recorded if not, and how far it is.
//! Pure.

use jiff::Timestamp;

use super::membership::{Member, Membership};
use crate::etcd::MemberId;
use crate::etcd::members::same_urls;
use crate::proto::join::Progress;
use crate::proto::{Join, JoinRequest};
use crate::store::object::{member, time};

/// What a node asks for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The name of the node.
    pub node: &'a str,
    /// Its uid.
    pub uid: &'a str,
    /// The URLs at which the other members reach its etcd.
    pub peer_urls: &'a [String],
    /// Those at which clients reach it. Empty: those on record stay.
    pub client_urls: &'a [String],
    /// Whether the peer URLs are used untested.
    pub no_dial: bool,
}

/// What follows from a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    /// It is on record already, under this id.
    Already(String),
    /// This join is recorded.
    New(Box<Join>),
}

impl Wanted<'_> {
    /// What follows from the request, where `before` is on record (an empty join if nothing is). A new request gets this id.
    pub fn ask(&self, before: Join, membership: &Membership, id: &str, now: Timestamp) -> Asked {
        let earlier = before.request.clone().unwrap_or_default();
        if self.is_under_way(&before, &earlier) {
            return Asked::Already(earlier.id);
        }
        let own = membership.member_of_node(self.node, self.uid);
        let is_own = earlier.node_uid == self.uid;
        let is_same = is_own && same_urls(&earlier.peer_urls, self.peer_urls) && self.has_clients(&earlier);
        if is_same && member::is_answered(&before) && own.is_some_and(|own| self.votes(&before, own)) {
            return Asked::Already(earlier.id);
        }
        // The member that came by a replacement is itself replaced only by its id, wherever it joins again.
        let came = own.is_some_and(|own| is_own && own.id.0 != earlier.replaces);
        let client_urls = match self.client_urls {
            [] if is_own && (came || is_same) => earlier.client_urls.clone(),
            given => given.to_vec(),
        };
        let replacement = match came {
            true => JoinRequest {
                forced: false,
                ..earlier
            },
            false => JoinRequest::default(),
        };
        // The leader's part stays: it says what became of an add that is under way.
        Asked::New(Box::new(Join {
            request: Some(JoinRequest {
                id: id.to_owned(),
                node_uid: self.uid.to_owned(),
                peer_urls: self.peer_urls.to_vec(),
                client_urls,
                requested_at: Some(time::to_proto(now)),
                no_dial: self.no_dial,
                ..replacement
            }),
            ..before
        }))
    }

    /// Whether the request on record is this one, and has not ended.
    fn is_under_way(&self, before: &Join, earlier: &JoinRequest) -> bool {
        let same = earlier.node_uid == self.uid && earlier.peer_urls == self.peer_urls;
        // A replacement under way is this join, with the lost member removed first.
        let alike = earlier.replaces != 0 || (earlier.no_dial == self.no_dial && self.has_clients(earlier));
        before.request.is_some() && same && alike && !member::is_ended(before)
    }

    fn has_clients(&self, request: &JoinRequest) -> bool {
        self.client_urls.is_empty() || same_urls(&request.client_urls, self.client_urls)
    }

    /// Whether the join on record has led to this member, which votes and stays.
    fn votes(&self, before: &Join, own: &Member) -> bool {
        let is_noted = before.progress() == Progress::Voter && member::member_of(before) == Some(own.id);
        is_noted && own.is_voter() && own.cause().is_none() && same_urls(own.peer_urls(), self.peer_urls)
    }
}

/// How far a request is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progressed {
    /// Another request has taken its place, or the join is gone.
    Overtaken,
    /// The member is in etcd's list.
    Listed(MemberId),
    /// It has ended without a member, for this reason.
    Ended(Why),
    /// The leader has yet to carry it out, for this reason.
    Waits(Why),
}

/// A reason as it is stored: a word and a sentence, both empty if there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Why {
    /// One of a fixed set of words.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// How far the request with this id is.
pub fn progressed(join: &Join, id: &str) -> Progressed {
    let Some(request) = join.request.as_ref().filter(|request| request.id == id) else {
        return Progressed::Overtaken;
    };
    if !member::is_answered(join) {
        return Progressed::Waits(Why::default());
    }
    let why = Why {
        reason: join.reason.clone(),
        message: join.message.clone(),
    };
    match (join.progress(), member::member_of(join)) {
        // A leader of an earlier release does not know of replacements.
        (Progress::Learner | Progress::Voter, Some(member)) if member.0 != request.replaces => {
            Progressed::Listed(member)
        }
        (Progress::Refused | Progress::Removed, _) => Progressed::Ended(why),
        (
            Progress::Unspecified
            | Progress::Waiting
            | Progress::Adding
            | Progress::Learner
            | Progress::Voter,
            _,
        ) => Progressed::Waits(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(urls: &[&str]) -> Vec<String> {
        urls.iter().map(ToString::to_string).collect()
    }

    fn join(replaces: u64, progress: Progress) -> Join {
        Join {
            request: Some(JoinRequest {
                id: "1".to_owned(),
                node_uid: "u".to_owned(),
                peer_urls: urls(&["https://10.0.0.1:2380"]),
                client_urls: urls(&["https://10.0.0.1:2379"]),
                replaces,
                ..JoinRequest::default()
            }),
            answers: "1".to_owned(),
            progress: progress.into(),
            member_id: 7,
            ..Join::default()
        }
    }

    fn ask(before: Join, peer: &str, client: &[&str]) -> Asked {
        let (peer_urls, client_urls) = (urls(&[peer]), urls(client));
        let wanted = Wanted {
            node: "n1",
            uid: "u",
            peer_urls: &peer_urls,
            client_urls: &client_urls,
            no_dial: false,
        };
        wanted.ask(before, &Membership::default(), "2", Timestamp::UNIX_EPOCH)
    }

    fn client_urls(asked: &Asked) -> Vec<String> {
        match asked {
            Asked::New(join) => join.request.clone().unwrap().client_urls,
            Asked::Already(id) => panic!("{id} is on record"),
        }
    }

    const PEER: &str = "https://10.0.0.1:2380";

    const CLIENT: &str = "https://10.0.0.1:2379";

    #[test]
    fn the_same_request_goes_on_as_long_as_it_has_not_ended() {
        for clients in [&[][..], &[CLIENT]] {
            let asked = ask(join(0, Progress::Waiting), PEER, clients);
            assert_eq!(asked, Asked::Already("1".to_owned()), "{clients:?}");
        }
        for other in [
            ask(Join::default(), PEER, &[]),
            ask(join(0, Progress::Removed), PEER, &[]),
            ask(join(0, Progress::Waiting), "https://10.0.0.2:2380", &[]),
            ask(join(0, Progress::Waiting), PEER, &["https://10.0.0.2:2379"]),
        ] {
            let Asked::New(join) = other else {
                panic!("{other:?}");
            };
            let request = join.request.unwrap();
            assert_eq!((&*request.id, &*request.node_uid), ("2", "u"));
        }
    }

    #[test]
    fn client_urls_stay_where_none_are_given_and_the_peer_urls_are_the_same() {
        let ended = || join(0, Progress::Removed);
        assert_eq!(client_urls(&ask(ended(), PEER, &[])), [CLIENT]);
        let moved = ask(ended(), "https://10.0.0.2:2380", &[]);
        assert_eq!(client_urls(&moved), [""; 0]);
        let given = ask(ended(), PEER, &["https://10.0.0.2:2379"]);
        assert_eq!(client_urls(&given), ["https://10.0.0.2:2379"]);
    }

    #[test]
    fn a_replacement_goes_on_whatever_client_urls_the_node_has() {
        let asked = ask(join(7, Progress::Waiting), PEER, &["https://10.0.0.2:2379"]);
        assert_eq!(asked, Asked::Already("1".to_owned()));
    }

    #[test]
    fn a_member_in_the_list_is_one_that_was_asked_for() {
        let listed = Progressed::Listed(MemberId(7));
        for progress in [Progress::Learner, Progress::Voter] {
            assert_eq!(progressed(&join(0, progress), "1"), listed);
            // The lost member itself.
            let waits = Progressed::Waits(Why::default());
            assert_eq!(progressed(&join(7, progress), "1"), waits);
        }
        assert_eq!(progressed(&join(0, Progress::Voter), "2"), Progressed::Overtaken);
        assert_eq!(progressed(&Join::default(), "1"), Progressed::Overtaken);
        let unanswered = Join {
            answers: "0".to_owned(),
            reason: "Stalled".to_owned(),
            ..join(0, Progress::Removed)
        };
        assert_eq!(
            progressed(&unanswered, "1"),
            Progressed::Waits(Why::default()),
            "what is said is about an earlier request"
        );
        for progress in [Progress::Refused, Progress::Removed] {
            let ended = Join {
                reason: "Stalled".to_owned(),
                message: "too long".to_owned(),
                ..join(0, progress)
            };
            let why = Why {
                reason: "Stalled".to_owned(),
                message: "too long".to_owned(),
            };
            assert_eq!(progressed(&ended, "1"), Progressed::Ended(why));
        }
    }
}
