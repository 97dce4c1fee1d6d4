//! The members of etcd, and the nodes.

use super::table::{self, Columns};
use super::{counts, field, moment, of_part};
use crate::page::html::Html;
use crate::page::state::State;
use crate::roles::summary::{ChangeRow, JoinRow, MemberRow, MembersSummary, NodeRow};

pub(super) fn members(state: &State) -> Html {
    of_part(&state.roles, state.leader.as_ref(), |html, roles| {
        if roles.paused {
            html.raw("<p class=\"bad\">Roles are paused: no role and no member changes (quorate resume roles).</p>\n");
        }
        match &roles.members {
            None => {
                html.raw("<p class=\"quiet\">The members were not asked yet.</p>\n");
            }
            Some(members) => add_members(html, members),
        }
    })
}

fn add_members(html: &mut Html, members: &MembersSummary) {
    html.raw("<dl>\n");
    field(html, "Asked", &moment(&members.asked_at));
    for alarm in &members.alarms {
        field(html, "Alarm", &Html::classed("bad", alarm));
    }
    html.raw("</dl>\n");
    let columns = Columns {
        caption: "Members",
        titles: ["Node", "Member", "Kind", "Health", "Remarks"],
        cells: &|row: &MemberRow| {
            [
                row.node.as_ref().map(Html::of).unwrap_or_default(),
                Html::of(&row.id),
                Html::of(match row.raft_leader {
                    true => "voter, raft leader",
                    false => row.kind,
                }),
                match row.healthy {
                    true => Html::classed("good", "healthy"),
                    false => Html::classed("bad", "not healthy"),
                },
                Html::of(row.remarks.join("; ")),
            ]
        },
    };
    table::add(html, &columns, &members.members, "No member is known.");
    let columns = Columns {
        caption: "Changes that wait",
        titles: ["Node", "About", "Reason", "Message"],
        cells: &|row: &ChangeRow| {
            [
                Html::of(&row.node),
                Html::of(&row.subject),
                Html::classed("bad", &row.reason),
                Html::of(&row.message),
            ]
        },
    };
    table::add(html, &columns, &members.blocked, "No change waits.");
    if !members.joins.first.is_empty() {
        let columns = Columns {
            caption: "Joins under way",
            titles: ["Node", "Progress"],
            cells: &|row: &JoinRow| [Html::of(&row.node), Html::of(row.progress)],
        };
        table::add(html, &columns, &members.joins, "");
    }
}

pub(super) fn nodes(state: &State) -> Html {
    of_part(&state.nodes, state.leader.as_ref(), |html, nodes| {
        counts(
            html,
            "By role",
            nodes.roles.iter().map(|(word, count)| (*word, count)),
        );
        html.raw("<dl>\n");
        let mut ready = Html::default();
        match nodes.ready {
            Some(count) => {
                ready.text(count).raw(" of ").text(nodes.nodes.total);
            }
            None => {
                ready.raw("not known here: this replica serves no agents (--ca-dir)");
            }
        }
        field(html, "Ready", &ready);
        html.raw("</dl>\n");
        let columns = Columns {
            caption: "Nodes",
            titles: ["Node", "State", "Desired role", "Observed role", "Remarks"],
            cells: &|row: &NodeRow| {
                [
                    Html::of(&row.name),
                    match row.ready {
                        Some(true) => Html::classed("good", "ready"),
                        Some(false) => Html::classed("bad", "down"),
                        None => Html::classed("quiet", "unknown"),
                    },
                    Html::of(&row.desired_role),
                    match row.observed_role == row.desired_role {
                        true => Html::of(&row.observed_role),
                        false => Html::classed("busy", &row.observed_role),
                    },
                    Html::of(row.remarks.join("; ")),
                ]
            },
        };
        table::add(html, &columns, &nodes.nodes, "There is no node.");
    })
}
