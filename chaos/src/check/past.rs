//! The past as the checks read it.

use std::ops::Deref;

use quorate::store::keys::BadPrefix;

use super::records::Records;
use super::terms::Terms;
use crate::history::History;

/// What is on record, and who led when. Dereferences to the [`Records`].
pub struct Past<'h> {
    records: Records<'h>,
    pub terms: Terms<'h>,
}

impl<'h> Past<'h> {
    pub fn of(history: &'h History) -> Result<Self, BadPrefix> {
        let records = Records::of(history)?;
        let terms = Terms::of(&records);
        Ok(Self { records, terms })
    }
}

impl<'h> Deref for Past<'h> {
    type Target = Records<'h>;

    fn deref(&self) -> &Records<'h> {
        &self.records
    }
}
