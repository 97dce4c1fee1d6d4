//! How long a volume rests after a failure. Pure: whoever asks brings the randomness.

use std::time::Duration;

/// Doubles with every attempt.
const FIRST: Duration = Duration::from_millis(100);

/// No rest is longer.
pub const MOST: Duration = Duration::from_secs(600);

/// The attempt whose rest is the first of one that hardly goes better in a moment: 25.6 s.
const SLOW: u32 = 8;

/// How quickly something may go better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pace {
    /// In a moment.
    Quick,
    /// Hardly in a moment: the first rest is a long one.
    Slow,
}

/// The rest after the `failed`-th failure in a row, the first being 1: 100 ms · 2ⁿ, and up to a quarter more at random,
/// so that what failed together does not come back together. `random` is from 0 to 1.
pub fn rest(failed: u32, pace: Pace, random: f64) -> Duration {
    let attempt = match pace {
        Pace::Quick => failed,
        Pace::Slow => failed.saturating_add(SLOW - 1),
    };
    // Beyond 2³¹ steps of 100 ms the cap has long been reached; the shift is never out of range.
    let factor = 1_u32 << attempt.min(31);
    let jitter = 1.0 + 0.25 * random.clamp(0.0, 1.0);
    FIRST.saturating_mul(factor).mul_f64(jitter).min(MOST)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn calls_come_at_once_and_after_200_600_1400_3000_and_6200_milliseconds() {
        let mut at = Duration::ZERO;
        let mut times = vec![0];
        for failed in 1..=5 {
            at += rest(failed, Pace::Quick, 0.0);
            times.push(at.as_millis());
        }
        assert_eq!(times, [0, 200, 600, 1400, 3000, 6200]);
    }

    #[test]
    fn a_rest_is_up_to_a_quarter_longer_at_random() {
        let rests = [0.0, 0.4, 1.0].map(|random| rest(1, Pace::Quick, random).as_millis());
        assert_eq!(rests, [200, 220, 250]);
        let slow = [1, 2].map(|failed| rest(failed, Pace::Slow, 0.0).as_millis());
        assert_eq!(slow, [25_600, 51_200]);
    }

    #[test]
    fn the_largest_number_of_failures_rests_as_long_as_the_cap_and_no_longer() {
        for failed in [13, 31, 32, 33, 37, 56, 63, 64, 65, u32::MAX - 1, u32::MAX] {
            for pace in [Pace::Quick, Pace::Slow] {
                assert_eq!(rest(failed, pace, 1.0), MOST, "{failed}");
            }
        }
    }

    proptest! {
        #[test]
        fn every_rest_is_between_its_base_and_a_quarter_more_and_never_shrinks(failed: u32, random in 0.0..=1.0_f64) {
            let base = rest(failed, Pace::Quick, 0.0);
            let jittered = rest(failed, Pace::Quick, random);
            prop_assert!(base >= FIRST && base <= MOST);
            prop_assert!(jittered >= base && jittered <= base.mul_f64(1.25).min(MOST));
            prop_assert!(rest(failed.saturating_add(1), Pace::Quick, 0.0) >= base);
            prop_assert!(rest(failed, Pace::Slow, random) >= jittered);
        }
    }
}
