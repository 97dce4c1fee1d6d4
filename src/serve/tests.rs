//! Tests over a real socket, with requests in their wire format.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::time::Instant;

use super::*;

mod page;

/// What the probes of a test server answer; tests change it while the server runs.
#[derive(Default)]
struct Answers {
    live: Report,
    ready: Report,
    leader: LeaderReport,
}

fn serve_answers(answers: &Arc<Mutex<Answers>>, metrics: Metrics) -> Server {
    let (live, ready, leader) = (answers.clone(), answers.clone(), answers.clone());
    let probes = Probes {
        live: Box::new(move || live.lock().unwrap().live.clone()),
        ready: Box::new(move || ready.lock().unwrap().ready.clone()),
        leader: Some(Box::new(move || leader.lock().unwrap().leader.clone())),
        page: None,
    };
    start("127.0.0.1:0".parse().unwrap(), probes, metrics).unwrap()
}

fn connect(server: &Server) -> TcpStream {
    let socket = TcpStream::connect(server.address()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

fn request(server: &Server, method: &str, target: &str) -> Answer {
    let mut socket = connect(server);
    write!(
        socket,
        "{method} {target} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    Answer {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        head: head.to_lowercase(),
        body: body.to_owned(),
    }
}

#[track_caller]
fn expect(server: &Server, target: &str, status: u16, body: &str) {
    let answer = request(server, "GET", target);
    assert_eq!((answer.status, answer.body.as_str()), (status, body), "{target}");
}

#[test]
fn a_probe_that_passes_is_one_word_and_lists_its_checks_on_request() {
    let answers = Arc::new(Mutex::new(Answers::default()));
    let server = serve_answers(&answers, Metrics::new("1.0.0"));
    expect(&server, "/livez", 200, "ok");
    expect(&server, "/livez?verbose", 200, "livez check passed\n");

    answers.lock().unwrap().ready.checks = vec![
        Check::passed("etcd"),
        Check {
            detail: "WORKING, 1.2.0".to_owned(),
            ..Check::passed("gate")
        },
    ];
    expect(&server, "/readyz", 200, "ok");
    expect(&server, "/readyz?quiet", 200, "ok");
    let lines = "[+]etcd ok\n[+]gate ok: WORKING, 1.2.0\nreadyz check passed\n";
    for target in ["/readyz?verbose", "/readyz?verbose=true", "/readyz?a=b&verbose=1"] {
        expect(&server, target, 200, lines);
    }
    server.stop();
}

#[test]
fn a_probe_that_fails_always_lists_its_checks() {
    let answers = Arc::new(Mutex::new(Answers::default()));
    let server = serve_answers(&answers, Metrics::new("1.0.0"));
    answers.lock().unwrap().ready.checks = vec![
        Check::passed("etcd"),
        Check::failed("gate", "status has minimum 2.0.0,\nthis release is 1.0.0"),
    ];
    let lines =
        "[+]etcd ok\n[-]gate failed: status has minimum 2.0.0, this release is 1.0.0\nreadyz check failed\n";
    expect(&server, "/readyz", 503, lines);
    expect(&server, "/readyz?verbose", 503, lines);
    expect(&server, "/livez", 200, "ok");

    answers.lock().unwrap().ready.checks[1].ok = true;
    assert_eq!(request(&server, "GET", "/readyz").status, 200, "it recovers");
    server.stop();
}

#[test]
fn leaderz_names_the_leader_and_answers_200_only_there() {
    let answers = Arc::new(Mutex::new(Answers::default()));
    let server = serve_answers(&answers, Metrics::new("1.0.0"));
    expect(&server, "/leaderz", 503, "leader: none known\n");
    answers.lock().unwrap().leader.leader = Some("n2".to_owned());
    expect(&server, "/leaderz", 503, "leader: n2\n");
    answers.lock().unwrap().leader = LeaderReport {
        leading: true,
        leader: Some("n1".to_owned()),
        ..LeaderReport::default()
    };
    expect(&server, "/leaderz", 200, "leader: n1 (this replica)\n");
    server.stop();
}

#[test]
fn metrics_are_openmetrics_text_with_the_current_values() {
    let metrics = Metrics::new("1.0.0");
    let server = serve_answers(&Arc::default(), metrics.clone());
    metrics.quorum_blocked.set(1);
    let answer = request(&server, "GET", "/metrics");
    assert_eq!(answer.status, 200);
    let content_type = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(answer.head.contains(content_type), "{}", answer.head);
    assert!(
        answer.body.contains("\nquorate_quorum_blocked 1\n"),
        "{}",
        answer.body
    );
    assert!(answer.body.ends_with("# EOF\n"), "{}", answer.body);
    server.stop();
}

#[test]
fn the_metrics_of_leadership_agree_with_leaderz_at_every_scrape() {
    let answers = Arc::new(Mutex::new(Answers::default()));
    let server = serve_answers(&answers, Metrics::new("1.0.0"));
    for (leading, yields, refused) in [
        (true, false, false),
        (false, true, false),
        (false, false, true),
        (false, false, false),
    ] {
        answers.lock().unwrap().leader = LeaderReport {
            leading,
            yields_to: yields.then(|| "replica b runs a newer release".to_owned()),
            refused: refused.then(|| "permission denied".to_owned()),
            ..LeaderReport::default()
        };
        let body = request(&server, "GET", "/metrics").body;
        for (metric, wanted) in [
            ("leader", leading),
            ("election_yields", yields),
            ("etcd_refuses", refused),
        ] {
            let line = format!("\nquorate_{metric} {}\n", i32::from(wanted));
            assert!(body.contains(&line), "{body}");
        }
    }
    server.stop();
}

#[test]
fn the_metric_of_readiness_agrees_with_readyz_at_every_scrape() {
    let answers = Arc::new(Mutex::new(Answers::default()));
    let server = serve_answers(&answers, Metrics::new("1.0.0"));
    for ready in [true, false, true] {
        answers.lock().unwrap().ready.checks = vec![Check {
            ok: ready,
            ..Check::passed("etcd")
        }];
        let body = request(&server, "GET", "/metrics").body;
        let line = format!("\nquorate_ready {}\n", i32::from(ready));
        assert!(body.contains(&line), "{body}");
        let status = if ready { 200 } else { 503 };
        assert_eq!(request(&server, "GET", "/readyz").status, status);
    }
    server.stop();
}

#[test]
fn other_paths_are_not_found_and_other_methods_not_allowed() {
    let server = serve_answers(&Arc::default(), Metrics::new("1.0.0"));
    for target in ["/", "/livez/", "/readyz/etcd", "/healthz"] {
        assert_eq!(request(&server, "GET", target).status, 404, "{target}");
    }
    for target in ["/livez", "/readyz?verbose", "/leaderz", "/metrics"] {
        for method in ["POST", "PUT", "DELETE"] {
            let answer = request(&server, method, target);
            assert_eq!(answer.status, 405, "{method} {target}");
            assert!(answer.head.contains("allow: get,head"), "{}", answer.head);
        }
    }
    let head = request(&server, "HEAD", "/livez");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    server.stop();
}

#[test]
fn an_address_in_use_is_an_error_that_names_it() {
    let first = serve_answers(&Arc::default(), Metrics::new("1.0.0"));
    let probes = Probes {
        live: Box::new(Report::default),
        ready: Box::new(Report::default),
        leader: None,
        page: None,
    };
    let error = start(first.address(), probes, Metrics::new("1.0.0")).unwrap_err();
    let text = error.to_string();
    let expected = format!("cannot listen on {} for health and metrics: ", first.address());
    assert!(text.starts_with(&expected), "{text}");
    assert!(text.contains("Address already in use"), "{text}");
    first.stop();
}

#[test]
fn the_probes_answer_while_the_work_runtime_hangs() {
    let work = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let answers = Arc::new(Mutex::new(Answers::default()));
    let asked = answers.clone();
    // The only thread of the work runtime blocks in a task until the probe is answered.
    let status = work.block_on(async move {
        let server = serve_answers(&asked, Metrics::new("1.0.0"));
        asked.lock().unwrap().live.checks = vec![Check::failed("runtime", "hangs")];
        let status = request(&server, "GET", "/livez").status;
        server.stop();
        status
    });
    assert_eq!(status, 503);
}

#[test]
fn stopping_frees_the_port_and_does_not_wait_for_a_client_that_hangs() {
    let server = serve_answers(&Arc::default(), Metrics::new("1.0.0"));
    let address = server.address();
    let mut idle = connect(&server);
    write!(idle, "GET /livez HTTP/1.1\r\nhost: test\r\n\r\n").unwrap();
    let mut start = [0; 12];
    idle.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
    let mut half = connect(&server);
    write!(half, "GET /livez HTTP/1.1\r\nhost:").unwrap();

    let begun = Instant::now();
    server.stop();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(TcpStream::connect(address).is_err(), "the port is closed");
    let _ = idle.shutdown(Shutdown::Both);
}

#[test]
fn every_answer_is_the_last_of_its_connection() {
    let server = serve_answers(&Arc::default(), Metrics::new("1.0.0"));
    for request in ["GET /livez", "GET /metrics", "GET /nowhere", "POST /livez"] {
        let mut socket = connect(&server);
        write!(socket, "{request} HTTP/1.1\r\nhost: test\r\n\r\n").unwrap();
        let mut text = String::new();
        // Ends as the server closes the connection, long before its time is over.
        let begun = Instant::now();
        socket.read_to_string(&mut text).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5), "{request}");
        assert!(
            text.to_lowercase().contains("\r\nconnection: close\r\n"),
            "{text}"
        );
    }
    server.stop();
}

/// Whether the server closes the connection before the time-out of a read.
fn is_closed(socket: &mut TcpStream) -> bool {
    match socket.read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn of_many_idle_connections_the_oldest_make_way_for_a_probe() {
    let answers = Arc::new(Mutex::new(Answers::default()));
    let server = serve_answers(&answers, Metrics::new("1.0.0"));
    let mut idle: Vec<TcpStream> = (0..300).map(|_| connect(&server)).collect();
    expect(&server, "/livez", 200, "ok");
    idle[0].set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert!(is_closed(&mut idle[0]), "the oldest is closed");
    server.stop();
}

#[test]
fn a_connection_whose_request_is_never_complete_is_closed() {
    let answers = Arc::new(Mutex::new(Answers::default()));
    let server = serve_answers(&answers, Metrics::new("1.0.0"));
    let mut slow = connect(&server);
    write!(slow, "GET /livez HTTP/1.1\r\nhost: ").unwrap();
    slow.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert!(is_closed(&mut slow));
    server.stop();
}
