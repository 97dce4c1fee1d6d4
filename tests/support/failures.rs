//! Failures are printed when they happen, not only once the last test has ended: a complete run takes half an hour, and what
//! reads along may see its middle alone.

use std::io::{Write, stderr};
use std::panic;
use std::sync::Once;
use std::thread;

/// From now on a test that panics prints its name, the place and the message at once, beside what the test harness collects.
pub fn print_at_once() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let collected = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            let test = thread::current().name().unwrap_or("?").to_owned();
            // Not by `eprintln!`, which the harness collects.
            let _ = writeln!(stderr(), "{test}: {panic}");
            collected(panic);
        }));
    });
}
