//! The files of the keys that encrypt Secrets.

use std::path::PathBuf;

use clap::Args;

use super::exit::Failure;
use crate::secrets::Keyring;

/// Where the keys are.
#[derive(Args, Debug)]
pub struct KeyFiles {
    /// File of the keys that encrypt Secrets, a key a line: 32 random bytes in base64. The first key encrypts, all decrypt; may be
    /// given several times [default: Secrets are not encrypted]
    #[arg(
        long,
        env = "QUORATE_ENCRYPTION_KEY_FILE",
        value_name = "FILE",
        value_delimiter = ','
    )]
    encryption_key_file: Vec<PathBuf>,
}

impl KeyFiles {
    /// Reads the keys; none if no file is given.
    ///
    /// # Errors
    /// 64 if a file cannot be used.
    pub fn read(&self) -> Result<Keyring, Failure> {
        Keyring::read(&self.encryption_key_file).map_err(Failure::usage)
    }
}
