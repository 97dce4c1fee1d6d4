//! A real client and a real server of HTTP/2, and a connection that hears what passes between them.

use std::fs::File;
use std::io::BufReader;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinSet;

use super::*;
use crate::history::{
    Applied, Compare, History, Is, MemberChange, Op, Outcome, Revision, StoreCall, Target, What,
};
use crate::run::tests::described;
use crate::tap::wire;

/// What was heard, in its order.
enum Piece {
    Requested(Vec<u8>),
    Replied(Vec<u8>),
}

fn framed(message: &impl Message) -> Bytes {
    let bytes = message.encode_to_vec();
    let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
    Bytes::from([&[0], &length[..], &bytes].concat())
}

/// Carries bytes both ways, and notes them, until the client closes.
async fn carry(mut client: DuplexStream, mut server: DuplexStream) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let (mut there, mut back) = ([0; 4096], [0; 4096]);
    loop {
        tokio::select! {
            read = client.read(&mut there) => match read.unwrap_or(0) {
                0 => return pieces,
                read => {
                    pieces.push(Piece::Requested(there[..read].to_vec()));
                    server.write_all(&there[..read]).await.unwrap();
                }
            },
            read = server.read(&mut back) => {
                let read = read.unwrap_or(0);
                pieces.push(Piece::Replied(back[..read].to_vec()));
                let _ = client.write_all(&back[..read]).await;
            }
        }
    }
}

/// Sends the messages one after the other to a server that gives these answers; none of them: an error.
async fn exchange(requests: Vec<(&str, Bytes)>, answers: Vec<Option<Bytes>>) -> Vec<Piece> {
    let (client, client_end) = duplex(1 << 16);
    let (server, server_end) = duplex(1 << 16);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connection = h2::server::handshake(server).await.unwrap();
        let mut answers = answers.into_iter();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
            match answers.next().unwrap() {
                Some(answer) => {
                    let mut body = respond.send_response(Response::new(()), false).unwrap();
                    body.send_data(answer, false).unwrap();
                    body.send_trailers(trailers).unwrap();
                }
                None => _ = respond.send_response(Response::new(()), true).unwrap(),
            }
        }
    });
    let mut carrying = JoinSet::new();
    carrying.spawn(carry(client_end, server_end));
    let (mut send, connection) = h2::client::handshake(client).await.unwrap();
    tasks.spawn(async move { connection.await.unwrap_or(()) });
    for (path, message) in requests {
        let request = Request::post(format!("http://etcd/{path}")).body(()).unwrap();
        let (answer, mut body) = send.send_request(request, false).unwrap();
        body.send_data(message, true).unwrap();
        let mut answer = answer.await.unwrap().into_body();
        while answer.data().await.is_some() {}
    }
    drop(send);
    tasks.shutdown().await;
    carrying.join_next().await.unwrap().unwrap()
}

/// The events of these pieces, of which the client got the replies only where `delivered` says so.
fn heard(pieces: &[Piece], delivered: bool) -> Vec<What> {
    heard_of(Some(Process("replica-a#1".to_owned())), pieces, delivered)
}

/// The same of a connection of this process.
fn heard_of(by: Option<Process>, pieces: &[Piece], delivered: bool) -> Vec<What> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("history.jsonl");
    let recorder = Recorder::begin(&file, &described()).unwrap();
    let mut connection = Connection::new(by);
    for piece in pieces {
        match piece {
            Piece::Requested(bytes) => connection.requested(recorder.now(), bytes, &recorder),
            Piece::Replied(bytes) => {
                connection.replied(recorder.now(), bytes, &recorder);
                if delivered {
                    connection.delivered(recorder.now(), bytes.len(), &recorder);
                }
            }
        }
    }
    connection.ended(recorder.now(), &recorder);
    let history = History::read(BufReader::new(File::open(&file).unwrap())).unwrap();
    history.events.into_iter().map(|event| event.what).collect()
}

fn store_call(what: &What) -> &StoreCall {
    match what {
        What::Store(call) => call,
        other => panic!("{other:?}"),
    }
}

fn txn() -> Bytes {
    framed(&wire::TxnRequest {
        compare: vec![wire::CompareMessage {
            key: b"/quorate/election".to_vec(),
            target_kind: 1,
            target: Some(wire::TargetUnion::Created(41)),
            ..wire::CompareMessage::default()
        }],
        success: vec![wire::RequestOp {
            request: Some(wire::Request::Put(wire::PutRequest {
                key: b"/quorate/a".to_vec(),
                value: b"value".to_vec(),
                ..wire::PutRequest::default()
            })),
        }],
        failure: Vec::new(),
    })
}

fn applied() -> Bytes {
    let header = wire::Header {
        revision: 42,
        raft_term: 3,
    };
    framed(&wire::TxnResponse {
        header: Some(header),
        succeeded: true,
    })
}

#[tokio::test]
async fn a_transaction_is_heard_with_its_compares_its_writes_and_its_answer() {
    // Twice: the second request refers to the headers of the first.
    let requests = vec![("etcdserverpb.KV/Txn", txn()), ("etcdserverpb.KV/Txn", txn())];
    let pieces = exchange(requests, vec![Some(applied()), Some(applied())]).await;
    let events = heard(&pieces, true);
    assert_eq!(events.len(), 2, "{events:?}");
    for event in &events {
        let call = store_call(event);
        assert_eq!(call.by.0, "replica-a#1");
        let fence = Compare {
            key: "/quorate/election".into(),
            end: "".into(),
            target: Target::Created(41),
            is: Is::Equal,
        };
        assert_eq!(call.compares, [fence]);
        let put = Op::Put {
            key: "/quorate/a".into(),
            value: "value".into(),
            lease: 0,
            keep_lease: false,
        };
        assert_eq!(call.then, [put]);
        assert!(call.answered.is_some());
        let done = Applied {
            succeeded: true,
            revision: Revision {
                epoch: 0,
                revision: 42,
            },
            raft_term: 3,
        };
        assert_eq!(call.outcome, Outcome::Done(done));
    }
}

#[tokio::test]
async fn an_answer_that_the_network_loses_is_known_and_not_answered() {
    let pieces = exchange(vec![("etcdserverpb.KV/Txn", txn())], vec![Some(applied())]).await;
    let events = heard(&pieces, false);
    let call = store_call(&events[0]);
    assert!(call.outcome.done().is_some_and(|applied| applied.succeeded));
    assert_eq!(call.answered, None);
}

#[tokio::test]
async fn a_refusal_has_failed_and_what_is_not_a_write_is_not_recorded() {
    let requests = vec![("etcdserverpb.KV/Range", txn()), ("etcdserverpb.KV/Txn", txn())];
    let pieces = exchange(requests, vec![Some(applied()), None]).await;
    let events = heard(&pieces, true);
    assert_eq!(events.len(), 1, "{events:?}");
    let outcome = &store_call(&events[0]).outcome;
    assert!(matches!(outcome, Outcome::Failed { .. }), "{outcome:?}");
}

#[tokio::test]
async fn a_request_that_etcd_never_answers_is_unknown() {
    let pieces = exchange(vec![("etcdserverpb.KV/Txn", txn())], vec![Some(applied())]).await;
    let requests: Vec<Piece> = pieces
        .into_iter()
        .filter(|piece| matches!(piece, Piece::Requested(_)))
        .collect();
    let events = heard(&requests, true);
    assert_eq!(store_call(&events[0]).outcome, Outcome::Unknown);
}

#[tokio::test]
async fn a_change_of_members_is_heard_from_any_caller_and_nothing_else_of_a_caller_that_is_not_known() {
    let add = framed(&wire::MemberAddRequest {
        peer_urls: vec!["http://n9".to_owned()],
        is_learner: true,
    });
    let added = framed(&wire::MemberAddResponse {
        member: Some(wire::MemberIdRequest { id: 9 }),
    });
    let requests = vec![
        ("etcdserverpb.KV/Txn", txn()),
        ("etcdserverpb.Cluster/MemberAdd", add),
    ];
    let pieces = exchange(requests, vec![Some(applied()), Some(added)]).await;
    for by in [None, Some(Process("replica-a#1".to_owned()))] {
        let events = heard_of(by.clone(), &pieces, true);
        assert_eq!(events.len(), 1 + usize::from(by.is_some()), "{events:?}");
        let What::Member(call) = &events[events.len() - 1] else {
            panic!("{events:?}");
        };
        let change = MemberChange::Add {
            learner: true,
            peer_urls: vec!["http://n9".to_owned()],
        };
        assert_eq!((&call.by, &call.change), (&by, &change));
        assert_eq!(call.outcome, Outcome::Done(9));
        assert_eq!((call.answered.is_some(), call.given_up), (true, None));
    }
}

#[tokio::test]
async fn a_change_of_members_that_is_never_answered_is_given_up_at_the_end_of_its_connection() {
    let remove = framed(&wire::MemberIdRequest { id: 9 });
    let answers = vec![Some(framed(&wire::MemberIdRequest { id: 0 }))];
    let pieces = exchange(vec![("etcdserverpb.Cluster/MemberRemove", remove)], answers).await;
    let requests: Vec<Piece> = pieces
        .into_iter()
        .filter(|piece| matches!(piece, Piece::Requested(_)))
        .collect();
    let events = heard(&requests, true);
    let What::Member(call) = &events[0] else {
        panic!("{events:?}");
    };
    assert_eq!((call.answered, &call.outcome), (None, &Outcome::Unknown));
    assert!(call.given_up.is_some());
}
