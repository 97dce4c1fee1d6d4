//! Encoded messages (protobuf), field by field, so that a write keeps what only a later release knows. Pure.

/// Groups within groups that are followed: as many as the decoder takes.
const DEEPEST: u8 = 100;

/// The top-level fields of a message whose numbers `keeps` takes, byte for byte and in their order. The bytes must be a valid
/// message.
pub fn fields(message: &[u8], keeps: impl Fn(u64) -> bool) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut rest = message;
    while !rest.is_empty() {
        let field = rest;
        let Some((number, after)) = skip_field(rest, DEEPEST) else {
            break;
        };
        rest = after;
        if keeps(number) {
            kept.extend_from_slice(&field[..field.len() - after.len()]);
        }
    }
    kept
}

/// The number of the first field, and the bytes after it. Wire types: protobuf.dev/programming-guides/encoding.
fn skip_field(bytes: &[u8], groups: u8) -> Option<(u64, &[u8])> {
    let (tag, rest) = varint(bytes)?;
    let number = tag >> 3;
    let rest = match tag & 7 {
        0 => varint(rest)?.1,
        1 => rest.get(8..)?,
        2 => {
            let (length, rest) = varint(rest)?;
            rest.get(usize::try_from(length).ok()?..)?
        }
        3 => skip_group(rest, number, groups.checked_sub(1)?)?,
        5 => rest.get(4..)?,
        _ => return None,
    };
    Some((number, rest))
}

/// The bytes after a group, which ends with a tag of its own. Groups are deprecated, and no release writes one.
fn skip_group(bytes: &[u8], number: u64, groups: u8) -> Option<&[u8]> {
    let mut rest = bytes;
    loop {
        let (tag, after) = varint(rest)?;
        if tag & 7 == 4 {
            return (tag >> 3 == number).then_some(after);
        }
        (_, rest) = skip_field(rest, groups)?;
    }
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    // Ten groups of seven bits hold 64.
    let length = bytes.iter().take(10).position(|byte| byte & 0x80 == 0)? + 1;
    let (head, rest) = bytes.split_at(length);
    let value = head
        .iter()
        .rev()
        .fold(0u64, |value, byte| (value << 7) | u64::from(byte & 0x7f));
    Some((value, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Field 1 of each wire type, field 16 (two bytes of tag) and field 1 again.
    const MESSAGE: [&[u8]; 7] = [
        &[0x08, 0x96, 0x01],
        &[0x09, 1, 2, 3, 4, 5, 6, 7, 8],
        &[0x0a, 3, b'o', b'l', b'd'],
        // A group with a varint and an empty group in it.
        &[0x0b, 0x10, 7, 0x1b, 0x1c, 0x0c],
        &[0x0d, 1, 2, 3, 4],
        &[0x82, 0x01, 3, b'n', b'e', b'w'],
        &[0x08, 0],
    ];

    #[test]
    fn fields_of_each_wire_type_are_kept_or_left_out_whole() {
        let message = MESSAGE.concat();
        assert_eq!(fields(&message, |_| true), message);
        assert_eq!(fields(&message, |_| false), b"");
        assert_eq!(fields(&message, |number| number == 16), MESSAGE[5]);
        let first = [&MESSAGE[..5], &MESSAGE[6..]].concat().concat();
        assert_eq!(fields(&message, |number| number == 1), first);
    }

    #[test]
    fn what_is_no_message_ends_at_its_last_whole_field() {
        for torn in [
            &[0x0a, 9, b'x'][..],
            &[0x0f],
            &[0x0c],
            &[0x0b, 0x14],
            &[0x80; 11],
            &[0x0b; 100_000],
        ] {
            let message = [MESSAGE[0], torn].concat();
            assert_eq!(fields(&message, |_| true), MESSAGE[0], "{}", torn.len());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(bytes.starts_with(&fields(&bytes, |_| true)));
        }
    }
}
