//! The floors of the product, from the lowest to the highest. A file imports from its own floor and from those below.

use super::imports;
use super::source::{Files, lies_in};

/// Names of the floors, and the files and folders of `src` that stand on each. ARCHITECTURE.md has the same table.
const FLOORS: [(&str, &[&str]); 9] = [
    (
        "vocabulary",
        &[
            "release.rs",
            "metrics/",
            "retry/",
            "clock.rs",
            "one_stream.rs",
            "check.rs",
            "limit.rs",
            "own_thread.rs",
            "summary.rs",
            "failpoint.rs",
            "mutation.rs",
            "grpc_code.rs",
            "grpc_status.rs",
            "causes.rs",
            "lines.rs",
            "wipe.rs",
            "wire.rs",
            "span.rs",
            "proto/",
        ],
    ),
    ("etcd", &["etcd/"]),
    ("CSI", &["csi/"]),
    ("store", &["store/"]),
    ("Kubernetes", &["kube/"]),
    ("a term", &["term/"]),
    (
        "subjects",
        &[
            "gate/",
            "resources/",
            "roles/",
            "volumes/",
            "deallocator/",
            "identity/",
            "secrets/",
        ],
    ),
    (
        "a process",
        &["replica/", "page/", "serve/", "agent/", "control/", "traces/"],
    ),
    ("people", &["cli/", "prelude.rs"]),
];

/// The generated messages are included by the root of the crate.
const PROTO: &str = "src/lib.rs";

/// Imports from a lower floor to a higher one, and files that stand on none.
pub fn imports_upwards(files: &Files) -> Vec<String> {
    let mut faults = Vec::new();
    for (from, imported) in imports::graph(files) {
        let Some(own) = floor(from) else {
            faults.push(format!("{from} stands on no floor"));
            continue;
        };
        // The root hands names of every floor on.
        for to in imported.into_iter().filter(|_| from != PROTO) {
            if let Some(other) = floor(to).filter(|other| *other > own) {
                let (own, other) = (FLOORS[own].0, FLOORS[other].0);
                faults.push(format!("{from} ({own}) imports {to} ({other})"));
            }
        }
    }
    faults
}

/// What the table of a document says otherwise than [`FLOORS`].
pub fn differences(document: &str) -> Vec<String> {
    let rows: Vec<(String, Vec<String>)> = document
        .lines()
        .skip_while(|line| !line.starts_with("| layer |"))
        .skip(2)
        .map_while(|line| line.strip_prefix('|'))
        .map(|row| {
            let mut cells = row.split('|').map(str::trim);
            let name = cells.next().unwrap_or_default().to_owned();
            (name, places(cells.next().unwrap_or_default()))
        })
        .collect();
    let floors: Vec<(String, Vec<String>)> = FLOORS
        .iter()
        .map(|(name, places)| {
            (
                (*name).to_owned(),
                places.iter().map(|place| bare(place)).collect(),
            )
        })
        .collect();
    if rows == floors {
        return Vec::new();
    }
    let shown = |rows: &[(String, Vec<String>)]| {
        let lines = rows
            .iter()
            .map(|(name, places)| format!("  {name}: {}", places.join(" ")));
        lines.collect::<Vec<_>>().join("\n")
    };
    vec![format!(
        "these floors are named, from the lowest:\n{}\nbut they are:\n{}",
        shown(&rows),
        shown(&floors)
    )]
}

/// The names in backticks, without what only links them.
fn places(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(bare).collect()
}

/// Whether the code in this folder of `src` runs in the leader: a subject.
pub fn is_controller(folder: &str) -> bool {
    let subjects = FLOORS.iter().filter(|(name, _)| *name == "subjects");
    subjects
        .flat_map(|(_, places)| *places)
        .any(|place| bare(place) == folder)
}

fn bare(place: &str) -> String {
    place.trim_end_matches('/').trim_end_matches(".rs").to_owned()
}

fn floor(path: &str) -> Option<usize> {
    let place = if path == PROTO { "src/proto/" } else { path };
    let stands = |place_of: &&str| {
        let place_of = format!("src/{place_of}");
        lies_in(place, &place_of) || lies_in(place, &format!("{}.rs", place_of.trim_end_matches('/')))
    };
    FLOORS.iter().position(|(_, places)| places.iter().any(&stands))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: (&str, &str) = (
        "src/lib.rs",
        "mod store; mod gate; mod cli; mod proto { pub struct Node; } pub use gate::G;",
    );

    #[test]
    fn an_import_upwards_is_found_and_one_downwards_is_none() {
        let down = ("src/gate/mod.rs", "use crate::store::S; pub struct G;");
        let store = ("src/store/mod.rs", "use crate::proto::Node; pub struct S;");
        assert_eq!(imports_upwards(&Files::of(&[ROOT, down, store])), [""; 0]);
        let up = (
            "src/store/mod.rs",
            "pub struct S; fn f() { crate::gate::G::new() }",
        );
        assert_eq!(
            imports_upwards(&Files::of(&[ROOT, down, up])),
            ["src/store/mod.rs (store) imports src/gate/mod.rs (subjects)"]
        );
    }

    #[test]
    fn a_file_beside_the_floors_is_found() {
        let files = [ROOT, ("src/gate.rs", "pub struct G;"), ("src/cellar.rs", "")];
        let root = ("src/lib.rs", "mod gate; mod cellar;");
        assert_eq!(
            imports_upwards(&Files::of(&[root, files[1], files[2]])),
            ["src/cellar.rs stands on no floor"]
        );
    }

    #[test]
    fn a_table_in_another_order_or_with_another_place_differs() {
        let rows = FLOORS.map(|(name, places)| format!("| {name} | `{}` | words |\n", places.join("` `")));
        let table = |rows: &[String]| {
            format!(
                "text\n| layer | where |\n| --- | --- |\n{}\nmore `x`\n",
                rows.concat()
            )
        };
        assert_eq!(differences(&table(&rows)), [""; 0]);
        let mut swapped = rows.clone();
        swapped.swap(2, 3);
        let moved = rows.clone().map(|row| row.replace("`serve/`", "`server/`"));
        for wrong in [swapped.to_vec(), moved.to_vec(), rows[1..].to_vec(), Vec::new()] {
            assert_eq!(differences(&table(&wrong)).len(), 1, "{wrong:?}");
        }
    }
}
