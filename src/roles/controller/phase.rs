//! Where membership stands in a term, and what can happen next.

use std::time::Instant;

use futures::future::BoxFuture;

use super::execute::Outcome;
use super::survey::Survey;
use super::upkeep;
use crate::etcd::Error;
use crate::roles::membership::Membership;
use crate::roles::plan::Step;

/// Where membership stands.
pub enum Phase {
    /// Nothing is under way until the next survey is due.
    Idle,
    /// The members are asked. The plan is made again with each answer.
    Surveying(Box<Survey>),
    /// A step is taken.
    Acting {
        step: Step,
        /// When it was begun, by the clock of windows: nothing of it was sent before.
        begun: Instant,
        membership: Box<Membership>,
        executing: BoxFuture<'static, Outcome>,
        /// The survey that follows an intent, begun together with it.
        next_survey: Option<Box<Survey>>,
    },
}

/// What can happen, apart from news of the store.
pub enum Event {
    /// The survey has learned something, or its list cannot be read.
    Surveyed(Result<(), Error>),
    /// The step was executed.
    Executed(Outcome),
    /// Writes of the upkeep have ended.
    Written(Vec<upkeep::Ended>),
    /// A test of peer URLs has ended.
    Probed,
    /// Another summary for people is due.
    SummaryDue,
    /// Something is due: a survey, an expiry, a report, a superseded survey to drop.
    Due,
}

impl Phase {
    /// What happens next in this phase. Safe to cancel.
    pub async fn next(&mut self) -> Event {
        match self {
            Self::Idle => std::future::pending().await,
            Self::Surveying(survey) => Event::Surveyed(survey.next().await),
            Self::Acting {
                executing,
                next_survey,
                ..
            } => loop {
                let surveyed = async {
                    match next_survey {
                        Some(survey) => survey.next().await,
                        None => std::future::pending().await,
                    }
                };
                let surveyed = tokio::select! {
                    outcome = &mut *executing => return Event::Executed(outcome),
                    surveyed = surveyed => surveyed,
                };
                if surveyed.is_err() {
                    // Another survey begins once the step is taken.
                    *next_survey = None;
                }
            },
        }
    }
}
