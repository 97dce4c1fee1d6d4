use std::sync::Arc;

use super::*;
use crate::gate::status::Degraded;
use crate::gate::summary::{ControllerRow, ReleasesSummary, ReplicaRow};
use crate::page::state::{Gate, GateStatus, OwnReplica, Picture};
use crate::resources::summary::{ResourceRow, ResourcesSummary};
use crate::roles::summary::{
    ChangeRow, JoinRow, MemberRow, MembersSummary, NodeRow, NodesSummary, RolesSummary,
};
use crate::summary::{PendingDeletion, ROWS, Rows};
use crate::volumes::summary::{BlockedRow, PluginRow, VolumesSummary};

const HOSTILE: &str = "<img src=x onerror=\"alert('1')\"></td><script>alert(2)</script>&amp;\u{202e}";

fn known<T>(content: T) -> Part<T> {
    Part {
        known: Known::Now,
        as_of: None,
        content: Some(Arc::new(content)),
    }
}

fn rows<T>(first: Vec<T>) -> Rows<T> {
    Rows {
        total: first.len(),
        first,
    }
}

fn deletion(text: &str) -> PendingDeletion {
    PendingDeletion {
        kind: "volume",
        name: text.to_owned(),
        since: Some(text.to_owned()),
        waits_for: text.to_owned(),
    }
}

fn roles(text: &str) -> RolesSummary {
    let members = MembersSummary {
        asked_at: text.to_owned(),
        members: rows(vec![MemberRow {
            id: text.to_owned(),
            node: Some(text.to_owned()),
            kind: "voter",
            healthy: false,
            raft_leader: false,
            remarks: vec![text.to_owned()],
        }]),
        joins: rows(vec![JoinRow {
            node: text.to_owned(),
            progress: "waiting",
        }]),
        blocked: rows(vec![ChangeRow {
            node: text.to_owned(),
            subject: text.to_owned(),
            reason: text.to_owned(),
            message: text.to_owned(),
        }]),
        alarms: vec![text.to_owned()],
    };
    RolesSummary {
        paused: true,
        members: Some(members),
        nodes: Arc::default(),
    }
}

fn volumes(text: &str) -> VolumesSummary {
    VolumesSummary {
        states: [("created", 5000)].into(),
        blocked: rows(vec![BlockedRow {
            volume: text.to_owned(),
            node: Some(text.to_owned()),
            reason: text.to_owned(),
            message: text.to_owned(),
            since: Some(text.to_owned()),
        }]),
        deletions: rows(vec![deletion(text)]),
        plugins: rows(vec![PluginRow {
            name: text.to_owned(),
            state: text.to_owned(),
            message: text.to_owned(),
            volumes: 3,
            waiting: 2,
        }]),
    }
}

fn releases(text: &str) -> ReleasesSummary {
    ReleasesSummary {
        replicas: rows(vec![ReplicaRow {
            name: text.to_owned(),
            version: Some(text.to_owned()),
            page: Some(text.to_owned()),
            excluded: true,
        }]),
        controllers: rows(vec![ControllerRow {
            node: text.to_owned(),
            release: Some(text.to_owned()),
            excluded: true,
        }]),
    }
}

/// A state in which every text that can come from elsewhere is this one.
fn state(text: &str) -> State {
    State {
        picture: Picture {
            as_of: Some(text.to_owned()),
            age_seconds: Some(75),
            cut_off: true,
        },
        replica: OwnReplica {
            name: text.to_owned(),
            program: "0.1.0",
            bundle: text.to_owned(),
            leads: true,
            ready: false,
            remarks: vec![text.to_owned()],
        },
        leader: Some(Leader {
            name: text.to_owned(),
            term: 42,
            is_last_known: true,
            page: Some(text.to_owned()),
        }),
        gate: Some(Gate {
            status: GateStatus::Stored {
                state: text.to_owned(),
                version: text.to_owned(),
                minimum_compatible_release: text.to_owned(),
            },
            degraded: known(Some(Degraded {
                reason: text.to_owned(),
                message: text.to_owned(),
                since: text.to_owned(),
            })),
        }),
        releases: known(releases(text)),
        roles: known(roles(text)),
        nodes: known(NodesSummary {
            ready: Some(1),
            roles: [("worker", 1)].into(),
            nodes: rows(vec![NodeRow {
                name: text.to_owned(),
                ready: Some(false),
                desired_role: text.to_owned(),
                observed_role: String::new(),
                remarks: vec!["drained"],
            }]),
        }),
        volumes: Part {
            known: Known::Past,
            as_of: Some(text.to_owned()),
            ..known(volumes(text))
        },
        deletions: known(rows(vec![deletion(text)])),
        resources: Some(known(ResourcesSummary {
            outcomes: [("applied", 3)].into(),
            troubled: rows(vec![ResourceRow {
                object: text.to_owned(),
                outcome: "failed",
                message: text.to_owned(),
            }]),
            stopped: Some(text.to_owned()),
            passed_at: text.to_owned(),
        })),
    }
}

fn shown(state: &State) -> String {
    document(&state.replica.name, &sections(state))
}

fn section(state: &State, id: &str) -> String {
    let mut all = sections(state).into_iter();
    all.find(|section| section.id == id).unwrap().html
}

/// The names of the elements that a document opens, in order.
fn elements(html: &str) -> Vec<String> {
    let opened = html.split('<').skip(1).filter(|rest| !rest.starts_with('/'));
    let name = |rest: &str| rest.chars().take_while(char::is_ascii_alphanumeric).collect();
    opened.map(name).collect()
}

#[test]
fn no_text_from_elsewhere_adds_an_element_an_attribute_or_a_link() {
    let (harmless, hostile) = (shown(&state("x")), shown(&state(HOSTILE)));
    assert_eq!(elements(&hostile), elements(&harmless));
    assert!(
        !hostile.contains("<img") && !hostile.contains("alert('1')"),
        "{hostile}"
    );
    assert!(!hostile.contains('\u{202e}'));
    // Each quote is one of an attribute of the program's own.
    let quotes = |html: &str| html.matches('"').count();
    assert_eq!(quotes(&hostile), quotes(&harmless));
    // The texts are there all the same.
    for section in sections(&state(HOSTILE)) {
        let escaped = "&lt;img src=x onerror=&quot;alert(&#39;1&#39;)&quot;&gt;";
        assert!(section.html.contains(escaped), "{section:?}");
    }
}

#[test]
fn a_script_as_the_address_of_a_page_is_no_link() {
    let mut state = state("x");
    let leader = state.leader.as_mut().unwrap();
    leader.page = Some("javascript:alert(1)".to_owned());
    assert!(
        !shown(&state).contains("javascript:"),
        "the name of the leader alone is shown"
    );
    let leader = state.leader.as_mut().unwrap();
    leader.page = Some("http://10.0.0.4:8080/".to_owned());
    assert!(section(&state, "now").contains("<a rel=\"noreferrer\" href=\"http://10.0.0.4:8080/\">x</a>"));
}

#[test]
fn a_replica_that_is_cut_off_says_how_old_its_picture_is() {
    let mut state = state("2026-03-01T12:00:00Z");
    let now = section(&state, "now");
    assert!(
        now.contains("Cut off: etcd does not answer this replica."),
        "{now}"
    );
    let as_of = "<time datetime=\"2026-03-01T12:00:00Z\">2026-03-01 12:00:00 UTC</time>, 1 min 15 s ago";
    assert!(now.contains(as_of), "{now}");
    assert!(section(&state, "volumes").contains("when etcd last answered this replica"));
    state.picture.cut_off = false;
    assert!(section(&state, "now").contains("Up to date"));
    state.picture.as_of = None;
    assert!(section(&state, "now").contains("has not reached etcd yet"));
}

#[test]
fn a_standby_names_the_leader_for_what_the_leader_alone_knows() {
    let mut state = state("x");
    let leader = state.leader.as_mut().unwrap();
    (leader.name, leader.page) = ("r2".to_owned(), Some("http://r2/".to_owned()));
    state.volumes = Part::unknown(Known::ByTheLeader);
    let volumes = section(&state, "volumes");
    assert_eq!(
        volumes,
        "<p class=\"quiet\">The leader alone knows this: <a rel=\"noreferrer\" href=\"http://r2/\">r2</a>.</p>\n"
    );
    state.leader = None;
    assert_eq!(
        section(&state, "volumes"),
        "<p class=\"quiet\">The leader alone knows this.</p>\n"
    );
}

#[test]
fn what_blocks_an_upgrade_is_named_in_the_gate() {
    let mut state = state("2026-03-01T12:00:00Z");
    let message = "waiting for node c2 at 1.0.0, needs 1.3.0";
    state.gate = Some(Gate {
        status: GateStatus::Stored {
            state: "WORKING".to_owned(),
            version: "1.0.0".to_owned(),
            minimum_compatible_release: "1.0.0".to_owned(),
        },
        degraded: known(Some(Degraded {
            reason: "WaitingForNodes".to_owned(),
            message: message.to_owned(),
            since: "2026-03-01T12:00:00Z".to_owned(),
        })),
    });
    let gate = section(&state, "gate");
    assert!(
        gate.contains("WaitingForNodes") && gate.contains(message),
        "{gate}"
    );
}

#[test]
fn a_long_table_ends_with_the_number_of_the_other_rows() {
    let mut state = state("x");
    let mut many = volumes("x");
    let row = many.blocked.first[0].clone();
    many.blocked = Rows {
        first: vec![row; ROWS],
        total: 4000,
    };
    state.volumes = known(many);
    let volumes = section(&state, "volumes");
    assert!(
        volumes.contains("<p class=\"more\">and 3900 more</p>"),
        "{volumes}"
    );
    // A document that each of many viewers gets: every table at its longest is small.
    assert!(shown(&state).len() < 128 << 10, "{}", shown(&state).len());
}

#[test]
fn the_document_names_no_script_and_no_style_but_its_own() {
    let html = shown(&state("x"));
    let names = |mark: &str| -> Vec<String> {
        let found = html.split(mark).skip(1);
        found
            .map(|rest| rest.split('"').next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(" src=\""), ["page/script.js"]);
    assert_eq!(names("<link rel=\"stylesheet\" href=\""), ["page/style.css"]);
    for forbidden in [
        " style=\"",
        "<style",
        " onclick",
        " onload",
        "<form",
        "<iframe",
        "<base",
    ] {
        assert!(!html.contains(forbidden), "{forbidden}");
    }
}

#[test]
fn each_section_has_a_heading_and_a_link_to_it() {
    let state = state("x");
    let html = shown(&state);
    for Section { id, title, .. } in sections(&state) {
        assert!(html.contains(&format!("<a href=\"#{id}\">{title}</a>")), "{id}");
        assert!(
            html.contains(&format!("<h2 id=\"{id}-title\">{title}</h2>")),
            "{id}"
        );
        assert!(html.contains(&format!("<div id=\"{id}\">")), "{id}");
    }
}

#[test]
fn ages_are_short_words() {
    let ages = [
        (0, "0 s"),
        (59, "59 s"),
        (75, "1 min 15 s"),
        (3600, "1 h 0 min"),
        (90_061, "25 h 1 min"),
    ];
    for (seconds, text) in ages {
        assert_eq!(age(seconds), text);
    }
}
