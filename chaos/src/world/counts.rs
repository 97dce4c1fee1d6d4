//! How often something is in force.

use std::collections::BTreeMap;

/// How often something is in force, by what it is about.
#[derive(Clone, Debug)]
pub struct Counts<T>(BTreeMap<T, usize>);

impl<T> Default for Counts<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord> Counts<T> {
    /// Once more.
    pub fn more(&mut self, of: T) {
        *self.0.entry(of).or_default() += 1;
    }

    /// Once less; whether it is in force no longer.
    pub fn less(&mut self, of: &T) -> bool {
        let Some(count) = self.0.get_mut(of) else {
            return true;
        };
        *count -= 1;
        let over = *count == 0;
        if over {
            self.0.remove(of);
        }
        over
    }

    /// Whether it is in force.
    pub fn has(&self, of: &T) -> bool {
        self.0.contains_key(of)
    }
}
