//! Digests, and the form in which join tokens and commands show them.

use ring::digest;

/// SHA-256.
pub(super) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut made = [0; 32];
    made.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    made
}

/// Base32 (RFC 4648), lower case, no padding.
pub(super) fn base32(bytes: &[u8]) -> String {
    data_encoding::BASE32_NOPAD.encode(bytes).to_ascii_lowercase()
}

/// The bytes that [`base32`] writes like this. No other spelling of them is read, so that there is one text for each.
pub(super) fn from_base32<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_upper = |c: char| c.is_ascii_uppercase();
    let spelt = (!text.contains(is_upper)).then(|| text.to_ascii_uppercase())?;
    let bytes = data_encoding::BASE32_NOPAD.decode(spelt.as_bytes()).ok()?;
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_one_spelling_in_base32() {
        // 32 bytes take 52 characters, of whose last one four bits mean nothing.
        let text = base32(&[7; 32]);
        assert_eq!(text.len(), 52);
        assert_eq!(from_base32::<32>(&text), Some([7; 32]));
        for other in ["r", "Q", "", "qa", "=", "1"] {
            let other = format!("{}{other}", &text[..51]);
            assert_eq!(from_base32::<32>(&other), None, "{other}");
        }
        assert_eq!(from_base32::<20>(&text), None);
    }
}
