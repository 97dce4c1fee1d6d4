//! The fuzz targets over the corpora that runs of the engine have left (`make fuzz`). No engine runs here.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use quorate_dev::workspace::root;
use quorate_fuzz::{TARGETS, Target};

/// What one input may take: a build without optimization on a busy machine, far below what an input that hangs takes.
const MOST_TIME: Duration = Duration::from_secs(10);

/// What all corpora may take of the repository, in bytes.
const MOST_BYTES: u64 = 600 << 10;

/// The inputs of a target, in the order of their names.
fn corpus(target: &Target) -> Vec<PathBuf> {
    let folder = root().join("fuzz/corpus").join(target.name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn every_input_of_the_corpora_keeps_the_promises_of_its_target() {
    let mut faults = Vec::new();
    for target in TARGETS {
        let files = corpus(target);
        assert!(files.len() >= 4, "{} has {} inputs", target.name, files.len());
        for file in files {
            let input = fs::read(&file).unwrap();
            let begun = Instant::now();
            let run = catch_unwind(AssertUnwindSafe(|| (target.run)(&input)));
            let took = begun.elapsed();
            if run.is_err() || took > MOST_TIME {
                faults.push(format!("{} with {} ({took:?})", target.name, file.display()));
            }
        }
    }
    assert!(
        faults.is_empty(),
        "these break a promise, see above:\n{}",
        faults.join("\n")
    );
}

#[test]
fn no_bytes_and_long_inputs_keep_the_promises_of_every_target() {
    for target in TARGETS {
        (target.run)(b"");
        for byte in [0, b'\n', b'-', b'[', b'a', 0x80, 0xff] {
            (target.run)(&[byte; 3000]);
        }
    }
}

#[test]
fn each_corpus_is_that_of_a_target_and_all_are_small() {
    let folders = fs::read_dir(root().join("fuzz/corpus")).unwrap();
    for folder in folders.map(|folder| folder.unwrap().file_name()) {
        let name = folder.to_str().unwrap();
        assert!(Target::find(name).is_some(), "there is no target {name}");
    }
    let files = TARGETS.iter().flat_map(corpus);
    let bytes: u64 = files.map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!(bytes <= MOST_BYTES, "the corpora have {bytes} bytes");
}
