//! Memory that held a secret is overwritten before it is freed. The only module that names the `zeroize` crate: its writes are not
//! left out by the compiler.
//!
//! What a connection has received or sent, and what a message of a library holds while it is sent, is out of reach.

use zeroize::Zeroize;
pub use zeroize::Zeroizing;

/// Overwrites a value with zeros, and all of the memory that it has.
pub fn wipe(value: &mut impl Zeroize) {
    value.zeroize();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_of_a_value() {
        let (mut bytes, mut text) = (b"s3cr3t".to_vec(), "s3cr3t".to_owned());
        wipe(&mut bytes);
        wipe(&mut text);
        assert!(bytes.is_empty() && text.is_empty());
    }
}
