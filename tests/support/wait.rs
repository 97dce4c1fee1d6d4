//! Waiting on conditions.

use std::time::{Duration, Instant};

/// The limit of everything that happens within a moment on an idle machine: the other tests keep it busy. A limit alone: no test
/// is faster or slower for it, unless it fails.
pub const SOON: Duration = Duration::from_secs(60);

/// How long a test looks at what has to stay as it is. Too short a look lets a fault pass, and fails no sound code.
pub const QUIET: Duration = Duration::from_secs(3);

/// Repeats `ask` until it answers `Ok`, and returns that answer. Panics with the last error after `limit`.
pub async fn eventually<T, S: std::fmt::Display>(
    limit: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> Result<T, S>,
) -> T {
    let begun = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(seen) if begun.elapsed() >= limit => {
                panic!("{what}: not within {limit:?}; last seen: {seen}")
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Looks for this long at what has to stay as it is. Panics with the first error.
pub async fn stays<T, S: std::fmt::Display>(
    time: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Result<T, S>,
) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        if let Err(seen) = look().await {
            panic!("{what}: not after {:?}; seen: {seen}", begun.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until a value grows from one look to the next: the time that a lease has left shrinks until it is renewed.
pub async fn grows<T: PartialOrd>(what: &str, mut look: impl AsyncFnMut() -> T) {
    let mut last = look().await;
    eventually(SOON, what, async || {
        let before = std::mem::replace(&mut last, look().await);
        if last > before {
            Ok(())
        } else {
            Err("it has not grown")
        }
    })
    .await;
}

/// For [`eventually`]: Ok if the two are equal; the error shows both.
pub fn same<T: PartialEq + std::fmt::Debug>(seen: T, wanted: T) -> Result<T, String> {
    if seen == wanted {
        Ok(seen)
    } else {
        Err(format!("{seen:?} instead of {wanted:?}"))
    }
}
