//! Which file imports which, read from the code: `use`, and paths that name another module.
//!
//! An import counts for the file that defines the name. What a module re-exports from its own parts (`pub use part::Name`)
//! is handed on: an import of it from the module is an import of the part.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{File, Files, Token};

/// Files that each file imports.
pub type Graph<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// A `use`, or one of the names in its braces.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Import {
    path: Vec<String>,
    /// What the code calls it; `*` for everything in a module.
    name: String,
    public: bool,
}

/// A module that has a file of its own.
struct Module<'a> {
    file: &'a str,
    /// From the crate's root.
    path: Vec<String>,
    imports: Vec<Import>,
    /// Names of the items at its top level.
    items: BTreeSet<String>,
    code: &'a [Token],
}

/// The modules of one crate.
struct Crate<'a>(BTreeMap<Vec<String>, Module<'a>>);

/// The imports between the files of one crate, its `main.rs` left out.
pub fn graph(files: &Files) -> Graph<'_> {
    let modules = files.product().filter_map(|(path, file)| module(path, file));
    let whole = Crate(modules.map(|module| (module.path.clone(), module)).collect());
    let graph = whole
        .0
        .values()
        .map(|module| (module.file, whole.imported_by(module)));
    graph.collect()
}

/// The circles of a crate, each with the imports that close it. A part may name what its module defines beside it: that
/// closes none.
pub fn circles(files: &Files) -> Vec<String> {
    let mut graph = graph(files);
    for (file, imported) in &mut graph {
        imported.retain(|other| !is_part(file, other));
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> = graph
        .keys()
        .map(|file| (*file, reachable(&graph, file)))
        .collect();
    let (mut shown, mut faults) = (BTreeSet::new(), Vec::new());
    for (file, above) in &reached {
        if !above.contains(file) || shown.contains(file) {
            continue;
        }
        let circle: BTreeSet<&str> = above
            .iter()
            .filter(|other| reached[**other].contains(file))
            .copied()
            .collect();
        let mut lines = vec![format!("a circle of {} files:", circle.len())];
        for member in &circle {
            let ties: Vec<&str> = graph[member].intersection(&circle).copied().collect();
            lines.push(format!("  {member} imports {}", ties.join(", ")));
        }
        shown.extend(circle);
        faults.push(lines.join("\n"));
    }
    faults
}

/// Whether `file` is a part of the module of `other`.
fn is_part(file: &str, other: &str) -> bool {
    let folder = other
        .strip_suffix("/mod.rs")
        .or_else(|| other.strip_suffix(".rs"));
    folder.is_some_and(|folder| file.starts_with(&format!("{folder}/")))
}

/// All that a file imports, and what that imports, and so on.
fn reachable<'a>(graph: &Graph<'a>, from: &str) -> BTreeSet<&'a str> {
    let (mut reached, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(file) = left.pop() {
        for next in graph.get(file).into_iter().flatten() {
            if reached.insert(*next) {
                left.push(next);
            }
        }
    }
    reached
}

fn module<'a>(file: &'a str, source: &'a File) -> Option<Module<'a>> {
    let (_, inner) = file.split_once("src/")?;
    let mut path: Vec<String> = inner
        .trim_end_matches(".rs")
        .split('/')
        .map(str::to_owned)
        .collect();
    match path.last()?.as_str() {
        "main" if path.len() == 1 => return None,
        "lib" if path.len() == 1 => path.clear(),
        "mod" => _ = path.pop(),
        _ => {}
    }
    Some(Module {
        file,
        path,
        imports: imports(&source.code),
        items: items(&source.code),
        code: &source.code,
    })
}

/// Every `use` at any depth.
fn imports(code: &[Token]) -> Vec<Import> {
    let mut found = Vec::new();
    for (at, token) in code.iter().enumerate() {
        // `impl Trait + use<'a>` captures lifetimes.
        if token.is("use") && !code.get(at + 1).is_some_and(|next| next.is("<")) {
            let public = at > 0 && (code[at - 1].is("pub") || code[at - 1].is(")"));
            names(&code[at + 1..], &mut 0, &[], public, &mut found);
        }
    }
    found
}

/// Reads one tree of a `use`: `a::b`, `a::b as c`, `a::*` or `a::{…}`.
fn names(code: &[Token], at: &mut usize, above: &[String], public: bool, found: &mut Vec<Import>) {
    let mut path = above.to_vec();
    let mut name = None;
    while let Some(token) = code.get(*at) {
        *at += 1;
        match token {
            Token::Word(word) if word == "as" => {
                name = code.get(*at).and_then(Token::word).map(str::to_owned);
                *at += 1;
            }
            Token::Word(word) => path.push(word.clone()),
            Token::Mark('*') => name = Some("*".to_owned()),
            Token::Mark('{') => {
                while !code.get(*at).is_none_or(|token| token.is("}")) {
                    names(code, at, &path, public, found);
                }
                *at += 1;
                // The comma, or the end of the `use`, belongs to this tree.
                if code.get(*at).is_some_and(|token| token.is(",")) {
                    *at += 1;
                }
                return;
            }
            Token::Mark(',' | ';') => break,
            Token::Mark('}') => {
                *at -= 1;
                break;
            }
            _ => {}
        }
    }
    // `a::{self}` is `a`.
    if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
        path.pop();
    }
    let name = name.or_else(|| path.last().cloned()).unwrap_or_default();
    found.push(Import { path, name, public });
}

/// The names of the items at the top level.
fn items(code: &[Token]) -> BTreeSet<String> {
    const KINDS: [&str; 10] = [
        "fn",
        "struct",
        "enum",
        "trait",
        "type",
        "const",
        "static",
        "union",
        "mod",
        "macro_rules",
    ];
    let (mut depth, mut found) = (0, BTreeSet::new());
    for (at, token) in code.iter().enumerate() {
        match token {
            Token::Mark('{' | '(' | '[') => depth += 1,
            Token::Mark('}' | ')' | ']') => depth -= 1,
            Token::Word(kind) if depth == 0 && KINDS.contains(&kind.as_str()) => {
                // Past `!` of macro_rules and the `mut` of a static.
                let name = code[at + 1..]
                    .iter()
                    .filter_map(Token::word)
                    .find(|word| *word != "mut");
                // A module in a file of its own is no item of this one.
                let elsewhere = kind == "mod" && code.get(at + 2).is_some_and(|token| token.is(";"));
                if let (Some(name), false) = (name, elsewhere) {
                    found.insert(name.to_owned());
                }
            }
            _ => {}
        }
    }
    found
}

impl<'a> Crate<'a> {
    fn imported_by(&self, module: &Module<'a>) -> BTreeSet<&'a str> {
        let mut found = BTreeSet::new();
        for import in &module.imports {
            let Some(path) = self.absolute(module, &import.path) else {
                continue;
            };
            let own_part = import.public && path.starts_with(&module.path);
            if import.name == "*" {
                found.extend(self.module_at(&path).filter(|_| !own_part));
            } else if !own_part {
                found.extend(self.definer(&path, 0));
            }
        }
        for path in paths(module.code) {
            let path = match self.local(module, path[0].as_str()) {
                Some(start) => [start, path[1..].to_vec()].concat(),
                None => match self.absolute(module, &path) {
                    Some(path) => path,
                    None => continue,
                },
            };
            found.extend(self.definer(&path, 0));
        }
        found.remove(module.file);
        found
    }

    /// The path that a name of this module's own imports stands for, where that is within the crate.
    fn local(&self, module: &Module<'a>, name: &str) -> Option<Vec<String>> {
        let import = module.imports.iter().find(|import| import.name == name)?;
        self.absolute(module, &import.path)
    }

    /// A path from the crate's root, or none for one that leads out of the crate.
    fn absolute(&self, module: &Module<'a>, path: &[String]) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        let mut start = module.path.clone();
        match first.as_str() {
            "crate" => start.clear(),
            "self" => {}
            "super" => _ = start.pop(),
            child => {
                start.push(child.to_owned());
                // A part of this module, or a library.
                self.0.get(&start)?;
            }
        }
        let ups = rest.iter().take_while(|segment| *segment == "super").count();
        start.truncate(start.len().saturating_sub(ups));
        start.extend_from_slice(&rest[ups..]);
        Some(start)
    }

    fn module_at(&self, path: &[String]) -> Option<&'a str> {
        self.0.get(path).map(|module| module.file)
    }

    /// The file that defines what this path names; none for a module, which only what is named in it ties to.
    fn definer(&self, path: &[String], depth: usize) -> Option<&'a str> {
        let known = (0..=path.len())
            .rev()
            .find(|length| self.0.contains_key(&path[..*length]))?;
        let module = &self.0[&path[..known]];
        let name = path.get(known)?;
        if module.items.contains(name) || depth > 8 {
            return Some(module.file);
        }
        // Handed on from elsewhere, under its name or with everything else.
        let named = module.imports.iter().filter(|import| import.name == *name);
        let all = module
            .imports
            .iter()
            .filter(|import| import.name == "*" && import.public);
        for import in named.chain(all) {
            let Some(mut target) = self.absolute(module, &import.path) else {
                continue;
            };
            let skipped = known + usize::from(import.name != "*");
            target.extend_from_slice(&path[skipped..]);
            match self.definer(&target, depth + 1) {
                Some(file) => return Some(file),
                None if self.0.contains_key(&target) => return None,
                None => {}
            }
        }
        Some(module.file)
    }
}

/// The paths of two names and more in the code, those of `use` left out.
fn paths(code: &[Token]) -> Vec<Vec<String>> {
    let (mut at, mut found) = (0, Vec::new());
    while at < code.len() {
        if code[at].is("use") && !code.get(at + 1).is_some_and(|next| next.is("<")) {
            while at < code.len() && !code[at].is(";") {
                at += 1;
            }
            continue;
        }
        let Some(first) = code[at].word() else {
            at += 1;
            continue;
        };
        // `::name` leads out of the crate, `.name` is a field or method.
        let free = at == 0 || !(code[at - 1].is("::") || code[at - 1].is("."));
        let mut path = vec![first.to_owned()];
        at += 1;
        while code.get(at).is_some_and(|token| token.is("::"))
            && let Some(next) = code.get(at + 1).and_then(Token::word)
        {
            path.push(next.to_owned());
            at += 2;
        }
        if free && path.len() > 1 {
            found.push(path);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(files: &[(&str, &str)]) -> Vec<String> {
        let files = Files::of(files);
        let graph = graph(&files);
        let edges = graph
            .iter()
            .flat_map(|(from, to)| to.iter().map(move |to| format!("{from} -> {to}")));
        edges.collect()
    }

    #[test]
    fn a_name_that_is_handed_on_counts_for_the_file_that_defines_it() {
        let found = edges(&[
            ("src/lib.rs", "pub mod low; pub mod high;"),
            (
                "src/low/mod.rs",
                "mod part; pub use part::{Part, more::*}; pub struct Own;",
            ),
            (
                "src/low/part.rs",
                "use super::Own; pub struct Part; pub mod more { }",
            ),
            (
                "src/high.rs",
                "use crate::low::{self, Part as Piece}; fn f() { low::Own; }",
            ),
        ]);
        assert_eq!(
            found,
            [
                "src/high.rs -> src/low/mod.rs",
                "src/high.rs -> src/low/part.rs",
                "src/low/part.rs -> src/low/mod.rs"
            ]
        );
    }

    #[test]
    fn paths_in_the_code_count_without_a_use() {
        let found = edges(&[
            (
                "src/lib.rs",
                "mod a; mod b; mod c; mod proto { pub struct Message; }",
            ),
            (
                "src/a.rs",
                "fn f() { select! { x = crate::b::g() => super::c::C::new(), } std::b::x(); y.b::<u8>(); }",
            ),
            ("src/b.rs", "pub fn g() { crate::proto::Message; }"),
            (
                "src/c.rs",
                "pub struct C; #[cfg(test)] mod tests { use crate::a::f; }",
            ),
        ]);
        assert_eq!(
            found,
            [
                "src/a.rs -> src/b.rs",
                "src/a.rs -> src/c.rs",
                "src/b.rs -> src/lib.rs"
            ]
        );
    }

    #[test]
    fn a_circle_is_found_with_its_ties_and_a_line_is_none() {
        let line = [
            ("src/lib.rs", "mod a; mod b; mod c;"),
            ("src/a.rs", "use crate::b::B; pub struct A;"),
            ("src/b.rs", "use crate::c::C; pub struct B;"),
            ("src/c.rs", "pub struct C;"),
        ];
        assert_eq!(circles(&Files::of(&line)), [""; 0]);
        let mut closed = line;
        closed[3].1 = "pub struct C; fn f(a: &super::a::A) {}";
        let found = circles(&Files::of(&closed));
        assert_eq!(
            found,
            [
                "a circle of 3 files:\n  src/a.rs imports src/b.rs\n  src/b.rs imports src/c.rs\n  src/c.rs imports src/a.rs"
            ]
        );
    }

    #[test]
    fn a_module_and_its_parts_are_no_circle_unless_another_module_closes_it() {
        let module = [
            ("src/lib.rs", "mod a; mod b;"),
            (
                "src/a.rs",
                "mod part; mod other; pub struct A; fn f() { part::g() }",
            ),
            ("src/a/part.rs", "use super::A; pub fn g() {}"),
            ("src/a/other.rs", "use super::part::g;"),
            ("src/b.rs", "use crate::a::A; pub struct B;"),
        ];
        assert_eq!(circles(&Files::of(&module)), [""; 0]);
        let mut through_b = module;
        through_b[2].1 = "pub fn g() { crate::b::B }";
        assert_eq!(circles(&Files::of(&through_b)).len(), 1);
        let mut between_parts = module;
        between_parts[2].1 = "pub fn g() { super::other::h() }";
        assert_eq!(circles(&Files::of(&between_parts)).len(), 1);
    }
}
