//! Random numbers that a seed repeats.

/// A small generator (splitmix64). The same seed gives the same numbers.
pub struct SeededRng(pub u64);

impl SeededRng {
    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// The seed in `QUORATE_TEST_SEED`, or one from the clock. Prints it, so that the run can be repeated.
pub fn seed() -> u64 {
    let seed = std::env::var("QUORATE_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            // The clock is after 1970.
            now.unwrap_or_default().as_secs()
        });
    eprintln!("QUORATE_TEST_SEED={seed} repeats this run");
    seed
}
