//! As which member etcd wrote a log. Pure: each file of its write-ahead log says so at its beginning, from 3.4 to 3.6.
//!
//! A file is a row of frames. A frame has a word of eight bytes, little endian, whose lower seven bytes are the length of a record, then
//! the record, then padding up to a multiple of eight: its length is in the lowest three bits of the highest byte, if the highest bit of
//! that is set. A record is a message (`walpb.Record`), and the one with the type 1 holds the metadata (`etcdserverpb.Metadata`).

use prost::Message;

use super::plan::OwnMember;
use crate::etcd::{ClusterId, MemberId};

/// So much of a file is read. The metadata comes second, after a record of a few bytes.
pub const READ_BYTES: u64 = 4096;

/// The type of the record with the metadata.
const METADATA: i64 = 1;

/// More records than come before it.
const MOST_RECORDS: usize = 8;

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(int64, optional, tag = "1")]
    kind: Option<i64>,
    #[prost(bytes = "vec", optional, tag = "3")]
    data: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(uint64, optional, tag = "1")]
    member: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    cluster: Option<u64>,
}

/// The member whose log begins with these bytes; `None` if they say none.
pub fn owner(bytes: &[u8]) -> Option<OwnMember> {
    let mut rest = bytes;
    for _ in 0..MOST_RECORDS {
        let (word, frame) = rest.split_first_chunk::<8>()?;
        let [length @ .., high] = *word;
        let [a, b, c, d, e, f, g] = length;
        let length = usize::try_from(u64::from_le_bytes([a, b, c, d, e, f, g, 0])).ok()?;
        let padding = match high & 0x80 {
            0 => 0,
            _ => usize::from(high & 0x07),
        };
        let record = Record::decode(frame.get(..length)?).ok()?;
        if record.kind == Some(METADATA) {
            let metadata = Metadata::decode(&*record.data?).ok()?;
            return Some(OwnMember {
                cluster: ClusterId(metadata.cluster?),
                id: MemberId(metadata.member?),
            });
        }
        rest = frame.get(length.checked_add(padding)?..)?;
    }
    None
}

/// What a log of this member begins with, as etcd writes it.
#[cfg(test)]
pub fn written(own: OwnMember) -> Vec<u8> {
    let metadata = Metadata {
        member: Some(own.id.0),
        cluster: Some(own.cluster.0),
    };
    let records = [
        (4, Vec::new()),
        (METADATA, metadata.encode_to_vec()),
        (5, Vec::new()),
    ];
    let mut file = Vec::new();
    for (kind, data) in records {
        let record = Record {
            kind: Some(kind),
            data: Some(data),
        };
        let record = record.encode_to_vec();
        let padding = (8 - record.len() % 8) % 8;
        let mut word = u64::try_from(record.len()).unwrap().to_le_bytes();
        if padding != 0 {
            word[7] = 0x80 | u8::try_from(padding).unwrap();
        }
        file.extend(word);
        file.extend(record);
        file.extend(vec![0; padding]);
    }
    // Etcd allocates the file ahead.
    file.resize(file.len() + 4096, 0);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: OwnMember = OwnMember {
        cluster: ClusterId(0xcdf8_1819_4e3a_8c32),
        id: MemberId(0x8e9e_05c5_2164_694d),
    };

    #[test]
    fn the_member_of_a_log_is_read_from_its_second_record() {
        assert_eq!(owner(&written(OWN)), Some(OWN));
        assert_eq!(owner(&written(OWN)[..64]), Some(OWN), "whatever follows");
    }

    #[test]
    fn what_is_no_log_or_a_part_of_one_says_no_member() {
        let log = written(OWN);
        assert_eq!(owner(&[]), None);
        assert_eq!(owner(&[0; 4096]), None);
        assert_eq!(owner(&[0xff; 4096]), None);
        assert_eq!(owner(&log[..40]), None, "the record is cut off");
        for at in 0..56 {
            let _ = owner(&log[..at]);
            let mut flipped = log.clone();
            flipped[at] ^= 0x55;
            // It is another member, or none, and no panic.
            let _ = owner(&flipped);
        }
    }
}
