//! What the API server is asked about kinds, and its answers. Each question is a job of its own: one that hangs delays
//! only what needs its answer (INV-8).
use std::time::Instant;

use tokio::time::timeout;

use super::super::bundle::LABEL;
use super::super::jobs::{Ended, Subject};
use super::known::Known;
use super::{Cluster, GroupKind, KindState, Read};
use crate::kube::{Cause, Error as ApiError, KubeClient, Meta, ObjectList, ObjectRef, Resource};

/// A question. The same one is never asked twice at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Question {
    /// Which kinds this version of a group serves.
    Served(String, String),
    /// Which versions a group has.
    Versions(String),
    /// The objects of a kind that have the bundle label.
    List(GroupKind),
    /// One object.
    Object(ObjectRef),
}

impl Subject for Question {
    /// Group and kind. A group that hangs is asked for one thing at a time.
    type Kind = GroupKind;

    fn kind(&self) -> GroupKind {
        match self {
            Self::Served(group, version) => (group.clone(), version.clone()),
            Self::Versions(group) => (group.clone(), String::new()),
            Self::List(kind) => kind.clone(),
            Self::Object(object) => (object.group.clone(), object.kind.clone()),
        }
    }
}

/// The answer to a question.
pub(super) enum Answer {
    Served(Result<Vec<Resource>, ApiError>),
    Versions(Result<Vec<String>, ApiError>),
    List {
        resource: Resource,
        /// The namespace that was listed; `None` for all.
        namespace: Option<String>,
        /// The latest version of its objects that was known then.
        asked_at: Option<String>,
        listed: Result<ObjectList, ApiError>,
    },
    Object {
        resource: Resource,
        read: Result<Option<Meta>, ApiError>,
    },
}

impl Answer {
    /// Why there is no answer.
    pub(super) fn error(&self) -> Option<&ApiError> {
        match self {
            Self::Served(result) => result.as_ref().err(),
            Self::Versions(result) => result.as_ref().err(),
            Self::List { listed, .. } => listed.as_ref().err(),
            Self::Object { read, .. } => read.as_ref().err(),
        }
    }
}

pub(super) async fn served(kube: KubeClient, group: String, version: String) -> Answer {
    Answer::Served(kube.served(&group, &version).await)
}

pub(super) async fn versions(kube: KubeClient, group: String) -> Answer {
    Answer::Versions(kube.versions(&group).await)
}

pub(super) async fn list(
    kube: KubeClient,
    resource: Resource,
    namespace: Option<String>,
    asked_at: Option<String>,
) -> Answer {
    let listed = kube.list(&resource, namespace.as_deref(), LABEL).await;
    Answer::List {
        resource,
        namespace,
        asked_at,
        listed,
    }
}

pub(super) async fn object(kube: KubeClient, resource: Resource, object: ObjectRef) -> Answer {
    let read = kube.meta(&resource, &object).await;
    Answer::Object { resource, read }
}

/// Whether the kind may be gone, so that the next pass reads its group again. A refusal says nothing about what is served.
fn shows_no_such_kind(error: &ApiError) -> bool {
    matches!(error.cause, Cause::NotFound(_))
}

impl Cluster {
    /// Asks, unless the same question is asked already or has failed in this pass.
    pub(super) fn ask(&mut self, question: Question, answer: impl Future<Output = Answer> + Send + 'static) {
        if !self.questions.is_busy(&question) && !self.failed.contains(&question) {
            self.questions.add(question, answer);
        }
    }

    /// Takes in the answers that come in time.
    pub(super) async fn answers(&mut self) -> Result<(), ApiError> {
        while let Some(ended) = self.questions.next(self.in_flight).await {
            self.take(ended).await?;
        }
        Ok(())
    }

    /// Whether a request of this pass failed because the server as a whole is unusable. Asks the server no longer than any
    /// request lingers, and after it has accepted the credentials once not again in the same pass.
    pub(in crate::resources) async fn is_unusable(&mut self, error: &ApiError) -> bool {
        let is_rejected = matches!(error.cause, Cause::Unauthorized(_));
        if is_rejected && self.accepts_us {
            return false;
        }
        let asked = timeout(self.lingers_after, self.kube.is_unusable(&error.cause)).await;
        // A path that hangs proves nothing.
        let is_unusable = asked.unwrap_or(false);
        self.accepts_us |= is_rejected && !is_unusable;
        is_unusable
    }

    /// Takes in an answer.
    ///
    /// # Errors
    /// One that says that the server as a whole is unusable. All questions are dropped then.
    pub(super) async fn take(&mut self, ended: Ended<Question, Answer>) -> Result<(), ApiError> {
        let Ended { subject, result } = ended;
        if let Some(error) = result.error()
            && self.is_unusable(error).await
        {
            self.questions.clear();
            return Err(error.clone());
        }
        if result.error().is_some() {
            self.failed.insert(subject.clone());
        }
        match (subject, result) {
            (Question::Served(group, version), Answer::Served(Ok(served))) => {
                self.learn(&group, &version, served);
            }
            (Question::Served(group, version), Answer::Served(Err(error))) => {
                self.undiscovered.insert((group, version), error);
            }
            (Question::Versions(group), Answer::Versions(versions)) => {
                self.versions.insert(group, versions);
            }
            (Question::Object(object), Answer::Object { resource, read }) => {
                if read.as_ref().is_err_and(shows_no_such_kind) {
                    self.discovery.doubt(&object.group);
                }
                let read = Read {
                    at: Instant::now(),
                    resource,
                    result: read,
                };
                self.read.insert(object, read);
            }
            (
                Question::List(kind),
                Answer::List {
                    resource,
                    namespace,
                    asked_at,
                    listed,
                },
            ) => {
                let state = match listed {
                    Ok(list) => {
                        let before = match self.kinds.remove(&kind) {
                            Some(KindState::Listed(known)) => Some(*known),
                            _ => None,
                        };
                        let known = Known::of_list(resource, namespace, list, asked_at.as_deref(), before);
                        KindState::Listed(Box::new(known))
                    }
                    Err(error) => {
                        if shows_no_such_kind(&error) {
                            self.discovery.doubt(&kind.0);
                        }
                        KindState::Unknown(error)
                    }
                };
                self.kinds.insert(kind, state);
            }
            // A question has an answer of its own sort.
            _ => {}
        }
        Ok(())
    }
}
