//! One writer a key: of the leader's controllers, one alone writes a key, and ARCHITECTURE.md names it in its table of the
//! keys. Commands write on behalf of an operator; they stand in the table beside it.
//!
//! A write is a call of `put`, `delete` and the like in a file that makes transactions. Its key is found where the call
//! builds it, or where the variable or method that it names does.

use std::collections::{BTreeMap, BTreeSet};

use super::floors::is_controller;
use super::source::{Files, Token};

/// The methods of `Keys` that build one key, and the keys as the table names them.
const KEYS: [(&str, &str); 31] = [
    ("alive", "/alive/<name>"),
    ("certificate", "/identity/certificates/<node uid>"),
    ("election", "/kubernetes/reconciler/leader/<lease id>"),
    ("encryption_key", "/encryption/key"),
    ("etcd_certificate", "/identity/etcd/<node uid>"),
    (
        "inventory",
        "/kubernetes/reconciler/inventory/<group>/<kind>/<namespace or _>/<name>",
    ),
    ("join", "/joins/<node>"),
    ("join_token", "/identity/tokens/<joiner>"),
    ("last_roles_pause", "/pauses/roles-last"),
    ("log_level", "/log-levels/<module>"),
    ("member", "/members/<member id>"),
    ("network", "/networks/<name>"),
    ("node", "/nodes/<name>"),
    ("plugin", "/plugins/<name>"),
    ("plugin_status", "/plugins/<name>/status"),
    ("publication", "/publications/<volume>/<node>"),
    ("registration", "/nodes/<name>/release"),
    ("removed", "/removed/<uid>"),
    ("replica_trust", "/identity/replicas/<replica>"),
    ("revocation_list", "/identity/crl"),
    ("roles_pause", "/pauses/roles"),
    ("rotation", "/identity/trust"),
    ("rotation_request", "/identity/rotation"),
    ("secret", "/secrets/<name>"),
    ("service", "/services/<name>"),
    ("status", "/kubernetes/reconciler/status"),
    ("status_json", "/kubernetes/reconciler/status.json"),
    ("task", "/tasks/<service>/<name>"),
    ("tombstone", "/tombstones/<uid>"),
    ("volume", "/volumes/<name>"),
    ("volume_history", "/history/volumes"),
];

/// Files that write to the key of a record that they have read, and the methods that build the key or its range there.
const READ_BEFORE: [(&str, &str); 3] = [
    ("src/deallocator/act.rs", "task"),
    ("src/volumes/operation/records.rs", "publication"),
    ("src/volumes/operation/records.rs", "volume"),
];

const WRITES: [&str; 5] = ["put", "put_leased", "put_keeping_lease", "delete", "delete_range"];

/// Folders of `src` that write a key, by the method that builds it.
type Writers = BTreeMap<String, BTreeSet<String>>;

/// Differences between the table of the keys and the writes of the code, and keys with two writers.
pub fn differences(document: &str, files: &Files) -> Vec<String> {
    let (declared, mut faults) = declared(document);
    let (found, unknown) = found(files);
    faults.extend(unknown);
    faults.extend(without_row(files));
    for (key, shown) in KEYS {
        let none = BTreeSet::new();
        let (declared, found) = (
            declared.get(key).unwrap_or(&none),
            found.get(key).unwrap_or(&none),
        );
        let controllers = |folder: &&String| is_controller(folder);
        for folder in found.difference(declared) {
            faults.push(format!("{folder}/ writes {shown}, which the table does not say"));
        }
        for folder in declared.difference(found).filter(controllers) {
            faults.push(format!(
                "the table says that {folder}/ writes {shown}, which it does not"
            ));
        }
        if declared.iter().filter(controllers).count() > 1 {
            faults.push(format!("{shown} has several writers: {declared:?}"));
        }
    }
    faults
}

/// The writers that the table names, and what is wrong with the table.
fn declared(document: &str) -> (Writers, Vec<String>) {
    let (mut declared, mut faults) = (Writers::new(), Vec::new());
    let rows = document
        .lines()
        .skip_while(|line| !line.starts_with("| key |"))
        .skip(2);
    for row in rows.map_while(|row| row.strip_prefix('|')?.strip_suffix('|')) {
        let cells: Vec<&str> = row.split('|').collect();
        let folders = quoted(cells.last().copied().unwrap_or_default());
        let folders: BTreeSet<String> = folders
            .map(|folder| folder.trim_end_matches('/').to_owned())
            .collect();
        for key in quoted(cells[0]) {
            match KEYS.iter().find(|(_, shown)| *shown == key) {
                Some((builder, _)) => _ = declared.insert((*builder).to_owned(), folders.clone()),
                None => faults.push(format!(
                    "the table has a row for {key}, which no method of Keys builds"
                )),
            }
        }
    }
    for (builder, shown) in KEYS {
        if !declared.contains_key(builder) {
            faults.push(format!("the table has no row for {shown}"));
        }
    }
    (declared, faults)
}

fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Methods of `Keys` that build a key and are not in [`KEYS`].
fn without_row(files: &Files) -> Vec<String> {
    let mut faults = Vec::new();
    for (path, file) in files
        .product()
        .filter(|(path, _)| path.starts_with("src/store/keys"))
    {
        let built = written_builders(&file.code).chain(defined_builders(&file.code));
        for name in built.filter(|name| !KEYS.iter().any(|(builder, _)| builder == name)) {
            faults.push(format!("{path}: {name} builds a key without a row"));
        }
    }
    faults
}

/// The public methods here that build a key.
fn written_builders(code: &[Token]) -> impl Iterator<Item = &str> {
    let functions = code.windows(2).enumerate();
    let public = functions.filter(|(_, head)| head[0].is("pub") && head[1].is("fn"));
    public.filter_map(|(at, _)| {
        let head = code[at + 1..].split(|token| token.is("{")).next()?;
        // `-> Vec<u8>`, and not an option of it.
        let builds = head.windows(2).any(|pair| pair[0].is(">") && pair[1].is("Vec"))
            && head.iter().any(|token| token.is("self"))
            // A key space builds keys of any kind for commands. A controller that writes one fails the check, since nothing
            // near the write says which key that is.
            && !head.iter().any(|token| token.is("Keys"));
        head.get(1).and_then(Token::word).filter(|_| builds)
    })
}

/// The builders that `key_space!(SPACE, "/folder/", "Kind", builder, …)` defines here.
fn defined_builders(code: &[Token]) -> impl Iterator<Item = &str> {
    let uses = code.windows(4).enumerate().filter(|(_, head)| {
        head[0].is("key_space") && head[1].is("!") && head[2].is("(") && !head[3].is("@")
    });
    uses.filter_map(|(at, _)| {
        let names = expression(&code[at + 3..], ";");
        names.iter().filter_map(Token::word).nth(1)
    })
}

/// The writers in the code, and the writes of controllers whose key is not known.
fn found(files: &Files) -> (Writers, Vec<String>) {
    let (mut found, mut unknown) = (Writers::new(), Vec::new());
    for (path, file) in files.product() {
        let folder = path
            .trim_start_matches("src/")
            .split('/')
            .next()
            .unwrap_or_default();
        // The parts that carry out whatever their callers build.
        let carries_out = ["store", "etcd"].contains(&folder);
        let transactions = ["Txn", "Unit"]
            .iter()
            .any(|name| file.code.iter().any(|token| token.is(name)));
        if carries_out || !transactions {
            continue;
        }
        for (at, argument) in writes(&file.code).filter(|(_, argument)| !argument.is_empty()) {
            let mut keys = keys_of(&file.code, at, argument);
            if keys.is_empty() {
                let read = READ_BEFORE.iter().filter(|(file, _)| *file == path);
                keys.extend(read.map(|(_, key)| *key));
            }
            if keys.is_empty() && is_controller(folder) {
                let said: Vec<&str> = argument.iter().filter_map(Token::word).collect();
                unknown.push(format!(
                    "{path} writes to the key {:?}, which nothing near it builds",
                    said.join(".")
                ));
            }
            for key in keys {
                found.entry(key.to_owned()).or_default().insert(folder.to_owned());
            }
        }
    }
    (found, unknown)
}

/// The first arguments of all calls that write, and where they stand.
fn writes(code: &[Token]) -> impl Iterator<Item = (usize, &[Token])> {
    let calls = code.windows(3).enumerate().filter(|(_, call)| {
        call[0].is(".") && WRITES.iter().any(|write| call[1].is(write)) && call[2].is("(")
    });
    calls.map(|(at, _)| (at, expression(&code[at + 3..], ",")))
}

/// The code up to `end`, or up to the bracket that closes what is around it.
fn expression<'a>(code: &'a [Token], end: &str) -> &'a [Token] {
    let mut depth = 0;
    let length = code.iter().position(|token| {
        match token {
            Token::Mark('(' | '[' | '{') => depth += 1,
            Token::Mark(')' | ']' | '}') => depth -= 1,
            _ => {}
        }
        depth < 0 || depth == 0 && token.is(end)
    });
    &code[..length.unwrap_or(code.len())]
}

/// The methods of `Keys` that build the key in `argument`, which stands at `at`.
fn keys_of(code: &[Token], at: usize, argument: &[Token]) -> BTreeSet<&'static str> {
    let built = builders(code, argument);
    let variable = argument.iter().find_map(Token::word);
    let (true, Some(variable)) = (built.is_empty(), variable) else {
        return built;
    };
    // The last `let` of this function that binds the variable.
    let begin = code[..at].iter().rposition(|token| token.is("fn")).unwrap_or(0);
    let lets = (begin..at).rev().filter(|at| code[*at].is("let"));
    let bound = lets.map(|at| &code[at + 1..]).find_map(|rest| {
        let pattern = rest.split(|token| token.is("=")).next()?;
        pattern
            .iter()
            .any(|token| token.is(variable))
            .then(|| expression(&rest[pattern.len()..], ";"))
    });
    bound.map_or(built, |value| builders(code, value))
}

/// The body of the function that begins here; its parameters may have braces of their own.
fn body(function: &[Token]) -> &[Token] {
    let mut depth = 0;
    let brace = function.iter().position(|token| {
        match token {
            Token::Mark('(') => depth += 1,
            Token::Mark(')') => depth -= 1,
            _ => {}
        }
        depth == 0 && token.is("{")
    });
    let begin = brace.map_or(function.len(), |brace| brace + 1);
    expression(&function[begin..], "}")
}

/// The methods of `Keys` that an expression calls, itself or by a method of the same file.
fn builders(code: &[Token], expression: &[Token]) -> BTreeSet<&'static str> {
    let called = |expression: &[Token], object: &str| -> Vec<String> {
        let calls = expression.windows(4).filter(|call| {
            // `keys.node(` and `keys().node(`
            (call[0].is(object) || call[0].is(")")) && call[1].is(".") && call[3].is("(")
        });
        calls
            .filter_map(|call| call[2].word().map(str::to_owned))
            .collect()
    };
    let known = |names: Vec<String>| -> BTreeSet<&'static str> {
        let known = KEYS.iter().map(|(builder, _)| *builder);
        known
            .filter(|builder| names.iter().any(|name| name == builder))
            .collect()
    };
    let direct = match expression.iter().any(|token| token.is("keys")) {
        true => known(called(expression, "keys")),
        false => BTreeSet::new(),
    };
    if !direct.is_empty() {
        return direct;
    }
    let own = called(expression, "self");
    let methods = code
        .windows(2)
        .enumerate()
        .filter(|(_, head)| head[0].is("fn") && own.iter().any(|name| head[1].is(name)));
    methods
        .flat_map(|(at, _)| {
            let body = body(&code[at..]);
            known(called(body, "keys"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(change: impl Fn(&str) -> &'static str) -> String {
        let rows = KEYS.map(|(builder, shown)| format!("| `{shown}` | value | {} |\n", change(builder)));
        format!(
            "## Keys\n| key | value | in |\n| --- | --- | --- |\n{}\ntext",
            rows.concat()
        )
    }

    fn faults(of_node: &'static str, files: &[(&str, &str)]) -> Vec<String> {
        differences(
            &table(|builder| if builder == "node" { of_node } else { "" }),
            &Files::of(files),
        )
    }

    const WRITES_NODE: [&str; 5] = [
        "fn f() { Txn::new().put(&self.store.keys.node(&name), value) }",
        "fn f() { let key = keys.node(name); Txn::new().when_absent(&key).put_leased(&key, v, l) }",
        "fn f() { let (a, key) = (1, self.keys().node(name)); Unit::new().delete(key.clone(), revision) }",
        "fn f(t: Txn) { t.delete(&self.key(name)) } fn key(&self, Ref { name }: &Ref) -> Vec<u8> { { self.keys.node(name) } }",
        "fn g() { let key = keys.task(x); } fn f(t: Txn) { let key = keys\n.node(name); t\n.put(&key, value) }",
    ];

    #[test]
    fn a_write_that_the_table_does_not_say_is_found() {
        for text in WRITES_NODE {
            assert_eq!(
                faults("`roles/`", &[("src/roles/act.rs", text)]),
                [""; 0],
                "{text}"
            );
            assert_eq!(
                faults(
                    "`roles/`",
                    &[("src/roles/act.rs", text), ("src/volumes/act.rs", text)]
                ),
                ["volumes/ writes /nodes/<name>, which the table does not say"],
                "{text}"
            );
        }
    }

    #[test]
    fn compares_and_reads_are_no_writes() {
        for text in [
            "fn f(t: Txn) { let key = keys.node(n); t.when_absent(&key) } // t.put(&keys.node(n), v)",
            "fn f(t: Txn) { get(&keys.node(n)) }",
            // No transaction: an index.
            "fn f() { self.put(&keys.node(n)) }",
            "fn f(t: Txn) { self.delete().await }",
        ] {
            assert_eq!(faults("", &[("src/volumes/act.rs", text)]), [""; 0], "{text}");
        }
    }

    #[test]
    fn a_writer_that_does_not_write_and_a_second_one_are_found() {
        let says = "the table says that roles/ writes /nodes/<name>, which it does not";
        assert_eq!(faults("`roles/`", &[("src/roles/act.rs", "")]), [says]);
        let both = [
            ("src/roles/act.rs", WRITES_NODE[0]),
            ("src/volumes/act.rs", WRITES_NODE[0]),
        ];
        let found = faults("`roles/` `volumes/` `cli/`", &both);
        assert_eq!(
            found,
            [r#"/nodes/<name> has several writers: {"cli", "roles", "volumes"}"#]
        );
    }

    #[test]
    fn a_controllers_write_to_an_unknown_key_is_found() {
        let text = "fn f(t: Txn) { t.put(&stored.key, value) }";
        assert_eq!(
            faults("", &[("src/roles/act.rs", text), ("src/cli/act.rs", text)]),
            [r#"src/roles/act.rs writes to the key "stored.key", which nothing near it builds"#]
        );
    }

    #[test]
    fn a_key_without_a_row_and_a_row_without_a_key_are_found() {
        let keys =
            "impl Keys { pub fn ghost(&self, name: &Name) -> Vec<u8> { } pub fn node(&self) -> Vec<u8> { } }";
        assert_eq!(
            faults("", &[("src/store/keys/node.rs", keys)]),
            ["src/store/keys/node.rs: ghost builds a key without a row"]
        );
        let spaces = "key_space!(GHOSTS, \"/ghosts/\", \"Ghost\", ghost, ghosts, parse_ghost); \
                      key_space!(NODES, \"/nodes/\", \"Node\", node, nodes, parse_node);";
        assert_eq!(
            faults("", &[("src/store/keys/ghost.rs", spaces)]),
            ["src/store/keys/ghost.rs: ghost builds a key without a row"]
        );
        let wrong = table(|_| "").replace("/nodes/<name>`", "/knots/<name>`");
        assert_eq!(
            differences(&wrong, &Files::of(&[])),
            [
                "the table has a row for /knots/<name>, which no method of Keys builds",
                "the table has no row for /nodes/<name>"
            ]
        );
    }
}
