//! Roles and members with the real program: what the commands refuse, what they show, and the whole way from a worker to
//! a voter and back.

mod adopt;
mod alarms;
mod clocks;
mod denied;
mod phases;
mod quorum;
mod recovery;
mod refusals;
mod replace;
mod shown;
mod tour;
mod unit;

use std::ops::{Deref, DerefMut};
use std::path::Path;

use quorate::etcd::MemberId;
use quorate::etcd::members::MemberList;
use quorate::proto::Role;
use quorate::store::Keys;
use quorate_dev::process::{Program, Supervised};

use crate::support::base::Base;
use crate::support::etcd::{EtcdVersion, TestEtcd};
use crate::support::quorate::Finished;
use crate::support::wait::{SOON, eventually};

/// An etcd whose members have nodes, and the program on it.
struct Site(Base);

impl Deref for Site {
    type Target = Base;

    fn deref(&self) -> &Base {
        &self.0
    }
}

impl DerefMut for Site {
    fn deref_mut(&mut self) -> &mut Base {
        &mut self.0
    }
}

impl Site {
    /// A cluster of this many members, none of which Quorate knows.
    async fn start(members: usize) -> Self {
        Self::start_on(EtcdVersion::Installed, members).await
    }

    /// The same of this release of etcd.
    async fn start_on(version: EtcdVersion, members: usize) -> Self {
        let base = Base::on(TestEtcd::of(version, members, &[]).await).await;
        // Members publish their names only after they serve.
        eventually(SOON, "every member has its name", async || {
            let list = base
                .store
                .etcd
                .list_members()
                .await
                .map_err(|error| error.to_string())?;
            let nameless = list.members.iter().any(|member| !member.is_started());
            if nameless {
                Err(format!("{list:?}"))
            } else {
                Ok(())
            }
        })
        .await;
        Self(base)
    }

    /// The same, each member adopted by a node of its name.
    async fn adopted(members: usize) -> Self {
        Self::adopted_on(EtcdVersion::Installed, members).await
    }

    /// The same of this release of etcd.
    async fn adopted_on(version: EtcdVersion, members: usize) -> Self {
        let site = Self::start_on(version, members).await;
        site.run(&["adopt"]).await.expect_done();
        site
    }

    async fn apply_role(&self, name: &str, role: &str) -> Finished {
        self.run_with(&["apply", "-f", "-"], &document(name, role)).await
    }

    /// Adds a learner that never starts, as an operator would with etcdctl; its id. etcd refuses in the first seconds of
    /// a cluster.
    async fn add_by_hand(&self, peer_url: &str) -> MemberId {
        let urls = format!("--peer-urls={peer_url}");
        eventually(SOON, "etcd takes a learner", async || {
            let added = self.etcd.try_etcdctl(&["member", "add", "x", "--learner", &urls]);
            // What failed may have been done all the same.
            let list = self.members().await;
            let known = list.members.iter().find(|member| member.peer_urls == [peer_url]);
            known.map(|member| member.id).ok_or(format!("{added:?}"))
        })
        .await
    }

    /// The member list. While raft elects another leader, etcd refuses the request.
    async fn members(&self) -> MemberList {
        eventually(SOON, "the member list", async || {
            self.store.etcd.list_members().await
        })
        .await
    }

    /// Runs a command that must be refused by this rule, with nothing written; what it said.
    #[track_caller]
    fn refused<'a>(&'a self, rule: &'a str, args: &'a [&'a str]) -> impl Future<Output = String> + 'a {
        let place = std::panic::Location::caller();
        async move {
            let before = self.contents().await;
            let finished = self.run(args).await;
            let output = &finished.stderr;
            assert_eq!(finished.code, 4, "{place}: {args:?}: {finished:?}");
            let named = output.contains(&format!("refused by rule {rule}: "));
            assert!(named, "{place}: {args:?}: {output}");
            assert_eq!(self.contents().await, before, "{place}: {args:?}");
            // The same answer twice.
            assert_eq!(&self.run(args).await.stderr, output, "{place}");
            finished.stderr
        }
    }

    /// The leader's part of a promotion, where none runs.
    async fn observe(&self, name: &str, role: Role) {
        self.change(name, |node| node.status.get_or_insert_default().set_role(role))
            .await;
    }

    async fn desired(&self, name: &str) -> Role {
        self.node(name).await.spec.unwrap().desired_role()
    }

    async fn observed(&self, name: &str) -> Role {
        self.node(name).await.status.unwrap().role()
    }

    /// The id of the member that etcd calls so.
    async fn member(&self, name: &str) -> MemberId {
        let list = self.members().await;
        let found = list.members.iter().find(|member| member.name == name);
        found.unwrap_or_else(|| panic!("no {name} in {list:?}")).id
    }

    /// Starts the etcd for which `quorate join … -o env` printed these settings.
    fn start_etcd(&self, name: &str, environment: &str) -> Supervised {
        let directory = self.etcd.directory();
        let data = directory.join(format!("{name}-{}.data", uuid::Uuid::new_v4()));
        let log = directory.join(format!("{name}.log"));
        started(self.etcd.version, name, &data, environment, &log)
    }
}

/// etcd with these settings and nothing else but a data directory, as a person starts it.
pub fn started(version: EtcdVersion, name: &str, data: &Path, environment: &str, log: &Path) -> Supervised {
    let variables = environment.lines().map(|line| {
        let (variable, value) = line.split_once('=').unwrap_or_else(|| panic!("{line:?}"));
        (variable.to_owned(), value.into())
    });
    let program = Program {
        name: name.to_owned(),
        path: version.program("etcd"),
        args: vec!["--data-dir".into(), data.into()],
        env: variables.collect(),
        hidden_env: "ETCD_",
        log: log.to_owned(),
    };
    program.start().unwrap()
}

fn keys() -> Keys {
    Keys::new("/quorate".parse().unwrap())
}

fn document(name: &str, role: &str) -> String {
    format!(
        "{{apiVersion: quorate.dev/v1, kind: Node, metadata: {{name: {name}}}, spec: {{desiredRole: {role}}}}}\n---\n"
    )
}

/// A URL on this machine where nothing listens.
fn free_url() -> String {
    format!("http://127.0.0.1:{}", quorate_dev::ports::free_port().unwrap())
}
