//! Bytes of keys and values: as text where they are text, else in base64.

use std::fmt;

use data_encoding::BASE64;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Any bytes. In JSON `s:<text>` where they are UTF-8, so that people can read keys, else `b:<base64>`.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl<T: Into<Vec<u8>>> From<T> for Bytes {
    fn from(bytes: T) -> Self {
        Self(bytes.into())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(&format!("s:{text}")),
            Err(_) => serializer.serialize_str(&format!("b:{}", BASE64.encode(&self.0))),
        }
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.split_once(':') {
            Some(("s", text)) => Ok(Self(text.as_bytes().to_vec())),
            Some(("b", text)) => BASE64
                .decode(text.as_bytes())
                .map(Self)
                .map_err(de::Error::custom),
            _ => Err(de::Error::custom("bytes have to begin with s: or b:")),
        }
    }
}
