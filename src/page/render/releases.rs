//! The gate, and the releases that run.

use super::table::{self, Columns};
use super::{field, moment, of_part};
use crate::gate::summary::{ControllerRow, ReplicaRow};
use crate::page::html::Html;
use crate::page::state::{GateStatus, State};

pub(super) fn gate(state: &State) -> Html {
    let Some(gate) = &state.gate else {
        let mut html = Html::default();
        html.raw("<p class=\"quiet\">This replica runs without Kubernetes: it has no gate.</p>\n");
        return html;
    };
    let mut html = Html::default();
    html.raw("<dl>\n");
    match &gate.status {
        GateStatus::Unread => field(&mut html, "Status", &Html::classed("quiet", "not read yet")),
        GateStatus::Absent => {
            let text = "none yet: nothing is reconciled, no replica is admitted";
            field(&mut html, "Status", &Html::classed("bad", text));
        }
        GateStatus::Malformed { message } => {
            let text = format!("malformed: {message}");
            field(&mut html, "Status", &Html::classed("bad", text));
        }
        GateStatus::Stored {
            state,
            version,
            minimum_compatible_release,
        } => {
            let class = if state == "DONE" { "good" } else { "busy" };
            field(&mut html, "Status", &Html::classed(class, state));
            field(&mut html, "Reconciled by", &Html::of(version));
            field(
                &mut html,
                "Minimum release",
                &Html::of(minimum_compatible_release),
            );
        }
    }
    html.raw("</dl>\n");
    let degraded = of_part(&gate.degraded, state.leader.as_ref(), |html, degraded| {
        let Some(degraded) = degraded else {
            html.raw("<p class=\"good\">Nothing blocks, and nothing is degraded.</p>\n");
            return;
        };
        html.raw("<p>")
            .part(&Html::classed("bad", &degraded.reason))
            .raw(" since ")
            .part(&moment(&degraded.since))
            .raw(": ")
            .text(&degraded.message)
            .raw("</p>\n");
    });
    html.part(&degraded);
    html
}

pub(super) fn releases(state: &State) -> Html {
    of_part(&state.releases, state.leader.as_ref(), |html, releases| {
        let leader = state.leader.as_ref().map(|leader| leader.name.as_str());
        let columns = Columns {
            caption: "Replicas",
            titles: ["Replica", "Version", "Role", "Page", "Remark"],
            cells: &|row: &ReplicaRow| {
                [
                    Html::of(&row.name),
                    match &row.version {
                        Some(version) => Html::of(version),
                        None => Html::classed("bad", "its registration cannot be read"),
                    },
                    Html::of(if leader == Some(row.name.as_str()) {
                        "leader"
                    } else {
                        ""
                    }),
                    row.page
                        .as_ref()
                        .map(|page| Html::link(page, page))
                        .unwrap_or_default(),
                    remark(row.excluded),
                ]
            },
        };
        table::add(html, &columns, &releases.replicas, "No replica is registered.");
        let columns = Columns {
            caption: "Controllers on nodes",
            titles: ["Node", "Release", "Remark"],
            cells: &|row: &ControllerRow| {
                [
                    Html::of(&row.node),
                    match &row.release {
                        Some(release) => Html::of(release),
                        None => Html::classed("bad", "unknown"),
                    },
                    remark(row.excluded),
                ]
            },
        };
        table::add(
            html,
            &columns,
            &releases.controllers,
            "No node reports a controller.",
        );
    })
}

fn remark(excluded: bool) -> Html {
    match excluded {
        true => Html::classed("bad", "excluded by the bundle of this replica"),
        false => Html::default(),
    }
}
