//! A survey of etcd's members: the list, and the health of each member as it comes in.

use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tracing::{Instrument as _, Span};

use crate::clock;
use crate::etcd::members::{Evidence, ListedMember, MemberList};
use crate::etcd::{Error, Etcd, MemberId};
use crate::span;

/// One survey. Members of the last list are asked at once, while the new list is read: their answers count if the new
/// list has them unchanged.
pub struct Survey {
    etcd: Etcd,
    limit: Duration,
    /// The pass that the survey is, in traces. It ends with the survey.
    span: Span,
    /// When the questions were sent, by the clock of windows: no answer is older.
    begun: Instant,
    /// Members whose removal is decided. A request for their status could make them panic, so they are asked for a read alone.
    leaving: Vec<MemberId>,
    list: Option<Vec<ListedMember>>,
    asked: Vec<ListedMember>,
    /// Each with the member as it was listed when it was asked.
    answers: Vec<(ListedMember, Evidence)>,
    under_way: FuturesUnordered<BoxFuture<'static, Reply>>,
    /// Since when every member has answered or has had its time to answer.
    complete: Option<Instant>,
}

enum Reply {
    List(Result<MemberList, Error>),
    Answer(Box<(ListedMember, Evidence)>),
}

/// How long a single voter may take to give the list before all endpoints are asked for it.
const HEAD_START: Duration = Duration::from_millis(50);

/// Reads the list through a voter of the last survey, over the open connection to it, or from whichever endpoint answers
/// if that takes too long.
async fn list(etcd: &Etcd, voter: Option<ListedMember>, limit: Duration) -> Result<MemberList, Error> {
    let Some(voter) = voter else {
        return etcd.list_members().await;
    };
    match tokio::time::timeout(HEAD_START, etcd.list_through(&voter, limit)).await {
        Ok(Ok(list)) => Ok(list),
        _ => etcd.list_members().await,
    }
}

impl Survey {
    /// Sends the questions: `limit` is for each answer, `last` is the list of the last survey.
    pub fn begin(etcd: &Etcd, limit: Duration, last: &[ListedMember], leaving: Vec<MemberId>) -> Self {
        let mut survey = Self {
            etcd: etcd.clone(),
            limit,
            span: span::pass("roles"),
            begun: clock::now(),
            leaving,
            list: None,
            asked: Vec::new(),
            answers: Vec::new(),
            under_way: FuturesUnordered::new(),
            complete: None,
        };
        let etcd = etcd.clone();
        let voter = last
            .iter()
            .find(|member| !member.learner && !survey.leaving.contains(&member.id));
        let voter = voter.cloned();
        let listing = async move { Reply::List(list(&etcd, voter, limit).await) };
        survey
            .under_way
            .push(Box::pin(listing.instrument(survey.span.clone())));
        for member in last {
            survey.ask(member.clone());
        }
        survey
    }

    fn ask(&mut self, member: ListedMember) {
        self.asked.push(member.clone());
        let (etcd, limit) = (self.etcd.clone(), self.limit);
        let leaves = self.leaving.contains(&member.id);
        let asking = async move {
            let evidence = match leaves {
                true => etcd.survey_leaving(&member, limit).await,
                false => etcd.survey_one(&member, limit).await,
            };
            Reply::Answer(Box::new((member, evidence)))
        };
        self.under_way
            .push(Box::pin(asking.instrument(self.span.clone())));
    }

    /// Resolves when the list or an answer has come in, or once all of them have; never after that. Safe to cancel.
    ///
    /// # Errors
    /// The list cannot be read.
    pub async fn next(&mut self) -> Result<(), Error> {
        if self.is_complete() {
            return std::future::pending().await;
        }
        match self.under_way.next().await {
            None => self.complete = Some(clock::now()),
            Some(Reply::List(list)) => {
                let members = list?.members;
                for member in &members {
                    if !self.asked.contains(member) {
                        self.ask(member.clone());
                    }
                }
                self.list = Some(members);
            }
            Some(Reply::Answer(answer)) => self.answers.push(*answer),
        }
        Ok(())
    }

    /// Waits for the answers that are still missing, and ignores them. A member is not removed before it has answered a
    /// request for its status.
    pub async fn drain(mut self) {
        while self.under_way.next().await.is_some() {}
    }

    /// The span of a step that the survey has led to.
    pub fn trace(&self, step: impl FnOnce() -> Span) -> Span {
        self.span.in_scope(step)
    }

    /// The list, once it has been read.
    pub fn list(&self) -> Option<&[ListedMember]> {
        self.list.as_deref()
    }

    /// Whether every member has answered or had its time to answer.
    pub fn is_complete(&self) -> bool {
        self.complete.is_some()
    }

    /// Whether the last answer came longer ago than this.
    pub fn is_older_than(&self, limit: Duration) -> bool {
        self.complete
            .is_some_and(|since| clock::now().saturating_duration_since(since) > limit)
    }

    /// How old the answers may be.
    pub fn age(&self) -> Duration {
        clock::now().saturating_duration_since(self.begun)
    }

    /// The answers so far, of members that the list has unchanged.
    pub fn answers(&self) -> Vec<Evidence> {
        still_true(&self.answers, self.list.as_deref().unwrap_or_default())
    }
}

/// An answer counts if the list has the member as it was when it was asked: a learner proves less than a voter, and
/// another address may lead to another member.
fn still_true(answers: &[(ListedMember, Evidence)], list: &[ListedMember]) -> Vec<Evidence> {
    let current = answers.iter().filter(|(member, _)| list.contains(member));
    current.map(|(_, evidence)| evidence.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roles::membership::tests::fixtures::answers;

    #[test]
    fn an_answer_given_as_a_learner_or_at_another_address_does_not_count_for_a_voter() {
        let member = |id, learner| ListedMember {
            id: MemberId(id),
            name: "m".to_owned(),
            peer_urls: Vec::new(),
            client_urls: vec!["http://10.0.0.1:2379".to_owned()],
            learner,
        };
        let asked = [
            member(1, false),
            member(2, true),
            member(3, false),
            member(4, false),
        ];
        let answers = asked.map(|member| {
            let evidence = answers(member.id, None, 1);
            (member, evidence)
        });
        let moved = ListedMember {
            client_urls: vec!["http://10.0.0.2:2379".to_owned()],
            ..member(3, false)
        };
        let list = [member(1, false), member(2, false), moved];
        let counted = still_true(&answers, &list);
        let counted: Vec<MemberId> = counted.iter().map(|evidence| evidence.member).collect();
        assert_eq!(counted, [MemberId(1)]);
    }
}
