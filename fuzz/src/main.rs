//! The engine: libFuzzer, which looks for inputs that reach other code than those before.
//!
//! `quorate-fuzz --target=NAME` takes the flags of libFuzzer; `quorate-fuzz --list` prints the targets, each with the longest input.

// The engine is C++: it calls a function here, and is called. And the allocator counts.
#![allow(unsafe_code)]

mod allocator;

use std::ffi::{CString, c_char, c_int};
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::OnceLock;

// Links the engine.
use libfuzzer_sys as _;
use quorate_fuzz::{TARGETS, Target};

static TARGET: OnceLock<&'static Target> = OnceLock::new();

unsafe extern "C" {
    /// `FuzzerInterface.h` of LLVM. Takes the arguments of a program and runs it to its end.
    fn LLVMFuzzerRunDriver(
        argc: *mut c_int,
        argv: *mut *mut *mut c_char,
        test_one: unsafe extern "C" fn(*const u8, usize) -> c_int,
    ) -> c_int;
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|first| first == "--list") {
        let mut out = std::io::stdout();
        for target in TARGETS {
            let of = if target.is_of_etcd { "etcd" } else { "others" };
            let line = writeln!(out, "{} {of} {}", target.name, target.longest);
            if line.is_err() {
                return ExitCode::FAILURE;
            }
        }
        return ExitCode::SUCCESS;
    }
    let named = arguments
        .iter()
        .find_map(|argument| argument.strip_prefix("--target="));
    let Some(target) = named.and_then(Target::find) else {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        let said = format!("error: expected --target=NAME, one of {}\n", names.join(" "));
        _ = std::io::stderr().write_all(said.as_bytes());
        return ExitCode::from(64);
    };
    TARGET.get_or_init(|| target);
    // What is made once and kept is made now.
    (target.run)(b"");
    drive(arguments)
}

/// Gives the arguments to libFuzzer, which passes over those with two dashes.
fn drive(arguments: Vec<String>) -> ExitCode {
    // An argument comes from a C string, so there is no zero in it.
    let arguments: Vec<CString> = arguments
        .into_iter()
        .filter_map(|argument| CString::new(argument).ok())
        .collect();
    let mut pointers: Vec<*mut c_char> = arguments
        .iter()
        .map(|argument| argument.as_ptr().cast_mut())
        .collect();
    let mut count = c_int::try_from(pointers.len()).unwrap_or(c_int::MAX);
    pointers.push(std::ptr::null_mut());
    let mut argv = pointers.as_mut_ptr();
    // SAFETY: as `main` of C has them, `count` pointers to strings with a zero at their ends, then a null pointer; all of it lives
    // until the call has returned. libFuzzer does not write to the strings.
    let code = unsafe { LLVMFuzzerRunDriver(&raw mut count, &raw mut argv, test_one) };
    match code {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Runs one input. A panic ends the process, since it may not go on into C++: libFuzzer then keeps the input.
unsafe extern "C" fn test_one(data: *const u8, length: usize) -> c_int {
    let input = match length {
        0 => &[],
        // SAFETY: libFuzzer passes that many bytes, and writes to none of them during the call.
        _ => unsafe { std::slice::from_raw_parts(data, length) },
    };
    if let Some(target) = TARGET.get() {
        allocator::bounded(length, || (target.run)(input));
    }
    0
}
