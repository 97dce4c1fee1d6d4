//! Renders the state as a document for people. Pure.
//!
//! Each section is rendered by itself, so that an update sends those that have changed. What is good or bad is said in words; the
//! colours only repeat it.

use super::html::Html;
use super::state::{Known, Leader, Part, State};

mod cluster;
mod objects;
mod releases;
mod table;

/// A section of the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its `id` in the document.
    pub id: &'static str,
    /// Its title.
    pub title: &'static str,
    /// What is in it.
    pub html: String,
}

/// All sections, in the order of the document.
pub fn sections(state: &State) -> Vec<Section> {
    let section = |id, title, html: Html| Section {
        id,
        title,
        html: html.into_string(),
    };
    vec![
        section("now", "Now", now(state)),
        section("gate", "Gate", releases::gate(state)),
        section("releases", "Releases", releases::releases(state)),
        section("members", "Members of etcd", cluster::members(state)),
        section("nodes", "Nodes", cluster::nodes(state)),
        section("volumes", "Volumes", objects::volumes(state)),
        section("deletions", "Pending deletions", objects::deletions(state)),
        section("resources", "Kubernetes resources", objects::resources(state)),
    ]
}

/// The whole document.
pub fn document(replica: &str, sections: &[Section]) -> String {
    let mut html = Html::default();
    html.raw(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>Quorate: ",
    );
    html.text(replica).raw(
        "</title>\n<link rel=\"stylesheet\" href=\"page/style.css\">\n\
         <script src=\"page/script.js\" defer></script>\n</head>\n<body>\n\
         <a class=\"skip\" href=\"#main\">Skip to the contents</a>\n<header>\n<h1>Quorate <span>",
    );
    html.text(replica)
        .raw("</span></h1>\n<nav aria-label=\"Sections\"><ul>\n");
    for section in sections {
        html.raw("<li><a href=\"#")
            .raw(section.id)
            .raw("\">")
            .raw(section.title)
            .raw("</a></li>\n");
    }
    html.raw(
        "</ul></nav>\n</header>\n<p id=\"connection\" class=\"bad\" role=\"status\" hidden></p>\n\
         <noscript><p>Without JavaScript this page does not update itself: load it again.</p></noscript>\n\
         <main id=\"main\" tabindex=\"-1\">\n",
    );
    let mut text = html.into_string();
    for section in sections {
        text.push_str(&heading(section.id, section.title));
        text.push_str(&section.html);
        text.push_str("</div>\n</section>\n");
    }
    text.push_str(
        "</main>\n<footer><p>The same as JSON: <a href=\"api/v1/state\">api/v1/state</a></p></footer>\n</body>\n</html>\n",
    );
    text
}

fn heading(id: &'static str, title: &'static str) -> String {
    let mut html = Html::default();
    html.raw("<section aria-labelledby=\"")
        .raw(id)
        .raw("-title\">\n<h2 id=\"")
        .raw(id)
        .raw("-title\">")
        .raw(title)
        .raw("</h2>\n<div id=\"")
        .raw(id)
        .raw("\">\n");
    html.into_string()
}

/// Who leads, how old all of this is, and what this replica is.
fn now(state: &State) -> Html {
    let mut html = Html::default();
    let picture = &state.picture;
    match (&picture.as_of, picture.cut_off) {
        (None, _) => {
            html.raw("<p class=\"bad\" role=\"status\">This replica has not reached etcd yet.</p>\n");
        }
        (Some(as_of), true) => {
            html.raw("<p class=\"bad\" role=\"status\">Cut off: etcd does not answer this replica. All of this is as of ")
                .part(&moment(as_of))
                .raw(", ")
                .text(age(picture.age_seconds.unwrap_or_default()))
                .raw(" ago; what has changed since is not known here.</p>\n");
        }
        (Some(_), false) => {
            html.raw("<p class=\"good\" role=\"status\">Up to date: etcd answers this replica.</p>\n");
        }
    }
    html.raw("<dl>\n");
    let leader = match &state.leader {
        None => Html::classed("bad", "none known"),
        Some(leader) => named(leader),
    };
    field(&mut html, "Leader", &leader);
    let own = &state.replica;
    let mut role = Html::of(&own.name);
    role.raw(if own.leads { ", the leader" } else { ", a standby" });
    field(&mut html, "This replica", &role);
    let ready = match own.ready {
        true => Html::classed("good", "yes"),
        false => Html::classed("bad", "no"),
    };
    field(&mut html, "Ready", &ready);
    for remark in &own.remarks {
        field(&mut html, "Remark", &Html::of(remark));
    }
    field(&mut html, "Program", &Html::of(own.program));
    field(&mut html, "Bundle", &Html::of(&own.bundle));
    html.raw("</dl>\n");
    html
}

/// The leader with its term.
fn named(leader: &Leader) -> Html {
    let mut html = linked(leader);
    html.raw(" (term ").text(leader.term).raw(")");
    if leader.is_last_known {
        html.raw(", ").part(&Html::classed("bad", "as last known"));
    }
    html
}

fn linked(leader: &Leader) -> Html {
    match &leader.page {
        Some(page) => Html::link(page, &leader.name),
        None => Html::of(&leader.name),
    }
}

/// A line of a description list.
fn field(html: &mut Html, title: &'static str, value: &Html) {
    html.raw("<div><dt>")
        .raw(title)
        .raw("</dt><dd>")
        .part(value)
        .raw("</dd></div>\n");
}

/// A moment, in UTC.
fn moment(rfc3339: &str) -> Html {
    let mut html = Html::default();
    html.raw("<time datetime=\"")
        .text(rfc3339)
        .raw("\">")
        .text(rfc3339.replace('T', " ").replace('Z', " UTC"))
        .raw("</time>");
    html
}

/// An age: `45 s`, `12 min 5 s`, `3 h 20 min`.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Begins with how far a part is known, and has the rest added where it is.
fn of_part<T>(part: &Part<T>, leader: Option<&Leader>, rest: impl FnOnce(&mut Html, &T)) -> Html {
    let mut html = Html::default();
    match part.known {
        Known::Now => {}
        Known::Past => {
            html.raw("<p class=\"bad\">As of ")
                .part(&moment(part.as_of.as_deref().unwrap_or("an unknown time")))
                .raw(", when etcd last answered this replica.</p>\n");
        }
        Known::NotYet => {
            html.raw("<p class=\"quiet\">Not read yet.</p>\n");
        }
        Known::ByTheLeader => {
            html.raw("<p class=\"quiet\">The leader alone knows this");
            if let Some(leader) = leader {
                html.raw(": ").part(&linked(leader));
            }
            html.raw(".</p>\n");
        }
    }
    if let Some(content) = part.content.as_deref() {
        rest(&mut html, content);
    }
    html
}

/// Counts by word, in one line.
fn counts<'c, N: std::fmt::Display>(
    html: &mut Html,
    title: &'static str,
    counts: impl Iterator<Item = (&'c str, N)>,
) {
    let mut line = Html::default();
    for (word, count) in counts {
        if !line.as_str().is_empty() {
            line.raw(", ");
        }
        line.text(word).raw(" ").text(count);
    }
    if line.as_str().is_empty() {
        line.raw("none");
    }
    html.raw("<dl>\n");
    field(html, title, &line);
    html.raw("</dl>\n");
}

#[cfg(test)]
mod tests;
