//! Waiting on conditions.

use std::time::{Duration, Instant};

/// Long enough for anything that happens at once, on a machine that is busy with other tests.
pub const SOON: Duration = Duration::from_secs(30);

/// Asks again and again until the answer is `Ok`, and returns it. Panics with what was seen last if that takes
/// longer than `limit`.
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

/// For [`eventually`]: Ok if the two are equal, else says what was seen.
pub fn same<T: PartialEq + std::fmt::Debug>(seen: T, wanted: T) -> Result<T, String> {
    if seen == wanted {
        Ok(seen)
    } else {
        Err(format!("{seen:?} instead of {wanted:?}"))
    }
}
