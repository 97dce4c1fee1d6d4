//! What a later start on the same directory needs to know, as a JSON file.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Error;
use super::pki::write_private;

/// The record, if there is one.
pub(super) fn read<T: DeserializeOwned>(file: &Path) -> Result<Option<T>, Error> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.map_err(Error::read(file))?,
    };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(Error::malformed(file))
}

/// Writes it for its owner alone, as it may hold a token. The last step of a first start: one that was cut short
/// begins anew.
pub(super) fn write<T: Serialize>(file: &Path, record: &T) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(record).map_err(Error::malformed(file))?;
    write_private(file, &text)
}
