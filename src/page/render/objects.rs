//! Volumes, what is marked for deletion, and the Kubernetes resources.

use super::table::{self, Columns};
use super::{counts, field, moment, of_part};
use crate::page::html::Html;
use crate::page::state::State;
use crate::resources::summary::ResourceRow;
use crate::summary::PendingDeletion;
use crate::volumes::summary::{BlockedRow, PluginRow};

pub(super) fn volumes(state: &State) -> Html {
    of_part(&state.volumes, state.leader.as_ref(), |html, volumes| {
        counts(
            html,
            "By state",
            volumes.states.iter().map(|(word, count)| (*word, count)),
        );
        let columns = Columns {
            caption: "Blocked volumes",
            titles: ["Volume", "Node", "Reason", "Message", "Since"],
            cells: &|row: &BlockedRow| {
                [
                    Html::of(&row.volume),
                    row.node.as_ref().map(Html::of).unwrap_or_default(),
                    Html::classed("bad", &row.reason),
                    Html::of(&row.message),
                    row.since.as_deref().map(moment).unwrap_or_default(),
                ]
            },
        };
        table::add(html, &columns, &volumes.blocked, "No volume is blocked.");
        let columns = Columns {
            caption: "CSI plugins",
            titles: ["Plugin", "State", "Message", "Volumes", "Waiting"],
            cells: &|row: &PluginRow| {
                let class = match row.state.as_str() {
                    "Ready" => "good",
                    "" | "Idle" | "Connecting" => "quiet",
                    _ => "bad",
                };
                [
                    Html::of(&row.name),
                    Html::classed(class, &row.state),
                    Html::of(&row.message),
                    Html::of(row.volumes),
                    Html::of(row.waiting),
                ]
            },
        };
        table::add(html, &columns, &volumes.plugins, "There is no CSI plugin.");
    })
}

pub(super) fn deletions(state: &State) -> Html {
    of_part(&state.deletions, state.leader.as_ref(), |html, deletions| {
        let nothing = "No service and no network is marked for deletion.";
        table::add(html, &columns("Services and networks"), deletions, nothing);
        if let Some(volumes) = &state.volumes.content {
            let nothing = "No volume is marked for deletion.";
            table::add(html, &columns("Volumes"), &volumes.deletions, nothing);
        }
    })
}

fn columns(caption: &'static str) -> Columns<'static, PendingDeletion, 4> {
    Columns {
        caption,
        titles: ["Kind", "Name", "Waits for", "Since"],
        cells: &deletion,
    }
}

fn deletion(row: &PendingDeletion) -> [Html; 4] {
    [
        Html::of(row.kind),
        Html::of(&row.name),
        Html::of(&row.waits_for),
        row.since.as_deref().map(moment).unwrap_or_default(),
    ]
}

pub(super) fn resources(state: &State) -> Html {
    let Some(resources) = &state.resources else {
        let mut html = Html::default();
        html.raw("<p class=\"quiet\">This replica runs without Kubernetes: it keeps no resources.</p>\n");
        return html;
    };
    of_part(resources, state.leader.as_ref(), |html, resources| {
        if let Some(why) = &resources.stopped {
            html.raw("<p class=\"bad\">The last pass did not reach every object: ")
                .text(why)
                .raw("</p>\n");
        }
        counts(
            html,
            "By outcome",
            resources.outcomes.iter().map(|(word, count)| (*word, count)),
        );
        html.raw("<dl>\n");
        field(html, "Last pass", &moment(&resources.passed_at));
        html.raw("</dl>\n");
        let columns = Columns {
            caption: "Objects that are not as the bundle says",
            titles: ["Object", "Outcome", "Why"],
            cells: &|row: &ResourceRow| {
                [
                    Html::of(&row.object),
                    Html::classed("bad", row.outcome),
                    Html::of(&row.message),
                ]
            },
        };
        table::add(
            html,
            &columns,
            &resources.troubled,
            "Every object that was reached is in place.",
        );
    })
}
