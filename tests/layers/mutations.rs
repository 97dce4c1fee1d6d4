//! Guards that a build for the checker of `chaos/` takes out: nothing of that is in any other build.

use super::source::{Files, Token};

const HOME: &str = "src/mutation.rs";

/// The words that only [`HOME`] says: the condition of the build, and the variable by which a process chooses.
const OWN: [&str; 2] = ["quorate_mutations", "QUORATE_MUTATION"];

/// The most places at which a guard is taken out: one, or two where a guard begins at one and ends at another.
const PLACES: usize = 2;

/// Files that say what [`HOME`] alone says, what is compiled there without the condition, and guards that no place or too many
/// take out.
pub fn misplaced(files: &Files) -> Vec<String> {
    let mut faults = Vec::new();
    for (path, file) in files.iter().filter(|(path, _)| *path != HOME) {
        let said = OWN.iter().filter(|word| file.text.contains(**word));
        faults.extend(said.map(|word| format!("{path} says {word}, which {HOME} alone does")));
    }
    let home = files.iter().find(|(path, _)| *path == HOME);
    let text = home.map_or("", |(_, file)| file.text.as_str());
    if !text
        .contains("#[cfg(not(quorate_mutations))]\npub const fn without(_: Guard) -> bool {\n    false\n}")
    {
        faults.push(format!(
            "{HOME}: without the condition, `without` has to be the constant false"
        ));
    }
    let common = text
        .split("#[cfg(quorate_mutations)]\nmod chosen")
        .next()
        .unwrap_or_default();
    if common.contains("std::env") || common.contains(OWN[1]) {
        faults.push(format!("{HOME} reads the environment in every build"));
    }
    for guard in guards(text) {
        let places = files.product().filter(|(path, _)| *path != HOME);
        let uses: usize = places.map(|(_, file)| uses(&file.code, guard)).sum();
        if uses == 0 || uses > PLACES {
            faults.push(format!("Guard::{guard} is taken out at {uses} places"));
        }
    }
    faults
}

/// Guards that the table of the mutations does not list.
pub fn unlisted(files: &Files, table: &str) -> Vec<String> {
    let home = files.iter().find(|(path, _)| *path == HOME);
    let guards = guards(home.map_or("", |(_, file)| file.text.as_str()));
    let missing = guards.filter(|guard| !table.contains(&format!("\"{guard}\"")));
    missing
        .map(|guard| format!("chaos/src/mutations.rs does not list {guard}"))
        .collect()
}

/// The variants of the enum.
fn guards(text: &str) -> impl Iterator<Item = &str> {
    let body = text.split_once("pub enum Guard {").map_or("", |(_, body)| body);
    let body = body.split_once('}').map_or("", |(body, _)| body);
    body.lines()
        .filter_map(|line| line.trim().strip_suffix(','))
        .filter(|name| !name.starts_with("//"))
}

fn uses(code: &[Token], guard: &str) -> usize {
    let is_use = |window: &&[Token]| window[0].is("Guard") && window[1].is("::") && window[2].is(guard);
    code.windows(3).filter(is_use).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "pub enum Guard {\n    /// The fence, of all writes,\n    Fence,\n}\n\
        #[cfg(not(quorate_mutations))]\npub const fn without(_: Guard) -> bool {\n    false\n}\n\
        #[cfg(quorate_mutations)]\nmod chosen { fn f() { std::env::var(\"QUORATE_MUTATION\"); } }";

    #[test]
    fn a_guard_at_its_place_passes_and_one_that_no_place_takes_out_is_found() {
        let used = "fn f() { if mutation::without(Guard::Fence) {} }";
        assert!(misplaced(&Files::of(&[(HOME, SOUND), ("src/a.rs", used)])).is_empty());
        let found = misplaced(&Files::of(&[(HOME, SOUND), ("src/a.rs", "fn f() {}")]));
        assert_eq!(found, ["Guard::Fence is taken out at 0 places"]);
    }

    #[test]
    fn the_condition_and_the_variable_are_found_elsewhere_and_in_the_common_part() {
        let used = "#[cfg(quorate_mutations)] fn f() { Guard::Fence; }";
        let found = misplaced(&Files::of(&[(HOME, SOUND), ("src/a.rs", used)]));
        assert_eq!(
            found,
            ["src/a.rs says quorate_mutations, which src/mutation.rs alone does"]
        );
        let open = SOUND.replace("    false\n", "    std::env::var(\"X\").is_ok()\n");
        let used = "fn f() { Guard::Fence; }";
        assert_eq!(
            misplaced(&Files::of(&[(HOME, &open), ("src/a.rs", used)])).len(),
            2
        );
    }

    #[test]
    fn a_guard_without_a_row_in_the_table_is_found() {
        let files = Files::of(&[(HOME, SOUND)]);
        assert!(unlisted(&files, "(\"Fence\", 1)").is_empty());
        assert_eq!(unlisted(&files, "").len(), 1);
    }
}
