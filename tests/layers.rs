//! The rules of ARCHITECTURE.md that the compiler does not know.
//!
//! Each rule is a function from a set of files to the faults in it. It runs over the repository here, and over a set of
//! broken files beside the rule, where it has to find them.

mod declared;
mod floors;
mod imports;
mod libraries;
mod mutations;
mod purity;
mod secrets;
mod sizes;
pub mod source;
mod unfenced;
mod words;
mod writers;

use quorate_dev::workspace::root;
use source::Files;

/// Fails with the faults, a line each.
#[track_caller]
fn assert_none(faults: Vec<String>) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn nothing_imports_a_higher_floor() {
    let files = Files::below(&["src"]);
    assert_none(floors::imports_upwards(&files));
}

#[test]
fn the_table_of_the_architecture_names_these_floors() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    assert_none(floors::differences(&text));
}

#[test]
fn the_imports_are_free_of_circles() {
    for crate_root in ["src", "dev/src"] {
        assert_none(imports::circles(&Files::below(&[crate_root])));
    }
}

#[test]
fn a_module_that_says_it_is_pure_touches_no_io_no_runtime_and_no_clock() {
    let files = Files::below(&["src"]);
    assert_none(purity::impurities(&files));
    let pure = purity::pure_modules(&files);
    assert!(pure.len() >= 30, "fewer modules than before say so: {pure:#?}");
}

#[test]
fn each_outside_library_is_named_in_its_place() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert_none(libraries::misplaced(&manifest, &Files::below(&["src"])));
}

#[test]
fn a_guard_is_taken_out_only_by_a_build_for_that_alone() {
    let files = Files::below(&["src"]);
    assert_none(mutations::misplaced(&files));
    let table = std::fs::read_to_string(root().join("chaos/src/mutations.rs")).unwrap();
    assert_none(mutations::unlisted(&files, &table));
}

#[test]
fn only_the_owners_of_leases_and_commands_write_without_a_fence() {
    assert_none(unfenced::writes(&Files::below(&["src", "dev/src"])));
}

#[test]
fn a_key_has_one_writer_among_the_controllers_which_the_architecture_names() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    assert_none(writers::differences(&text, &Files::below(&["src"])));
}

#[test]
fn no_function_is_longer_than_80_lines_or_nested_deeper_than_5() {
    assert_none(sizes::excesses(&Files::below(&["src", "dev/src"])));
}

#[test]
fn no_message_with_a_secret_value_can_be_printed() {
    let protos = std::fs::read_dir(root().join("proto/quorate/v1")).unwrap();
    let read = |entry: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(entry.unwrap().path());
    let protos: Vec<String> = protos.map(|entry| read(entry).unwrap()).collect();
    let build = std::fs::read_to_string(root().join("build.rs")).unwrap();
    assert_none(secrets::printable(&protos, &build));
}

#[test]
fn every_file_is_part_of_a_crate() {
    let files = Files::below(&["src", "dev/src", "fuzz/src", "tests", "benches"]);
    assert_none(declared::undeclared(&files));
}

#[test]
fn the_prose_is_free_of_a_dialect() {
    let mut found = Vec::new();
    for place in [
        "src",
        "dev",
        "fuzz",
        "tests",
        "benches",
        "examples",
        "proto",
        "deploy",
        "docs",
        "README.md",
        "ARCHITECTURE.md",
    ] {
        words::texts(root(), place, &mut found);
    }
    // It lists them.
    found.retain(|(path, _)| path != "tests/layers/words.rs");
    assert!(found.len() > 500, "only {} texts were read", found.len());
    assert_none(words::said(found.iter().map(|(path, text)| (&**path, &**text))));
}
