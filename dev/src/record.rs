//! JSON files with the state that a later start on the same directory needs.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Error;
use super::pki::write_private;

/// Reads a record; none if the file does not exist.
pub(super) fn read<T: DeserializeOwned>(file: &Path) -> Result<Option<T>, Error> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.map_err(Error::read(file))?,
    };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(Error::malformed(file))
}

/// Writes a record, readable by its owner alone, since it may hold a token. A first start writes it last, so that an
/// interrupted first start leaves none and is repeated.
pub(super) fn write<T: Serialize>(file: &Path, record: &T) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(record).map_err(Error::malformed(file))?;
    write_private(file, &text)
}
