//! Encoded messages (protobuf), field by field, so that a write keeps what only a later release knows. Pure.

use std::collections::BTreeSet;

use prost::Message;

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

/// The message with another value of its field `number`, a message that is not repeated: `change` makes it of the present one, which is
/// empty where there is none. Of several, each adds to those before it; then one is left. The bytes must be a valid message.
pub fn with_message(message: &[u8], number: u64, change: impl FnOnce(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let parts = parts(message);
    let (_, present) = messages(&parts, number).unwrap_or_default();
    let changed = change(&present);
    let mut made = fields(message, |other| other != number);
    put_varint(&mut made, (number << 3) | 2);
    put_varint(&mut made, changed.len() as u64);
    made.extend(changed);
    made
}

/// The message `after`, encoded, with what only a later release knows of the `stored` one. `before` is that as it was decoded,
/// encoded again.
pub fn updated<M: Message + Default + PartialEq>(stored: &[u8], before: &[u8], after: &M) -> Vec<u8> {
    let known = after.encode_to_vec();
    let numbers: BTreeSet<u64> = [parts(before), parts(&known)]
        .iter()
        .flatten()
        .map(|part| part.0)
        .collect();
    let unknown = fields(stored, |number| !numbers.contains(&number));
    // The decoder takes a map whose wire type is wrong, so it may find other fields in such a value than are found here.
    let made = [
        with_unknown(stored, before, &known),
        [&known[..], &unknown].concat(),
    ];
    let reads_as_after = |made: &Vec<u8>| M::decode(&**made).is_ok_and(|read| read == *after);
    made.into_iter().find(reads_as_after).unwrap_or(known)
}

/// The message `after`, which was made from `before`, with what `before` lacks of the `stored` message that it was decoded from: what
/// only a later release knows, also in messages within it that are not repeated.
fn with_unknown(stored: &[u8], before: &[u8], after: &[u8]) -> Vec<u8> {
    let (was, knew) = (parts(stored), parts(before));
    let now = parts(after);
    let mut made = Vec::with_capacity(stored.len().max(after.len()));
    for (number, field) in &now {
        // Of one that is repeated there may be many, and nothing is looked for in them.
        let known = only(&knew, *number).zip(only(&now, *number));
        match known.and_then(|known| messages(&was, *number).map(|stored| (stored, known))) {
            // A string would be the same in both.
            Some(((last, whole), (knew, now))) if last != knew => {
                let now = with_unknown(&whole, knew, now);
                put_varint(&mut made, (number << 3) | 2);
                put_varint(&mut made, now.len() as u64);
                made.extend(now);
            }
            _ => made.extend_from_slice(field),
        }
    }
    let is_in = |parts: &[(u64, &[u8])], number| parts.iter().any(|part| part.0 == number);
    for (number, field) in &was {
        if !is_in(&knew, *number) && !is_in(&now, *number) {
            made.extend_from_slice(field);
        }
    }
    made
}

/// The fields of a message, each with its number.
fn parts(message: &[u8]) -> Vec<(u64, &[u8])> {
    let mut parts = Vec::new();
    let mut rest = message;
    while let Some((number, after)) = skip_field(rest, DEEPEST) {
        parts.push((number, &rest[..rest.len() - after.len()]));
        rest = after;
    }
    parts
}

/// The content of a field with a length.
fn content(field: &[u8]) -> Option<&[u8]> {
    let (tag, rest) = varint(field)?;
    let (_, content) = varint(rest).filter(|_| tag & 7 == 2)?;
    Some(content)
}

/// The content of the only field with this number.
fn only<'a>(parts: &[(u64, &'a [u8])], number: u64) -> Option<&'a [u8]> {
    let mut found = parts.iter().filter(|part| part.0 == number);
    let first = found.next()?;
    found.next().is_none().then(|| content(first.1))?
}

/// The content of the last field with this number, and of all of them: of messages that are not repeated, each adds to those before it.
fn messages<'a>(parts: &[(u64, &'a [u8])], number: u64) -> Option<(&'a [u8], Vec<u8>)> {
    let found = parts.iter().filter(|part| part.0 == number);
    let contents: Option<Vec<&[u8]>> = found.map(|part| content(part.1)).collect();
    let contents = contents?;
    Some((*contents.last()?, contents.concat()))
}

fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        // The seven lowest bits.
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
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

    /// Of fields with a length.
    fn field(number: u64, content: &[u8]) -> Vec<u8> {
        let mut field = Vec::new();
        put_varint(&mut field, (number << 3) | 2);
        put_varint(&mut field, content.len() as u64);
        [&field, content].concat()
    }

    #[test]
    fn what_a_decoded_message_lacks_is_kept_wherever_it_lies() {
        let newer = [0x78, 7];
        let (name, other) = (field(1, b"n1"), field(1, b"a longer name"));
        // In the message, in one within it, and in one that follows the latter.
        let within = [&name[..], &newer].concat();
        let stored = [field(2, &within), newer.to_vec(), field(2, &[0x70, 1])].concat();
        let before = field(2, &name);
        assert_eq!(
            with_unknown(&before, &before, &field(2, &other)),
            field(2, &other)
        );
        let kept = [&other[..], &newer, &[0x70, 1]].concat();
        let made = [field(2, &kept), newer.to_vec()].concat();
        assert_eq!(with_unknown(&stored, &before, &field(2, &other)), made);
        assert_eq!(
            with_unknown(&stored, &before, b""),
            newer,
            "the message within is gone"
        );
        let long = vec![b'x'; 300];
        let after = field(2, &field(1, &long));
        let kept = [field(1, &long), newer.to_vec(), vec![0x70, 1]].concat();
        let made = [field(2, &kept), newer.to_vec()].concat();
        assert_eq!(with_unknown(&stored, &before, &after), made);
    }

    #[test]
    fn a_message_within_another_is_changed_as_a_whole_and_what_is_beside_it_stays() {
        let (beside, newer) = (field(1, b"n1"), [0x78, 7]);
        let message = [field(2, &[0x08, 1]), beside.clone(), field(2, &newer)].concat();
        let changed = with_message(&message, 2, |present| {
            assert_eq!(present, [0x08, 1, 0x78, 7]);
            [fields(present, |number| number != 1), vec![0x08, 2]].concat()
        });
        assert_eq!(changed, [beside.clone(), field(2, &[0x78, 7, 0x08, 2])].concat());
        let made = with_message(&beside, 2, |present| {
            assert_eq!(present, b"");
            newer.to_vec()
        });
        assert_eq!(made, [beside, field(2, &newer)].concat());
    }

    #[test]
    fn a_field_that_is_set_or_repeated_afterwards_is_as_it_is_then() {
        // The default of field 3, which no release writes.
        let stored = [field(1, b"a"), field(1, b"b"), vec![0x18, 0]].concat();
        let before = [field(1, b"a"), field(1, b"b")].concat();
        let after = [field(1, b"c"), vec![0x18, 5]].concat();
        assert_eq!(with_unknown(&stored, &before, &after), after);
        // Of two strings the last one counts.
        let stored = [field(1, b"a"), field(1, b"b")].concat();
        assert_eq!(
            with_unknown(&stored, &field(1, b"b"), &field(1, b"c")),
            field(1, b"c")
        );
    }

    #[derive(Clone, PartialEq, Message)]
    struct Named {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(message, optional, boxed, tag = "2")]
        within: Option<Box<Named>>,
        #[prost(btree_map = "string, string", tag = "3")]
        labels: std::collections::BTreeMap<String, String>,
    }

    #[test]
    fn an_update_reads_as_it_was_meant_whatever_the_decoder_took_for_a_map() {
        let label = [field(1, b"a"), field(2, b"b")].concat();
        let valid = [field(1, b"plugin"), field(3, &label)].concat();
        // The number of its bytes, where a varint stands: by wire types, a name `a` follows.
        let odd = [field(1, b"plugin"), vec![0x18, 6], label].concat();
        for (value, keeps) in [
            (field(2, &valid), true),
            (field(2, &odd), true),
            // What follows the name reads as another message within.
            (odd, false),
        ] {
            let stored = [value, field(9, b"later")].concat();
            let before = Named::decode(&*stored).unwrap();
            let mut after = before.clone();
            let labels = match &mut after.within {
                Some(within) => &mut within.labels,
                None => &mut after.labels,
            };
            assert_eq!(
                labels.insert("a".to_owned(), "c".to_owned()),
                Some("b".to_owned())
            );
            let made = updated(&stored, &before.encode_to_vec(), &after);
            assert_eq!(Named::decode(&*made).unwrap(), after);
            assert_eq!(fields(&made, |number| number == 9).is_empty(), !keeps);
        }
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
        fn what_nothing_lacks_is_what_was_made(
            before in proptest::collection::vec(any::<u8>(), 0..64),
            after in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let whole = fields(&after, |_| true);
            prop_assert_eq!(with_unknown(&before, &before, &after), whole);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(bytes.starts_with(&fields(&bytes, |_| true)));
        }
    }
}
