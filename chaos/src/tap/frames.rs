//! HTTP/2 frames, and the messages of gRPC in their data.

/// Kinds of frames that a tap looks at.
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const CONTINUATION: u8 = 9;

/// Flags.
pub const END_STREAM: u8 = 0x1;
/// The same bit in SETTINGS.
pub const ACK: u8 = 0x1;
pub const PADDED: u8 = 0x8;

/// What a client sends before its first frame.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes of the head of a frame.
const HEAD: usize = 9;

/// A frame as it was sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
    /// Where it ends in everything that was sent before and with it.
    pub end: u64,
}

impl Frame {
    /// Its bytes, with these flags.
    pub fn bytes(&self, flags: u8) -> Vec<u8> {
        // A length has 24 bits: it was read from as many.
        let length = u32::try_from(self.payload.len()).unwrap_or(0).to_be_bytes();
        let head = [length[1], length[2], length[3], self.kind, flags];
        [&head[..], &self.stream.to_be_bytes(), &self.payload].concat()
    }

    /// The payload of a DATA frame without its padding.
    pub fn data(&self) -> &[u8] {
        match (self.flags & PADDED, self.payload.split_first()) {
            (PADDED, Some((padding, rest))) => &rest[..rest.len().saturating_sub(usize::from(*padding))],
            _ => &self.payload,
        }
    }
}

/// Frames from the pieces in which they came.
#[derive(Debug, Default)]
pub struct Frames {
    buffer: Vec<u8>,
    /// Bytes before the buffer.
    passed: u64,
}

impl Frames {
    pub fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// Skips the preface of a client. False until it is there.
    pub fn skip_preface(&mut self) -> bool {
        let there = self.buffer.len() >= PREFACE.len();
        if there {
            self.drop_front(PREFACE.len());
        }
        there
    }

    /// The next frame that is there as a whole.
    pub fn next(&mut self) -> Option<Frame> {
        let head: [u8; HEAD] = self.buffer.get(..HEAD)?.try_into().ok()?;
        let length = usize::try_from(u32::from_be_bytes([0, head[0], head[1], head[2]])).ok()?;
        let payload = self.buffer.get(HEAD..HEAD + length)?.to_vec();
        self.drop_front(HEAD + length);
        Some(Frame {
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]),
            payload,
            end: self.passed,
        })
    }

    fn drop_front(&mut self, bytes: usize) {
        self.buffer.drain(..bytes);
        self.passed += bytes as u64;
    }
}

/// Messages of gRPC from the data of a stream.
#[derive(Debug, Default)]
pub struct Messages(Vec<u8>);

impl Messages {
    pub fn push(&mut self, data: &[u8]) {
        self.0.extend_from_slice(data);
    }

    /// The next message that is there as a whole. A compressed one cannot be read; etcd and its clients send none unless
    /// they are asked to.
    pub fn next(&mut self) -> Option<Vec<u8>> {
        let head: [u8; 5] = self.0.get(..5)?.try_into().ok()?;
        let length = usize::try_from(u32::from_be_bytes([head[1], head[2], head[3], head[4]])).ok()?;
        let message = self.0.get(5..5 + length)?.to_vec();
        self.0.drain(..5 + length);
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Frame {
        Frame {
            kind,
            flags,
            stream: 5,
            payload: payload.to_vec(),
            end: 0,
        }
    }

    #[test]
    fn frames_come_whole_from_pieces_of_any_size() {
        let sent = [
            frame(DATA, END_STREAM, b"first").bytes(END_STREAM),
            frame(HEADERS, 4, b"").bytes(4),
        ]
        .concat();
        for size in 1..sent.len() {
            let mut frames = Frames::default();
            let mut seen = Vec::new();
            for piece in sent.chunks(size) {
                frames.push(piece);
                while let Some(frame) = frames.next() {
                    seen.push((frame.kind, frame.flags, frame.stream, frame.payload, frame.end));
                }
            }
            let first = (DATA, END_STREAM, 5, b"first".to_vec(), 14);
            assert_eq!(seen, [first, (HEADERS, 4, 5, Vec::new(), 23)]);
        }
    }

    #[test]
    fn padding_is_no_data() {
        let padded = frame(DATA, PADDED, &[2, b'a', b'b', 0, 0]);
        assert_eq!(padded.data(), b"ab");
        assert_eq!(frame(DATA, PADDED, &[9, b'a']).data(), b"");
    }

    #[test]
    fn a_message_may_span_frames_and_a_frame_may_hold_several() {
        let mut messages = Messages::default();
        messages.push(&[0, 0, 0, 0, 2, b'a']);
        assert_eq!(messages.next(), None);
        messages.push(&[b'b', 0, 0, 0, 0, 1, b'c']);
        assert_eq!(messages.next().as_deref(), Some(&b"ab"[..]));
        assert_eq!(messages.next().as_deref(), Some(&b"c"[..]));
        assert_eq!(messages.next(), None);
    }
}
