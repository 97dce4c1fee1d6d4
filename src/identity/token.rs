//! Join tokens: `QUO-1-<digest>-<secret>`. The digest is that of the node authority, by which the joining side knows its
//! server; the secret, 160 random bits, is how the server knows who may join. Both are in base32 (RFC 4648, lower case, no
//! padding).
//!
//! etcd holds a hash of the secret alone: reading it makes no token. The hash needs no salt and no slow function, since 160
//! random bits cannot be guessed.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;

use super::authority::AuthorityDigest;
use super::digest::{base32, from_base32, sha256};
use crate::proto::JoinToken;
use crate::store::object::time;

/// What every token begins with: the project, and the version of the format.
const BEGINNING: &str = "QUO-1-";

/// 160 bits.
const SECRET_BYTES: usize = 20;

/// What lets a node join. There is no way to print it but [`Token::reveal`].
pub struct Token {
    authority: AuthorityDigest,
    secret: [u8; SECRET_BYTES],
}

/// The machine's source of random bits failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a join token: the machine gave no random bits")]
pub struct NoRandomBits;

/// Why a text is not a token. No message has any of the text in it: it may be a token with a slip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    /// It does not look like one.
    #[error("not a join token: expected QUO-1-<digest>-<secret>, as quorate token create prints it")]
    Form,
    /// The first part is no digest.
    #[error("not a join token: expected 52 letters and digits (a-z, 2-7) after QUO-1-; was it cut off?")]
    Digest,
    /// The second part is no secret.
    #[error(
        "not a join token: expected 32 letters and digits (a-z, 2-7) after the second part; was it cut off?"
    )]
    Secret,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("authority", &format_args!("{}", self.authority))
            .finish_non_exhaustive()
    }
}

impl Token {
    /// Makes a new token that names this authority.
    ///
    /// # Errors
    /// If the machine's source of random bits fails.
    pub fn create(authority: AuthorityDigest) -> Result<Self, NoRandomBits> {
        let mut secret = [0; SECRET_BYTES];
        SystemRandom::new().fill(&mut secret).map_err(|_| NoRandomBits)?;
        Ok(Self { authority, secret })
    }

    /// The token as text, secret included: for its only reader, and for no log.
    pub fn reveal(&self) -> String {
        format!("{BEGINNING}{}-{}", self.authority, base32(&self.secret))
    }

    /// The authority that it names: the joining side trusts a server by this alone.
    pub fn authority(&self) -> AuthorityDigest {
        self.authority
    }

    /// What etcd holds of it.
    pub fn record(&self, node_uid: &str, now: Timestamp) -> JoinToken {
        JoinToken {
            secret_sha256: sha256(&self.secret).to_vec(),
            authority_sha256: self.authority.0.to_vec(),
            since: Some(time::to_proto(now)),
            node_uid: node_uid.to_owned(),
        }
    }

    /// Whether this is the token of the record. The time that this takes says nothing of the secret.
    pub fn is_recorded_as(&self, record: &JoinToken) -> bool {
        let secret = sha256(&self.secret)[..].ct_eq(&record.secret_sha256);
        bool::from(secret) && record.authority_sha256 == self.authority.0
    }
}

/// The authority that a recorded token names; `None` if the record names none.
pub fn authority(record: &JoinToken) -> Option<AuthorityDigest> {
    let digest = record.authority_sha256.as_slice().try_into().ok()?;
    Some(AuthorityDigest(digest))
}

impl FromStr for Token {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<Self, BadToken> {
        let parts = text.strip_prefix(BEGINNING).ok_or(BadToken::Form)?;
        let (digest, secret) = parts.split_once('-').ok_or(BadToken::Form)?;
        Ok(Self {
            authority: from_base32(digest).map(AuthorityDigest).ok_or(BadToken::Digest)?,
            secret: from_base32(secret).ok_or(BadToken::Secret)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUTHORITY: AuthorityDigest = AuthorityDigest([7; 32]);

    fn now() -> Timestamp {
        "2026-03-01T12:00:00Z".parse().unwrap()
    }

    fn refusal(text: &str) -> BadToken {
        text.parse::<Token>().err().unwrap()
    }

    #[test]
    fn a_token_reads_back_and_no_two_are_alike() {
        let made = Token::create(AUTHORITY).unwrap();
        let text = made.reveal();
        assert_eq!(text.len(), "QUO-1-".len() + 52 + 1 + 32, "{text}");
        let read: Token = text.parse().unwrap();
        assert_eq!(read.reveal(), text);
        let record = made.record("", now());
        assert!(read.is_recorded_as(&record));
        assert_eq!(authority(&record), Some(read.authority()));
        let other = Token::create(AUTHORITY).unwrap();
        assert!(!other.is_recorded_as(&record));
        assert_ne!(other.reveal(), text);
    }

    #[test]
    fn a_token_with_another_authority_or_against_a_record_without_a_hash_opens_nothing() {
        let made = Token::create(AUTHORITY).unwrap();
        let elsewhere = Token {
            authority: AuthorityDigest([8; 32]),
            secret: made.secret,
        };
        assert!(!elsewhere.is_recorded_as(&made.record("", now())));
        for secret_sha256 in [vec![], vec![0; 32], made.secret.to_vec(), vec![0; 33]] {
            let record = JoinToken {
                secret_sha256,
                ..made.record("", now())
            };
            assert!(!made.is_recorded_as(&record), "{record:?}");
        }
        let nameless = JoinToken {
            authority_sha256: Vec::new(),
            ..made.record("", now())
        };
        assert!(!made.is_recorded_as(&nameless));
        assert_eq!(authority(&nameless), None);
    }

    #[test]
    fn neither_the_debug_form_nor_the_record_has_the_secret_in_it() {
        let made = Token::create(AUTHORITY).unwrap();
        let text = made.reveal();
        let (_, secret) = text.rsplit_once('-').unwrap();
        let debug = format!("{made:?}");
        assert!(debug.contains(&AUTHORITY.to_string()), "{debug}");
        assert!(!debug.contains(secret), "{debug}");
        assert!(!debug.contains(&format!("{:?}", made.secret)), "{debug}");
        assert_ne!(made.record("", now()).secret_sha256, made.secret);
    }

    #[test]
    fn what_is_no_token_is_refused_by_its_part_and_is_in_no_message() {
        let text = Token::create(AUTHORITY).unwrap().reveal();
        let (front, secret) = text.rsplit_once('-').unwrap();
        let upper = text.to_ascii_uppercase();
        for (bad, expected) in [
            ("", BadToken::Form),
            ("SWMTKN-1-a-b", BadToken::Form),
            (front, BadToken::Form),
            (&text[..text.len() - 1], BadToken::Secret),
            (&format!("{text}a"), BadToken::Secret),
            (&format!("{text}-a"), BadToken::Secret),
            (&format!(" {text}"), BadToken::Form),
            (&format!("QUO-1-abc-{secret}"), BadToken::Digest),
            (&upper, BadToken::Digest),
            (
                &format!("{front}-{}", secret.to_ascii_uppercase()),
                BadToken::Secret,
            ),
            (&text.replacen("QUO-1", "QUO-2", 1), BadToken::Form),
        ] {
            let refused = refusal(bad);
            assert_eq!(refused, expected, "{bad}");
            assert!(!refused.to_string().contains(secret), "{refused}");
        }
    }
}
