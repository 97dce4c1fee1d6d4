//! Modules that say of themselves that they are pure: a sentence of their documentation begins with "Pure". It holds for
//! their parts, too.

use super::source::{File, Files, Token};

/// What a pure module does not name, and what a plan must be able to say.
const IMPURE: [&str; 21] = [
    "async",
    "await",
    "tokio",
    "etcd_client",
    "KubeClient",
    "tonic",
    "tracing",
    "std::env",
    "std::fs",
    "TcpStream",
    "TcpListener",
    "ToSocketAddrs",
    "std::process",
    "std::thread",
    "std::io::stdout",
    "Instant::now",
    "Instant::elapsed",
    "SystemTime",
    "Timestamp::now",
    "println",
    "eprintln",
];

/// The files of all modules that say they are pure, with their parts.
pub fn pure_modules(files: &Files) -> Vec<&str> {
    let claims = files
        .iter()
        .filter(|(_, file)| says_pure(file))
        .map(|(path, _)| path);
    let claims: Vec<&str> = claims.collect();
    let pure = files.product().map(|(path, _)| path);
    pure.filter(|path| claims.iter().any(|claim| is_part(path, claim)))
        .collect()
}

/// What pure modules name and must not, and plans that do not say they are pure.
pub fn impurities(files: &Files) -> Vec<String> {
    let pure = pure_modules(files);
    let mut faults = Vec::new();
    for (path, file) in files.product() {
        let is_pure = pure.contains(&path);
        if is_pure {
            let found = IMPURE.iter().filter(|name| names(&file.code, name));
            faults.extend(found.map(|name| format!("{path} says it is pure, but names {name}")));
        }
        let is_plan = path.ends_with("/plan.rs") || path.ends_with("/plan/mod.rs");
        if is_plan && !is_pure {
            faults.push(format!("{path} does not say that it is pure"));
        }
    }
    faults
}

fn says_pure(file: &File) -> bool {
    let lines = file.text.lines().map_while(|line| line.strip_prefix("//!"));
    let text = lines.collect::<Vec<_>>().join(" ");
    let mut sentences = text.split(". ").map(str::trim_start);
    sentences.any(|sentence| {
        let rest = sentence.strip_prefix("Pure");
        rest.is_some_and(|rest| rest.starts_with(['.', ':', ',', ';']) || rest.is_empty())
    })
}

/// Whether a file is the module of `claim`, or a part of it.
fn is_part(path: &str, claim: &str) -> bool {
    let folder = claim
        .strip_suffix("/mod.rs")
        .or_else(|| claim.strip_suffix(".rs"));
    path == claim || folder.is_some_and(|folder| path.starts_with(&format!("{folder}/")))
}

/// Whether the code says this path of names.
fn names(code: &[Token], path: &str) -> bool {
    let wanted: Vec<&str> = path.split("::").collect();
    code.windows(2 * wanted.len() - 1).any(|window| {
        let (words, marks): (Vec<_>, Vec<_>) = window.iter().enumerate().partition(|(at, _)| at % 2 == 0);
        words.iter().zip(&wanted).all(|((_, token), name)| token.is(name))
            && marks.iter().all(|(_, token)| token.is("::"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        impurities(&Files::of(&[("src/a/rule.rs", text)]))
    }

    #[test]
    fn each_impure_name_is_found_in_a_module_that_says_it_is_pure() {
        for name in IMPURE {
            let text = format!("//! Decides.\n//! Pure: facts in, a step out.\nfn f() {{ x({name}(1)) }}");
            assert_eq!(
                faults(&text),
                [format!("src/a/rule.rs says it is pure, but names {name}")]
            );
        }
    }

    #[test]
    fn comments_unit_tests_and_modules_that_claim_nothing_may_name_them() {
        let code = "/// Like tokio::time.\nfn f() {}\n#[cfg(test)]\nmod tests { use std::fs; }";
        assert_eq!(faults(&format!("//! Decides. Pure.\n{code}")), [""; 0]);
        assert_eq!(
            faults("//! Asks a pure plan. Purely technical.\nasync fn f() {}"),
            [""; 0]
        );
    }

    #[test]
    fn the_claim_of_a_module_holds_for_its_parts() {
        for claim in ["src/a/plan.rs", "src/a/plan/mod.rs"] {
            let files = Files::of(&[
                (claim, "//! Pure.\nmod part;"),
                ("src/a/plan/part.rs", "async fn f() {}"),
                ("src/a/plane.rs", "async fn f() {}"),
            ]);
            assert_eq!(
                impurities(&files),
                ["src/a/plan/part.rs says it is pure, but names async"]
            );
            assert_eq!(pure_modules(&files).len(), 2);
        }
    }

    #[test]
    fn a_plan_that_does_not_say_it_is_pure_is_found() {
        let files = Files::of(&[("src/a/plan.rs", "//! Decides.")]);
        assert_eq!(impurities(&files), ["src/a/plan.rs does not say that it is pure"]);
    }
}
