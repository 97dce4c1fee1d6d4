//! What there was to judge. A check that sees nothing finds nothing, so that a history has to show that it has what checks are about.

use std::fmt;

use super::inv_1::fence;
use super::inv_3::CHANGING;
use super::inv_5::pairs;
use super::past::Past;
use super::{Rule, Violation};
use crate::history::{At, MemberCall, MemberChange, Outcome, What};

/// How long after its begin a look at the members may have its answer, in milliseconds.
const LOOKING: u64 = 10_000;

/// How many calls of a history were judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// Fenced transactions.
    pub fenced: usize,
    /// Changes of etcd's members that were asked for.
    pub members: Calls,
    /// Calls that change what is at the backend of a plugin.
    pub csi: Calls,
    /// Writes to the apiserver.
    pub kubernetes: usize,
    /// Answers about readiness.
    pub polls: usize,
}

/// Calls of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// All of them.
    pub all: usize,
    /// Those whose caller is not known.
    pub unknown: usize,
}

impl Calls {
    fn count(&mut self, is_known: bool) {
        self.all += 1;
        self.unknown += usize::from(!is_known);
    }
}

impl Judged {
    pub(super) fn of(past: &Past<'_>) -> Self {
        let mut judged = Self::default();
        for (_, event) in past.events() {
            match &event.what {
                What::Store(call) => judged.fenced += usize::from(fence(past, call).is_some()),
                What::Member(call) => judged.members.count(call.by.is_some()),
                What::Csi(call) if CHANGING.contains(&call.rpc.as_str()) => {
                    judged.csi.count(call.by.is_some());
                }
                What::Kubernetes(_) => judged.kubernetes += 1,
                What::Poll(_) => judged.polls += 1,
                _ => {}
            }
        }
        judged
    }
}

impl fmt::Display for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.all.fmt(f)?;
        match self.unknown {
            0 => Ok(()),
            unknown => write!(f, " ({unknown} of unknown callers)"),
        }
    }
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            fenced,
            members,
            csi,
            kubernetes,
            polls,
        } = self;
        write!(
            f,
            "fenced writes: {fenced}; changes of members: {members}; CSI calls: {csi}; writes to Kubernetes: {kubernetes}; polls: {polls}"
        )
    }
}

/// Changes of etcd's members for which no call was recorded. The checks of such calls then passed without having seen one.
pub fn unseen_changes(past: &Past<'_>) -> Vec<Violation> {
    let calls: Vec<(At, &MemberCall)> = past
        .events()
        .filter_map(|(_, event)| match &event.what {
            What::Member(call) => Some((event.at, call)),
            _ => None,
        })
        .collect();
    let mut found = Vec::new();
    for [(before, _, from), (after, at, to)] in pairs(past) {
        let by = at.plus_millis(LOOKING);
        let asked = |is_it: &dyn Fn(&MemberCall) -> bool| {
            let mut earlier = calls.iter().take_while(|(at, _)| *at <= by);
            earlier.any(|(_, call)| is_it(call))
        };
        let mut unseen = |id: u64, became: &str| {
            let sentence =
                format!("nothing was judged: no call was recorded by which member {id:x} {became}");
            found.push(Violation::new(Rule::Judged, sentence, [before, after]));
        };
        for member in &to.members {
            let id = member.id;
            match from.members.iter().find(|known| known.id == id) {
                None if !asked(&|call| may_have_added(call, id)) => unseen(id, "was added"),
                Some(known)
                    if known.learner
                        && !member.learner
                        && !asked(&|call| call.change == MemberChange::Promote(id)) =>
                {
                    unseen(id, "became a voter");
                }
                _ => {}
            }
        }
        let gone = from
            .members
            .iter()
            .filter(|known| !to.members.iter().any(|member| member.id == known.id));
        for member in gone {
            if !asked(&|call| call.change == MemberChange::Remove(member.id)) {
                unseen(member.id, "was removed");
            }
        }
    }
    found
}

/// Whether the member of this id may be due to the call. Etcd may carry out what it answers with an error, such as that of a limit.
fn may_have_added(call: &MemberCall, id: u64) -> bool {
    let added = match call.outcome {
        Outcome::Done(added) => added == id,
        Outcome::Failed { .. } | Outcome::Unknown => true,
    };
    added && matches!(call.change, MemberChange::Add { .. })
}
