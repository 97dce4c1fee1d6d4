//! Where membership stands: nothing is done, everyone is asked, or a step is taken.

use std::time::Instant;

use futures::future::BoxFuture;

use super::act::Outcome;
use super::look::Look;
use crate::etcd::Error;
use crate::roles::plan::{Picture, Step};

/// Where membership stands.
pub enum Phase {
    Idle,
    Looking {
        look: Look,
        /// Everyone has answered, or had the time for it.
        complete: bool,
    },
    Acting {
        step: Step,
        picture: Box<Picture>,
        acting: BoxFuture<'static, Outcome>,
        /// The look that follows an intent, begun with it.
        ahead: Option<Ahead>,
    },
}

/// A look that is under way beside a step.
pub struct Ahead {
    pub look: Look,
    pub complete: bool,
    pub begun: Instant,
}

/// What came of it.
pub enum Event {
    Seen(Option<Result<(), Error>>),
    Acted(Outcome),
}

impl Phase {
    /// Safe to cancel.
    pub async fn next(&mut self) -> Event {
        match self {
            Self::Looking {
                look,
                complete: false,
            } => Event::Seen(look.next().await),
            Self::Idle | Self::Looking { complete: true, .. } => std::future::pending().await,
            Self::Acting { acting, ahead, .. } => loop {
                let seen = async {
                    match ahead {
                        Some(Ahead {
                            look,
                            complete: false,
                            ..
                        }) => look.next().await,
                        _ => std::future::pending().await,
                    }
                };
                let seen = tokio::select! {
                    outcome = &mut *acting => return Event::Acted(outcome),
                    seen = seen => seen,
                };
                match (seen, &mut *ahead) {
                    (Some(Ok(())), _) => {}
                    (None, Some(ahead)) => ahead.complete = true,
                    // Looked at anew once the step is taken.
                    _ => *ahead = None,
                }
            },
        }
    }
}
