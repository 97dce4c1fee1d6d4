//! A look at etcd's members: the list, and how each of them fares, as it comes in.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;

use crate::etcd::members::{ListedMember, MemberList};
use crate::etcd::{Error, Etcd, MemberId};
use crate::roles::plan::Answer;

/// One look. The members of the look before are asked at once, while the list is read: what they answer counts if the
/// list has them as they were.
pub struct Look {
    etcd: Etcd,
    limit: Duration,
    /// Whose removal was decided on: nothing is asked of them any more (REQ-M-7).
    not_asked: Vec<MemberId>,
    list: Option<Vec<ListedMember>>,
    asked: Vec<ListedMember>,
    answers: Vec<(ListedMember, Answer)>,
    under_way: FuturesUnordered<BoxFuture<'static, Came>>,
}

/// For the one member that is asked for the list before all of them are.
const HEAD_START: Duration = Duration::from_millis(50);

/// The list, of one of the voters of the look before, over the connection that is kept to it; of whoever answers first
/// where that one does not, or takes its time.
async fn list(etcd: &Etcd, first: Option<ListedMember>, limit: Duration) -> Result<MemberList, Error> {
    let Some(first) = first else {
        return etcd.list_members().await;
    };
    match tokio::time::timeout(HEAD_START, etcd.list_through(&first, limit)).await {
        Ok(Ok(list)) => Ok(list),
        _ => etcd.list_members().await,
    }
}

enum Came {
    List(Result<MemberList, Error>),
    Answer(Box<ListedMember>, Answer),
}

impl Look {
    /// Begins to ask.
    pub fn begin(etcd: &Etcd, limit: Duration, before: &[ListedMember], not_asked: Vec<MemberId>) -> Self {
        let mut look = Self {
            etcd: etcd.clone(),
            limit,
            not_asked,
            list: None,
            asked: Vec::new(),
            answers: Vec::new(),
            under_way: FuturesUnordered::new(),
        };
        let etcd = etcd.clone();
        let first = before
            .iter()
            .find(|member| !member.learner && !look.not_asked.contains(&member.id));
        let first = first.cloned();
        look.under_way.push(Box::pin(
            async move { Came::List(list(&etcd, first, limit).await) },
        ));
        for member in before {
            look.ask(member.clone());
        }
        look
    }

    fn ask(&mut self, member: ListedMember) {
        self.asked.push(member.clone());
        if self.not_asked.contains(&member.id) || member.client_urls.is_empty() {
            self.answers.push((member, Answer::default()));
            return;
        }
        let (etcd, limit) = (self.etcd.clone(), self.limit);
        self.under_way.push(Box::pin(async move {
            let survey = etcd.survey(std::slice::from_ref(&member), limit).await;
            let answer = survey.into_iter().next().map(|survey| Answer {
                healthy: survey.is_healthy(),
                status: survey.status.ok(),
            });
            Came::Answer(Box::new(member), answer.unwrap_or_default())
        }));
    }

    /// Waits for the next piece. `None` once nothing is left to wait for. Safe to cancel.
    ///
    /// # Errors
    /// The member list could not be read: nothing is known.
    pub async fn next(&mut self) -> Option<Result<(), Error>> {
        match self.under_way.next().await? {
            Came::List(Err(error)) => Some(Err(error)),
            Came::List(Ok(list)) => {
                for member in &list.members {
                    if !self.asked.contains(member) {
                        self.ask(member.clone());
                    }
                }
                self.list = Some(list.members);
                Some(Ok(()))
            }
            Came::Answer(member, answer) => {
                self.answers.push((*member, answer));
                Some(Ok(()))
            }
        }
    }

    /// Waits for whatever is left, and looks at none of it: who was asked for its status is not to be removed before it
    /// has answered (REQ-M-7).
    pub async fn let_answer(mut self) {
        while self.next().await.is_some() {}
    }

    /// The list, once it is there.
    pub fn list(&self) -> Option<&[ListedMember]> {
        self.list.as_deref()
    }

    /// The answers so far, of members that are as the list has them.
    pub fn answers(&self) -> BTreeMap<MemberId, Answer> {
        let list = self.list.as_deref().unwrap_or_default();
        still_true(&self.answers, list)
    }
}

/// A learner proves less than a voter, and at another address may be another one: an answer of a member that was asked
/// as something else than the list has is none.
fn still_true(answers: &[(ListedMember, Answer)], list: &[ListedMember]) -> BTreeMap<MemberId, Answer> {
    let current = answers.iter().filter(|(member, _)| list.contains(member));
    current
        .map(|(member, answer)| (member.id, answer.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_answered_as_a_learner_or_under_another_address_does_not_count_for_a_voter() {
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
            let answer = Answer {
                healthy: true,
                status: None,
            };
            (member, answer)
        });
        let moved = ListedMember {
            client_urls: vec!["http://10.0.0.2:2379".to_owned()],
            ..member(3, false)
        };
        let list = [member(1, false), member(2, false), moved];
        let counted: Vec<MemberId> = still_true(&answers, &list).into_keys().collect();
        assert_eq!(counted, [MemberId(1)]);
    }
}
