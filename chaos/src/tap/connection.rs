//! One connection to etcd: its streams, and their calls.

use std::collections::{HashMap, VecDeque};

use super::call::{Call, End, Method};
use super::frames::{
    ACK, CONTINUATION, DATA, END_STREAM, Frame, Frames, HEADERS, Messages, RST_STREAM, SETTINGS,
};
use super::paths::Paths;
use crate::history::{At, Process};
use crate::recorder::Recorder;

/// A connection.
pub struct Connection {
    /// Who made it; none where that is not known.
    by: Option<Process>,
    requests: Frames,
    /// Whether the preface of the client was read.
    begun: bool,
    paths: Paths,
    replies: Frames,
    streams: HashMap<u32, Stream>,
    /// Calls whose answer is on its way to the process, each with the bytes of replies after which it has it.
    on_the_way: VecDeque<(u64, Call, Option<Vec<u8>>)>,
    delivered: u64,
}

struct Stream {
    at: At,
    method: Option<Method>,
    requests: Messages,
    replies: Messages,
    /// Without their answers, oldest first.
    open: VecDeque<Call>,
}

/// How a stream ended before its calls were answered.
#[derive(Clone, Copy)]
enum Over {
    /// By a refusal that ends after so many bytes of replies.
    Refused(u64),
    /// By one of both sides, at this instant.
    At(At),
}

impl Connection {
    /// A connection of this process.
    pub fn new(by: Option<Process>) -> Self {
        Self {
            by,
            requests: Frames::default(),
            begun: false,
            paths: Paths::new(),
            replies: Frames::default(),
            streams: HashMap::new(),
            on_the_way: VecDeque::new(),
            delivered: 0,
        }
    }

    /// The process sent bytes.
    pub fn requested(&mut self, at: At, bytes: &[u8], recorder: &Recorder) {
        self.requests.push(bytes);
        if !self.begun {
            self.begun = self.requests.skip_preface();
        }
        while self.begun
            && let Some(frame) = self.requests.next()
        {
            self.request_frame(at, &frame, recorder);
        }
    }

    fn request_frame(&mut self, at: At, frame: &Frame, recorder: &Recorder) {
        match frame.kind {
            SETTINGS if frame.flags & ACK == 0 => drop(self.paths.feed(&frame.bytes(frame.flags))),
            HEADERS | CONTINUATION => {
                if frame.kind == HEADERS {
                    let stream = Stream {
                        at,
                        method: None,
                        requests: Messages::default(),
                        replies: Messages::default(),
                        open: VecDeque::new(),
                    };
                    self.streams.insert(frame.stream, stream);
                }
                // A continuation has no such flag, and no other with this bit.
                let whole = match frame.kind {
                    HEADERS => frame.flags | END_STREAM,
                    _ => frame.flags,
                };
                for (stream, path) in self.paths.feed(&frame.bytes(whole)) {
                    match (Method::of(&path), self.streams.get_mut(&stream)) {
                        (Some(method), Some(stream)) => stream.method = Some(method),
                        _ => drop(self.streams.remove(&stream)),
                    }
                }
            }
            DATA => {
                let Some(stream) = self.streams.get_mut(&frame.stream) else {
                    return;
                };
                stream.requests.push(frame.data());
                while let (Some(method), Some(request)) = (stream.method, stream.requests.next()) {
                    let at = match method {
                        // One of many of the stream.
                        Method::KeepAlive => at,
                        _ => stream.at,
                    };
                    stream.open.push_back(Call { at, method, request });
                }
            }
            RST_STREAM => self.end_stream(frame.stream, Over::At(at), recorder),
            _ => {}
        }
    }

    /// etcd sent bytes.
    pub fn replied(&mut self, at: At, bytes: &[u8], recorder: &Recorder) {
        self.replies.push(bytes);
        while let Some(frame) = self.replies.next() {
            match frame.kind {
                DATA => {
                    let Some(stream) = self.streams.get_mut(&frame.stream) else {
                        continue;
                    };
                    stream.replies.push(frame.data());
                    while let Some(answer) = stream.replies.next() {
                        if let Some(call) = stream.open.pop_front() {
                            self.on_the_way.push_back((frame.end, call, Some(answer)));
                        }
                    }
                }
                HEADERS if frame.flags & END_STREAM != 0 => {
                    self.end_stream(frame.stream, Over::Refused(frame.end), recorder);
                }
                RST_STREAM => self.end_stream(frame.stream, Over::At(at), recorder),
                _ => {}
            }
        }
    }

    /// The process got this many bytes of replies more.
    pub fn delivered(&mut self, at: At, bytes: usize, recorder: &Recorder) {
        self.delivered += bytes as u64;
        while let Some((end, ..)) = self.on_the_way.front()
            && *end <= self.delivered
            && let Some((_, call, answer)) = self.on_the_way.pop_front()
        {
            let end = End {
                answer: Some(answer.as_deref()),
                answered: Some(at),
                given_up: None,
            };
            self.record(&call, end, recorder);
        }
    }

    /// The connection is over.
    pub fn ended(&mut self, at: At, recorder: &Recorder) {
        for (_, call, answer) in std::mem::take(&mut self.on_the_way) {
            self.record(&call, End::given_up(at, Some(answer.as_deref())), recorder);
        }
        for (_, stream) in std::mem::take(&mut self.streams) {
            for call in stream.open {
                self.record(&call, End::given_up(at, None), recorder);
            }
        }
    }

    /// A stream is over: its calls without an answer get none, or the refusal that ended it.
    fn end_stream(&mut self, stream: u32, over: Over, recorder: &Recorder) {
        let Some(stream) = self.streams.remove(&stream) else {
            return;
        };
        for call in stream.open {
            match over {
                Over::Refused(end) => self.on_the_way.push_back((end, call, None)),
                Over::At(at) => self.record(&call, End::given_up(at, None), recorder),
            }
        }
    }

    fn record(&self, call: &Call, end: End<'_>, recorder: &Recorder) {
        match call.event(self.by.as_ref(), end, recorder.epoch()) {
            Ok(Some(what)) => recorder.record(call.at, what),
            Ok(None) => {}
            Err(error) => recorder.trouble(&format!("{:?} of {:?}: {error}", call.method, self.by)),
        }
    }
}

#[cfg(test)]
mod tests;
