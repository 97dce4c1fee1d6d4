//! A node, as far as its member is concerned, on which the steps of the plan have their effects.

use super::*;

pub const CLUSTER: u64 = 0xc0_ffee;

pub fn own(id: u64) -> OwnMember {
    OwnMember {
        cluster: ClusterId(CLUSTER),
        id: MemberId(id),
    }
}

/// More steps than any way has.
const MANY: usize = 30;

#[derive(Clone, Debug)]
pub struct World {
    pub noted: Option<Noted>,
    pub has_moved: bool,
    pub data: Data,
    pub process: Process,
    pub certified: Option<NodeRole>,
    pub shown: Shown,
    pub is_current: bool,
    pub answered: Option<Answered>,
    pub tls: Tls,
    pub restarted: u64,
    pub resting: BTreeSet<Task>,
    /// The member that a replica names, and whether etcd lists it as started.
    pub listed: (OwnMember, bool),
    /// Whether the leader has made a list of revoked certificates.
    pub has_list: bool,
    /// What was set aside.
    pub aside: Vec<Data>,
}

impl World {
    /// A node that was just promoted.
    pub fn promoted() -> Self {
        Self {
            noted: None,
            has_moved: false,
            data: Data::Missing,
            process: Process::Stopped,
            certified: Some(NodeRole::Manager),
            shown: Shown {
                role: Some(NodeRole::Manager),
                ..Shown::default()
            },
            is_current: true,
            answered: None,
            tls: Tls::Needed {
                certificate: Certificate::Missing,
                list: List {
                    is_there: false,
                    has_changed: false,
                },
            },
            restarted: 0,
            resting: BTreeSet::new(),
            listed: (own(1), false),
            has_list: true,
            aside: Vec::new(),
        }
    }

    /// One whose etcd runs as member 1.
    pub fn running() -> Self {
        let mut world = Self::promoted();
        world.run();
        assert_eq!(world.process, Process::Running);
        world
    }

    pub fn plan(&self) -> Step {
        Seen {
            noted: self.noted,
            has_moved: self.has_moved,
            data: self.data.clone(),
            process: self.process.clone(),
            certified: self.certified,
            shown: &self.shown,
            is_current: self.is_current,
            answered: self.answered,
            tls: self.tls,
            restarted: self.restarted,
            resting: &self.resting,
        }
        .plan()
    }

    /// Takes the next step.
    pub fn step(&mut self) -> Step {
        let step = self.plan();
        match &step {
            Step::Join => {
                let (own, has_started) = self.listed;
                self.has_moved = false;
                self.answered = Some(Answered {
                    own,
                    has_started,
                    age: Duration::ZERO,
                });
            }
            Step::Certify(_) => {
                let has_list = self.has_list;
                let (certificate, list) = self.needed();
                *certificate = Certificate::Held(None);
                list.is_there |= has_list;
            }
            Step::WriteList => {
                let (_, list) = self.needed();
                (list.is_there, list.has_changed) = (true, false);
            }
            Step::Note(noted) => self.noted = Some(*noted),
            Step::Start => self.start(),
            Step::Stop(_) => self.process = Process::Stopped,
            Step::Restart(number) => (self.process, self.restarted) = (Process::Stopped, *number),
            Step::SetAside(_) => self.aside.push(std::mem::replace(&mut self.data, Data::Missing)),
            Step::Forget(_) => {
                self.noted = None;
                self.lose_certificate();
            }
            Step::Rest(_) => {}
        }
        step
    }

    /// Etcd with data goes on with that; without, it is a new one.
    fn start(&mut self) {
        let noted = self.noted.expect("it starts as the member that is noted");
        assert_eq!(self.process, Process::Stopped, "never two");
        if let Data::Missing | Data::NoLog | Data::Unowned = self.data {
            assert_eq!(
                noted.stage,
                Stage::New,
                "it has forgotten what it has acknowledged"
            );
            assert_eq!(self.listed, (noted.own, false));
            self.data = Data::Of(noted.own);
        }
        assert_eq!(self.data, Data::Of(noted.own));
        (self.process, self.answered) = (Process::Running, None);
    }

    /// Takes steps until it rests, and returns them.
    pub fn run(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        while steps.len() < MANY {
            steps.push(self.step());
            if let Some(Step::Rest(_)) = steps.last() {
                return steps;
            }
        }
        panic!("it never rests: {steps:?}");
    }

    fn needed(&mut self) -> (&mut Certificate, &mut List) {
        match &mut self.tls {
            Tls::Needed { certificate, list } => (certificate, list),
            Tls::Unneeded => panic!("it is in clear text"),
        }
    }

    pub fn lose_certificate(&mut self) {
        if let Tls::Needed { certificate, .. } = &mut self.tls {
            *certificate = Certificate::Missing;
        }
    }

    pub fn expire(&mut self) {
        let left = Duration::ZERO;
        *self.needed().0 = Certificate::Held(Some(Renewal::Age { left }));
    }

    pub fn change_list(&mut self) {
        self.needed().1.has_changed = true;
    }

    pub fn age(&mut self, by: Duration) {
        if let Some(answered) = &mut self.answered {
            answered.age += by;
        }
    }
}
