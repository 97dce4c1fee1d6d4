//! The status page over a real socket.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};

use super::super::screen::MOST_VIEWERS;
use super::*;
use crate::page::About;
use crate::replica::ReplicaStatus;
use crate::volumes::summary::VolumesSummary;

const POLICY: &str = "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n";

fn serve_page(status: &ReplicaStatus) -> Server {
    let about = About {
        replica: "<r1>".to_owned(),
        bundle: "builtin 0.1.0".to_owned(),
        kubernetes: true,
        serves_agents: false,
    };
    let probes = Probes {
        live: Box::new(Report::default),
        ready: Box::new(Report::default),
        leader: None,
        page: Some(Page {
            sources: Sources::new(about, status),
            hosts: vec!["ctl1.example.com".to_owned()],
        }),
    };
    start("127.0.0.1:0".parse().unwrap(), probes, Metrics::new("1.0.0")).unwrap()
}

/// A connection that follows the events.
fn follow(server: &Server) -> BufReader<TcpStream> {
    let mut socket = connect(server);
    // A server with nothing new says so every 10 s.
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(socket, "GET /page/events HTTP/1.1\r\nhost: test\r\n\r\n").unwrap();
    let mut events = BufReader::new(socket);
    let status = next_line(&mut events);
    assert!(status.starts_with("HTTP/1.1 200"), "{status}");
    events
}

fn next_line(events: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    events.read_line(&mut line).unwrap();
    line
}

/// The data of the next event of this kind.
fn next_event(events: &mut BufReader<TcpStream>, kind: &str) -> String {
    let begin = format!("event: {kind}\n");
    loop {
        let line = next_line(events);
        assert!(!line.is_empty(), "the server has closed the connection");
        if line == begin {
            return next_line(events);
        }
    }
}

/// The connection of a viewer over HTTP/2 that has left its stream.
fn leave_over_http2(server: &Server) -> TcpStream {
    const SETTINGS: u8 = 4;
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    // END_STREAM and END_HEADERS.
    const WHOLE: u8 = 5;
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, flags, 0, 0, 0, stream][..], payload].concat()
    };
    let mut socket = connect(server);
    socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    socket.write_all(&frame(SETTINGS, 0, 0, b"")).unwrap();
    // In HPACK: GET, http, the path and the authority.
    let request = b"\x82\x86\x04\x0c/page/events\x01\x04test";
    socket.write_all(&frame(HEADERS, WHOLE, 1, request)).unwrap();
    loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head).unwrap();
        let length = u16::from_be_bytes([head[1], head[2]]);
        let mut payload = vec![0; usize::from(length)];
        socket.read_exact(&mut payload).unwrap();
        if head[3] == HEADERS {
            break;
        }
    }
    socket.write_all(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])).unwrap();
    socket
}

#[test]
fn the_page_and_what_belongs_to_it_come_with_a_strict_policy() {
    let server = serve_page(&ReplicaStatus::default());
    for (target, content_type, begin) in [
        ("/", "text/html; charset=utf-8", "<!doctype html>"),
        ("/api/v1/state", "application/json", "{\"picture\":{"),
        ("/page/style.css", "text/css; charset=utf-8", ":root"),
        ("/page/script.js", "text/javascript; charset=utf-8", "//"),
    ] {
        let answer = request(&server, "GET", target);
        assert_eq!(answer.status, 200, "{target}");
        let content_type = format!("content-type: {content_type}\r\n");
        for header in [
            content_type.as_str(),
            POLICY,
            "x-content-type-options: nosniff\r\n",
            "referrer-policy: no-referrer\r\n",
            "cache-control: no-store\r\n",
        ] {
            assert!(
                format!("{}\r\n", answer.head).contains(header),
                "{target}: {}",
                answer.head
            );
        }
        assert!(answer.body.starts_with(begin), "{target}: {}", answer.body);
        for method in ["POST", "PUT", "DELETE"] {
            assert_eq!(request(&server, method, target).status, 405, "{method} {target}");
        }
    }
    let page = request(&server, "GET", "/").body;
    assert!(page.contains("&lt;r1&gt;") && !page.contains("<r1>"), "{page}");
    server.stop();
}

#[test]
fn without_the_page_nothing_of_it_is_there() {
    let server = serve_answers(&Arc::default(), Metrics::new("1.0.0"));
    for target in [
        "/",
        "/api/v1/state",
        "/page/style.css",
        "/page/script.js",
        "/page/events",
    ] {
        assert_eq!(request(&server, "GET", target).status, 404, "{target}");
    }
    server.stop();
}

#[test]
fn a_change_reaches_a_viewer_within_a_second() {
    let status = ReplicaStatus::default();
    let server = serve_page(&status);
    let mut events = follow(&server);
    assert!(next_event(&mut events, "state").contains("\"volumes\""));
    // A machine that halts for a moment makes one late.
    let took = (7650..7655).map(|created| {
        let begun = Instant::now();
        status.summaries.volumes.publish(VolumesSummary {
            states: [("created", created)].into(),
            ..VolumesSummary::default()
        });
        let event = next_event(&mut events, "state");
        assert!(event.contains(&format!("created {created}")), "{event}");
        begun.elapsed()
    });
    let fastest = took.min().expect("there are several");
    assert!(fastest < Duration::from_secs(1), "{fastest:?}");
    server.stop();
}

#[test]
fn stopping_ends_the_streams_of_viewers_at_once() {
    let server = serve_page(&ReplicaStatus::default());
    let mut viewers: Vec<_> = (0..5).map(|_| follow(&server)).collect();
    for viewer in &mut viewers {
        next_event(viewer, "state");
    }
    let begun = Instant::now();
    server.stop();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    for viewer in &mut viewers {
        while !next_line(viewer).is_empty() {}
    }
}

#[test]
fn probes_and_viewers_take_no_room_from_one_another() {
    let server = serve_page(&ReplicaStatus::default());
    let mut viewer = follow(&server);
    next_event(&mut viewer, "state");
    // More than there may be beside the viewers.
    let _idle: Vec<TcpStream> = (0..280).map(|_| connect(&server)).collect();
    expect(&server, "/livez", 200, "ok");
    // Sent to those alone who are there.
    assert_eq!(next_event(&mut viewer, "alive"), "data: 1\n");
    server.stop();
}

#[test]
fn a_viewer_that_leaves_over_http2_makes_way_like_any_other_client() {
    let server = serve_page(&ReplicaStatus::default());
    let mut left = leave_over_http2(&server);
    // More than there may be beside the viewers.
    let _idle: Vec<TcpStream> = (0..280).map(|_| connect(&server)).collect();
    expect(&server, "/livez", 200, "ok");
    let ended = left.read_to_end(&mut Vec::new());
    let is_open =
        |error: &io::Error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
    assert!(!ended.as_ref().is_err_and(is_open), "{ended:?}");
    server.stop();
}

/// Whether the server has closed the connection of a viewer. What it sent before is dropped.
fn has_left(viewer: &mut TcpStream) -> bool {
    viewer.set_nonblocking(true).unwrap();
    let mut sent = [0; 4096];
    loop {
        match viewer.read(&mut sent) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn viewers_that_read_nothing_shut_no_other_one_out() {
    let server = serve_page(&ReplicaStatus::default());
    // Each is admitted, and reads no event.
    let mut silent: Vec<_> = (0..MOST_VIEWERS).map(|_| follow(&server).into_inner()).collect();
    let mut viewer = follow(&server);
    assert!(next_event(&mut viewer, "state").contains("\"volumes\""));
    let begun = Instant::now();
    while !silent.iter_mut().any(has_left) {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "none of them has made way"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let left = silent.iter_mut().map(has_left).filter(|left| *left).count();
    assert_eq!(left, 1);
    expect(&server, "/livez", 200, "ok");
    server.stop();
}

#[test]
fn over_a_loopback_address_the_page_is_shown_under_no_name_that_a_web_site_can_have() {
    let server = serve_page(&ReplicaStatus::default());
    let asked = |target: &str, host: &str| {
        let mut socket = connect(&server);
        write!(
            socket,
            "GET {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
        )
        .unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).unwrap();
        text
    };
    let port = server.address().port();
    for target in ["/", "/api/v1/state", "/page/events", "/page/style.css"] {
        let refused = asked(target, &format!("evil.example:{port}"));
        assert!(refused.starts_with("HTTP/1.1 403 "), "{target}: {refused}");
        assert!(refused.contains("--page-host evil.example"), "{refused}");
    }
    // A browser sends it as it is, and no URI has such a host.
    let refused = asked("/api/v1/state", &format!("a{{b.evil.example:{port}"));
    assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
    for host in ["127.0.0.1", "localhost", "ctl1.example.com"] {
        let shown = asked("/api/v1/state", &format!("{host}:{port}"));
        assert!(shown.starts_with("HTTP/1.1 200 "), "{host}: {shown}");
    }
    // Who probes it uses any name.
    assert!(asked("/livez", "evil.example").starts_with("HTTP/1.1 200 "));
    server.stop();
}
