//! Tests whether peer URLs can be reached, before their node is added: a member that the others cannot reach must not be
//! added. Where a voter moves, the test finds out whether that very member listens there.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;

use crate::etcd::members::Listener;
use crate::etcd::{Etcd, MemberId};
use crate::roles::blocked::Subject;
use crate::roles::membership::{Membership, PendingJoin, Reachability};

/// How long the outcome for a member counts: longer than the time between two surveys while something waits.
const COUNTS_FOR: Duration = Duration::from_secs(10);

/// After this long, a member that moves is looked for again.
const AGAIN_AFTER: Duration = Duration::from_secs(3);

/// What is tested.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    /// The peer URLs of the request with this id, once a term.
    Request(String),
    /// Whether the member is at these peer URLs.
    Member(MemberId, Vec<String>),
}

struct Test {
    outcome: Reachability,
    /// When the outcome was known.
    at: Instant,
    /// The number of the test that is under way.
    under_way: Option<u64>,
}

impl Test {
    fn age(&self) -> Duration {
        self.at.elapsed()
    }
}

/// The outcome of each test, until roles are resumed after a pause.
pub struct Probes {
    known: BTreeMap<Target, Test>,
    under_way: FuturesUnordered<BoxFuture<'static, (Target, u64, Reachability)>>,
    /// How many tests were begun.
    begun: u64,
}

/// What is tested for a join. A voter that joins again is looked for at its new peer URLs.
fn of_join(membership: &Membership, pending: &PendingJoin) -> Option<Target> {
    let request = pending.join.request.as_ref()?;
    let member = membership.member_of_node(&pending.node, pending.uid());
    Some(
        match member.filter(|member| member.is_voter() && pending.replaces() != Some(member.id)) {
            Some(member) => Target::Member(member.id, request.peer_urls.clone()),
            None => Target::Request(request.id.clone()),
        },
    )
}

fn of_move(membership: &Membership, id: MemberId) -> Option<Target> {
    let readdress = membership.member(id)?.readdress()?;
    Some(Target::Member(id, readdress.peer_urls.clone()))
}

impl Probes {
    pub fn new() -> Self {
        Self {
            known: BTreeMap::new(),
            under_way: FuturesUnordered::new(),
            begun: 0,
        }
    }

    /// Says in the membership what the tests have found. What it no longer asks for is forgotten.
    pub fn show(&mut self, membership: &mut Membership) {
        let of_joins = membership
            .joins
            .iter()
            .map(|pending| of_join(membership, pending));
        let of_joins: Vec<_> = of_joins.collect();
        let members = membership.members.iter();
        let of_moves: Vec<_> = members.map(|member| of_move(membership, member.id)).collect();
        self.known.retain(|target, _| {
            let mut wanted = of_joins.iter().chain(&of_moves).flatten();
            wanted.any(|wanted| wanted == target)
        });
        for (pending, target) in membership.joins.iter_mut().zip(of_joins) {
            pending.reachability = self.of(target);
        }
        for (member, target) in membership.members.iter_mut().zip(of_moves) {
            member.moved = self.of(target);
        }
    }

    fn of(&self, target: Option<Target>) -> Reachability {
        let known = target.and_then(|target| Some((self.known.get(&target)?, target)));
        match known {
            Some((test, Target::Request(_))) => test.outcome.clone(),
            Some((test, Target::Member(..))) if test.age() < COUNTS_FOR => test.outcome.clone(),
            _ => Reachability::Pending,
        }
    }

    /// Begins the tests of these joins and members, and repeats the tests of members that ended [`AGAIN_AFTER`] ago.
    pub fn begin(&mut self, subjects: &[Subject], membership: &Membership, etcd: &Etcd, limit: Duration) {
        let asked = subjects.iter().filter_map(|subject| match subject {
            Subject::Member(id) => of_move(membership, *id),
            Subject::Join(node) => {
                let pending = membership.joins.iter().find(|pending| pending.node == *node)?;
                of_join(membership, pending)
            }
        });
        let old = self
            .known
            .iter()
            .filter(|(target, test)| matches!(target, Target::Member(..)) && test.age() >= AGAIN_AFTER);
        let due: Vec<_> = asked.chain(old.map(|(target, _)| target.clone())).collect();
        for target in due {
            self.begin_one(target, membership, etcd.clone(), limit);
        }
    }

    fn begin_one(&mut self, target: Target, membership: &Membership, etcd: Etcd, limit: Duration) {
        let (urls, expected) = match &target {
            Target::Member(id, urls) => (urls.clone(), Some(*id)),
            Target::Request(id) => {
                let mut requests = membership
                    .joins
                    .iter()
                    .filter_map(|pending| pending.join.request.as_ref());
                let Some(request) = requests.find(|request| request.id == *id) else {
                    return;
                };
                (request.peer_urls.clone(), None)
            }
        };
        let test = self.known.entry(target.clone()).or_insert_with(|| Test {
            outcome: Reachability::Pending,
            at: Instant::now(),
            under_way: None,
        });
        if test.under_way.is_some() {
            return;
        }
        self.begun += 1;
        let number = self.begun;
        test.under_way = Some(number);
        self.under_way.push(Box::pin(async move {
            let tests = urls.iter().map(|url| etcd.who_listens(url, expected, limit));
            let outcome = match futures::future::try_join_all(tests).await {
                Ok(listeners) => Reachability::Reached(worst(listeners)),
                Err(why) => Reachability::Unreachable(why),
            };
            (target, number, outcome)
        }));
    }

    /// Resolves when a test has found something else than is known; never while there is none. What is found again is no
    /// news: otherwise a member that waits to be found would have every step repeated that failed. Safe to cancel.
    pub async fn next(&mut self) {
        loop {
            let Some((target, number, outcome)) = self.under_way.next().await else {
                return std::future::pending().await;
            };
            let test = self.known.get(&target);
            if test.is_none_or(|test| test.under_way != Some(number)) {
                // It was forgotten meanwhile.
                continue;
            }
            let known = self.of(Some(target.clone()));
            let news = known != outcome;
            let test = Test {
                outcome,
                at: Instant::now(),
                under_way: None,
            };
            self.known.insert(target, test);
            if news {
                return;
            }
        }
    }

    /// Forgets where this member was found, also by a test that is under way: what follows is decided from a later one.
    pub fn forget(&mut self, member: MemberId) {
        let of_member = |target: &Target| matches!(target, Target::Member(id, _) if *id == member);
        self.known.retain(|target, _| !of_member(target));
    }
}

/// The least that is known of several peer URLs of one member.
fn worst(listeners: Vec<Listener>) -> Listener {
    let rank = |listener: &Listener| match listener {
        Listener::Another(_) => 0,
        Listener::Absent => 1,
        Listener::Unproven(_) => 2,
        Listener::Expected => 3,
    };
    listeners.into_iter().min_by_key(rank).unwrap_or(Listener::Absent)
}
