//! What is shown of the etcd of a node: on `/readyz`, in the log, and on record. Pure.

use std::collections::BTreeMap;
use std::path::Path;

use super::plan::{Found, Noted, Rest, Step, Task};
use crate::proto::MemberReport;

/// What is seen beside the step that comes next.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// The name of the node.
    pub node: &'a str,
    /// The data directory.
    pub data: &'a Path,
    /// What is noted.
    pub noted: Option<Noted>,
    /// Etcd runs.
    pub runs: bool,
    /// It says that it is healthy.
    pub is_healthy: bool,
    /// What has failed, and why.
    pub faults: &'a BTreeMap<Task, String>,
}

impl Scene<'_> {
    /// Why the etcd of the node does not serve; `None` if it does, or the node should have none.
    pub fn hindrance(&self, step: &Step) -> Option<String> {
        if self.runs && !matches!(step, Step::Stop(_)) {
            return match step {
                Step::Rest(Rest::RunsUnnoted) => {
                    Some("it runs, and nothing is noted of its member: the agent leaves it alone".to_owned())
                }
                Step::Rest(Rest::Lost { found, .. }) => Some(self.lost(found)),
                _ if self.is_healthy => None,
                _ => Some("it runs, and does not say yet that it is healthy".to_owned()),
            };
        }
        Some(match step {
            Step::Rest(rest) => return self.rests(rest),
            Step::Join => "it asks to join".to_owned(),
            Step::Certify(_) => "it requests a certificate".to_owned(),
            Step::Start => "it starts".to_owned(),
            Step::Restart(_) => "it starts again, to trust the new authority".to_owned(),
            Step::WriteList | Step::Note(_) => "it is prepared".to_owned(),
            Step::Stop(member) | Step::SetAside(member) | Step::Forget(member) => {
                format!("member {member} is out of the cluster, and ends")
            }
        })
    }

    fn rests(&self, rest: &Rest) -> Option<String> {
        let data = self.data.display();
        Some(match rest {
            Rest::Runs | Rest::NotAManager => return None,
            Rest::NoSession if self.noted.is_none() => return None,
            Rest::NoSession => "it does not run, and waits for a session".to_owned(),
            Rest::NotCertified => "it waits for a certificate of the node as a manager".to_owned(),
            Rest::Leaving => "its member is leaving the cluster".to_owned(),
            Rest::NoList => "the leader has not made the list of revoked certificates yet".to_owned(),
            Rest::ProcessUnknown(why) => format!("whether it runs is unknown: {why}"),
            Rest::RunsUnnoted => "it runs, and nothing is noted of its member".to_owned(),
            Rest::InTheWay(found) => {
                format!("{data} {found}, and its member has never started: move it away")
            }
            Rest::Lost { found, .. } => self.lost(found),
            Rest::After(task) => match (self.faults.get(task), task) {
                (Some(why), _) => why.clone(),
                (None, Task::Join) => "it asks to join".to_owned(),
                (None, Task::Certify) => "it requests a certificate".to_owned(),
                (None, Task::Start | Task::Stop | Task::Files) => "the last attempt has failed".to_owned(),
            },
        })
    }

    fn lost(&self, found: &Found) -> String {
        format!(
            "DataLost: {} {found}, and the member has started before; once its data is lost for good: quorate replace {}",
            self.data.display(),
            self.node
        )
    }

    /// What to report of the data of the member; `None` where nothing new is known.
    pub fn report(&self, step: &Step) -> Option<MemberReport> {
        match (step, self.noted) {
            (Step::Rest(Rest::Lost { own, found }), _) => Some(MemberReport {
                member_id: own.id.0,
                data_lost: true,
                message: line(&format!("{} {found}", self.data.display())),
            }),
            // A member that is out of the cluster misses nothing.
            (Step::Rest(Rest::Runs) | Step::Forget(_), Some(noted)) => Some(MemberReport {
                member_id: noted.own.id.0,
                data_lost: false,
                message: String::new(),
            }),
            _ => None,
        }
    }
}

/// The longest text that a replica takes, in characters of up to four bytes.
const LONGEST: usize = 250;

/// One line of at most so many characters.
fn line(text: &str) -> String {
    let printable = text
        .chars()
        .map(|char| if char.is_control() { ' ' } else { char });
    printable.take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::manager::plan::{OwnMember, Stage};
    use crate::etcd::{ClusterId, MemberId};

    const OWN: OwnMember = OwnMember {
        cluster: ClusterId(1),
        id: MemberId(7),
    };

    fn scene(faults: &BTreeMap<Task, String>, runs: bool) -> Scene<'_> {
        Scene {
            node: "n2",
            data: Path::new("/state/etcd"),
            noted: Some(Noted {
                own: OWN,
                stage: Stage::Started,
            }),
            runs,
            is_healthy: true,
            faults,
        }
    }

    #[test]
    fn an_etcd_that_serves_and_a_node_that_needs_none_are_not_hindered() {
        let faults = BTreeMap::new();
        assert_eq!(scene(&faults, true).hindrance(&Step::Rest(Rest::Runs)), None);
        assert_eq!(
            scene(&faults, false).hindrance(&Step::Rest(Rest::NotAManager)),
            None
        );
        let ill = Scene {
            is_healthy: false,
            ..scene(&faults, true)
        };
        assert!(ill.hindrance(&Step::Rest(Rest::Runs)).is_some());
        // Not a manager, as far as is known.
        let fresh = Scene {
            noted: None,
            ..scene(&faults, false)
        };
        assert_eq!(fresh.hindrance(&Step::Rest(Rest::NoSession)), None);
    }

    #[test]
    fn lost_data_is_reported_with_the_way_back_and_taken_back_once_etcd_runs() {
        let faults = BTreeMap::new();
        let lost = Step::Rest(Rest::Lost {
            own: OWN,
            found: Found::Nothing,
        });
        let scene = scene(&faults, false);
        let said = scene.hindrance(&lost).unwrap();
        assert!(
            said.contains("quorate replace n2") && said.contains("/state/etcd"),
            "{said}"
        );
        let report = scene.report(&lost).unwrap();
        assert_eq!((report.member_id, report.data_lost), (7, true));
        assert_eq!(report.message, "/state/etcd holds no data of etcd");
        let unreadable = Step::Rest(Rest::Lost {
            own: OWN,
            found: Found::Unreadable(format!("two\nlines{}", "€".repeat(2000))),
        });
        let message = scene.report(&unreadable).unwrap().message;
        assert!(
            message.len() <= 1024 && message.contains("two lines"),
            "{message}"
        );
        let report = scene.report(&Step::Rest(Rest::Runs)).unwrap();
        assert_eq!((report.member_id, report.data_lost), (7, false));
        assert_eq!(scene.report(&Step::Forget(OWN.id)), Some(report));
        assert_eq!(scene.report(&Step::Start), None);
    }

    #[test]
    fn what_has_failed_is_said_while_it_is_waited_for() {
        let faults = BTreeMap::from([(Task::Join, "PeerUrlTaken".to_owned())]);
        let scene = scene(&faults, false);
        let said = |task| scene.hindrance(&Step::Rest(Rest::After(task))).unwrap();
        assert_eq!(said(Task::Join), "PeerUrlTaken");
        assert_eq!(said(Task::Certify), "it requests a certificate");
    }
}
