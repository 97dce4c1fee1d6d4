//! One step of one volume, carried out.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use prost::Message;

use super::files::{self, Files};
use super::mounts::At;
use super::paths::Paths;
use super::places::Place;
use super::plan::Step;
use super::plugins::Session;
use crate::agent::confirm::{Confirm, NotConfirmed};
use crate::csi::{
    CallError, Class, Code, Endpoint, NodeCapabilities, SecretValue, Secrets, VolumeId, VolumeOnNode,
};
use crate::proto::NodePublication;
use crate::retry::Policy;
use crate::span;
use crate::volumes::operation::{QUICK, SLOW};
use crate::volumes::request::{capability, reads_only};

/// For what may be back in a moment, a plugin or a server: after an outage, nothing rests long any more.
const AWAY: Policy = Policy::never_shorter(Duration::from_millis(200), Duration::from_secs(30));

/// Between two looks whether something is mounted again while a confirmation is under way.
const LOOK: Duration = Duration::from_secs(1);

/// A step to carry out.
pub(super) struct Operation<C> {
    pub step: Step,
    /// The volume, as its plugin gets it. Without secrets.
    pub volume: Result<VolumeOnNode, Failure>,
    /// The secrets of this call alone.
    pub secrets: Result<Secrets, Failure>,
    pub publication: Named,
    /// The name of the plugin.
    pub driver: String,
    pub paths: Paths,
    pub files: Files,
    pub plugin: Option<Session>,
    /// The place of its call.
    pub place: Option<Place>,
    pub control: C,
}

/// A publication, by its names alone, and what is done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub volume: String,
    pub uid: String,
    pub instruction: i32,
    /// Differs where the plugin may do something else with the volume: the calls are then repeated.
    pub usage: u64,
}

impl Named {
    pub fn of(publication: &NodePublication) -> Self {
        let mut hasher = DefaultHasher::new();
        let mode = publication.access_mode.as_ref().map(Message::encode_to_vec);
        let usage = (
            &publication.volume_id,
            &publication.volume_context,
            &publication.publish_context,
            mode,
            publication.read_only,
        );
        usage.hash(&mut hasher);
        Self {
            volume: publication.volume.clone(),
            uid: publication.publication_uid.clone(),
            instruction: publication.instruction,
            usage: hasher.finish(),
        }
    }
}

/// A step that was carried out, or failed.
pub(super) struct Ended {
    pub publication: Named,
    pub step: Step,
    /// The session that the plugin was called in.
    pub session: Option<u64>,
    pub result: Result<After, Failure>,
}

/// What is seen after a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct After {
    /// Something is mounted at the target.
    pub is_mounted: bool,
    /// Nothing is mounted there, and it is a directory of this node.
    pub is_bare: bool,
    /// The volume needs no unstaging.
    pub is_unstaged: bool,
}

/// Why a step failed, and how long it rests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub reason: &'static str,
    pub message: String,
    pub retry: Policy,
}

impl Failure {
    fn new(reason: &'static str, message: impl Into<String>, retry: Policy) -> Self {
        Self {
            reason,
            message: message.into(),
            retry,
        }
    }

    fn io(error: &std::io::Error) -> Self {
        Self::new("NodeFailed", error.to_string(), QUICK)
    }

    /// What the table of codes says. A final failure is repeated as well, slowly: what an operator mends on the node is not seen here.
    fn of_call(error: &CallError) -> Self {
        let retry = match error.class() {
            _ if error.code == Code::Unavailable => AWAY,
            Class::Done | Class::Retry | Class::InProgress => QUICK,
            Class::RetrySlowly | Class::WaitForOther | Class::Final => SLOW,
        };
        Self::new(error.code_name(), error.to_string(), retry)
    }

    fn of_confirmation(error: &NotConfirmed) -> Self {
        let retry = match error {
            NotConfirmed::Refused(_) => SLOW,
            NotConfirmed::Failed(_) => AWAY,
        };
        Self::new("NotConfirmed", error.to_string(), retry)
    }

    /// The word for traces.
    fn outcome<T>(done: &Result<T, Self>) -> &'static str {
        done.as_ref().map_or_else(|failure| failure.reason, |_| "OK")
    }
}

/// The volume of a publication, as a plugin with these capabilities gets it.
pub(super) fn volume_on_node(
    publication: &NodePublication,
    paths: &Paths,
    offers: NodeCapabilities,
) -> Result<VolumeOnNode, Failure> {
    let volume = VolumeId::new(publication.volume_id.clone());
    let volume = volume.map_err(|empty| Failure::new("RecordIncomplete", empty.to_string(), SLOW))?;
    let mode = publication.access_mode.clone().unwrap_or_default();
    Ok(VolumeOnNode {
        volume,
        read_only: reads_only(&mode, publication.read_only),
        // Both parts of the plugin have to understand an exact mode.
        capability: capability(mode, publication.exact_access_mode && offers.exact_access_mode),
        volume_context: publication.volume_context.clone(),
        publish_context: publication.publish_context.clone(),
        staging: paths.staging.clone(),
        target: paths.target.clone(),
    })
}

/// The secrets of a publication for the call of a step: those of every call, and its own. No value is in the error.
pub(super) fn secrets(publication: &NodePublication, step: Step) -> Result<Secrets, Failure> {
    let own = match step {
        Step::Stage => &publication.stage_secrets,
        Step::Publish => &publication.publish_secrets,
        Step::Expand { .. } => &publication.expand_secrets,
        // A confirmation may wait for long, and needs none.
        _ => return Ok(Secrets::none()),
    };
    let values = publication.secrets.iter().chain(own).map(|(key, value)| {
        let text = std::str::from_utf8(value);
        let text = text.map_err(|_| {
            let message = format!("the secret {key} is not text, as plugins need it");
            Failure::new("SecretMalformed", message, SLOW)
        })?;
        Ok((key.clone(), SecretValue::new(text.to_owned())))
    });
    values.collect()
}

impl<C: Confirm> Operation<C> {
    pub async fn run(self) -> Ended {
        let Named { volume, .. } = &self.publication;
        let span = span::step("volumes", self.step, format_args!("volume/{volume}"));
        let result = span::within(span, self.carry_out(), Failure::outcome).await;
        Ended {
            session: self.plugin.as_ref().map(|plugin| plugin.ready.session),
            publication: self.publication,
            step: self.step,
            result,
        }
    }

    async fn carry_out(&self) -> Result<After, Failure> {
        let Named { volume, uid, .. } = &self.publication;
        match self.step {
            Step::Stage | Step::Publish | Step::Expand { .. } | Step::Unpublish | Step::Unstage => {
                self.call().await
            }
            Step::Link => done(self.files.make_link(&self.paths)),
            Step::Unlink => done(self.files.remove_link(&self.paths)),
            Step::ConfirmExpanded { bytes } => {
                confirmed(self.control.confirm_expanded(volume, uid, bytes).await)
            }
            Step::ConfirmUnpublished => {
                tokio::select! {
                    // First: nothing is confirmed of what is mounted.
                    biased;
                    why = self.mounted_again() => return Err(why),
                    result = self.control.confirm_unpublished(volume, uid) => confirmed(result)?,
                };
                self.files.tidy(&self.paths);
                Ok(After::default())
            }
        }
    }

    /// Calls the plugin, and looks what is mounted after it: an answer alone ends no use of a volume (INV-6).
    async fn call(&self) -> Result<After, Failure> {
        let (Some(plugin), Some(_)) = (&self.plugin, &self.place) else {
            return Err(Failure::new("PluginMissing", "the plugin is not there", QUICK));
        };
        let (volume, session) = (self.volume.as_ref().map_err(Clone::clone)?, &plugin.session);
        let answer = match self.step {
            Step::Stage => session.stage(volume, self.prepare()?).await,
            Step::Publish => session.publish(volume, self.prepare()?).await,
            Step::Expand { bytes } => session.expand(volume, bytes, self.prepare()?).await,
            Step::Unpublish => session.unpublish(&volume.volume, &volume.target).await,
            Step::Unstage => session.unstage(&volume.volume, &volume.staging).await,
            Step::Link | Step::ConfirmExpanded { .. } | Step::Unlink | Step::ConfirmUnpublished => Ok(()),
        };
        if let Err(error) = &answer {
            if error.code == Code::DeadlineExceeded {
                // A plugin that does not answer any more is connected to again.
                session.probe().await;
            }
            return Err(Failure::of_call(error));
        }
        let mounts = files::look().map_err(|error| Failure::io(&error))?;
        let (target, staging) = (mounts.at(&self.paths.target), mounts.within(&self.paths.staging));
        let still = match self.step {
            Step::Unpublish => target != At::Nothing,
            Step::Unstage => staging != At::Nothing,
            _ => false,
        };
        if still {
            let message = "the plugin answered OK, and the volume is still mounted";
            return Err(Failure::new("StillMounted", message, QUICK));
        }
        let is_mounted = target != At::Nothing;
        Ok(After {
            is_mounted,
            is_bare: self.step == Step::Publish && !is_mounted && self.files.is_directory(&self.paths.target),
            is_unstaged: !plugin.ready.offers.stage && !self.files.has_asked_to_stage(&self.paths),
        })
    }

    /// Looks again and again whether anything of the volume is mounted, at once for the first time: the confirmation may wait long for
    /// a server, and a call that timed out may still be at work.
    async fn mounted_again(&self) -> Failure {
        loop {
            match files::look() {
                Ok(mounts) if mounts.of_volume(&self.paths.home).next().is_none() => {}
                Ok(_) => {
                    let message = "something of the volume is mounted again";
                    return Failure::new("StillMounted", message, QUICK);
                }
                Err(error) => return Failure::io(&error),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Records the call before it is made: from then on, what is mounted there is the plugin's. Returns its secrets.
    fn prepare(&self) -> Result<&Secrets, Failure> {
        let secrets = self.secrets.as_ref().map_err(Clone::clone)?;
        let endpoint = self.plugin.as_ref().map(|plugin| plugin.session.endpoint());
        if endpoint.is_some_and(Endpoint::is_plaintext) && *secrets != Secrets::none() {
            let message =
                "the volume has secrets, which a plugin on a node gets over a unix socket or TLS alone";
            return Err(Failure::new("PlaintextSecrets", message, SLOW));
        }
        let offers = self.plugin.as_ref().map(|plugin| plugin.ready.offers);
        let stages = offers.is_some_and(|offers| offers.stage);
        let volume = &self.publication.volume;
        let prepared = self.files.prepare(&self.paths, volume, &self.driver, stages);
        prepared.map_err(|error| Failure::io(&error))?;
        Ok(secrets)
    }
}

fn done(result: std::io::Result<()>) -> Result<After, Failure> {
    result
        .map(|()| After::default())
        .map_err(|error| Failure::io(&error))
}

fn confirmed(result: Result<(), NotConfirmed>) -> Result<After, Failure> {
    let result = result.map(|()| After::default());
    result.map_err(|error| Failure::of_confirmation(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_gets_the_secrets_of_every_call_and_its_own() {
        let values = |key: &str| [(key.to_owned(), key.as_bytes().to_vec())].into();
        let publication = NodePublication {
            secrets: values("all"),
            stage_secrets: values("stage"),
            publish_secrets: values("publish"),
            expand_secrets: values("expand"),
            ..NodePublication::default()
        };
        for (step, keys) in [
            (Step::Stage, &["all", "stage"][..]),
            (Step::Publish, &["all", "publish"]),
            (Step::Expand { bytes: 1 }, &["all", "expand"]),
            (Step::Unstage, &[]),
        ] {
            let expected: Secrets = keys
                .iter()
                .map(|key| ((*key).to_owned(), SecretValue::new((*key).to_owned())))
                .collect();
            assert!(secrets(&publication, step) == Ok(expected), "{step}");
        }
    }
}
