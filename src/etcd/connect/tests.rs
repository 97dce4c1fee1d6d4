use super::*;
use crate::causes;

fn unopened(message: &str) -> ConnectError {
    let error = Error::new("connect", "Unknown", Class::Unavailable, message.to_owned());
    ConnectError::of_connection(error)
}

/// A member that is removed, or stops, fails the log-in although it had answered the question before.
#[test]
fn a_member_that_stops_while_a_client_connects_is_no_fault_of_the_settings_or_of_the_other_endpoints() {
    for message in ["raft: stopped", "etcdserver: server stopped", "connection closed"] {
        let stopped = unopened(message);
        assert!(stopped.is_retryable(), "{stopped}");
        let (said, why) = (causes::chain(&stopped), format!(": etcd connect: {message}"));
        assert_eq!(
            said,
            format!("etcd answers, but the connection to it cannot be opened{why}")
        );
    }
    let no_certificate = "no certificate".to_owned();
    let wrong = Error::new("connect", "Unknown", Class::Settings, no_certificate);
    let wrong = ConnectError::of_connection(wrong);
    assert!(matches!(wrong, ConnectError::Setup(_)), "{wrong:?}");
}

#[tokio::test]
async fn a_connection_that_fails_after_its_endpoints_have_answered_is_made_again_a_few_times() {
    let none_answers = || ConnectError::NoneAnswers(Vec::new());
    let denied = || ConnectError::Unopened(Error::of_class(Class::Denied));
    for (failures, attempts, connects) in [
        (vec![], 1, true),
        (vec![unopened("raft: stopped")], 2, true),
        (
            vec![unopened("connection closed"), unopened("raft: stopped")],
            3,
            true,
        ),
        (vec![unopened("a"), unopened("b"), unopened("c")], 3, false),
        (vec![unopened("raft: stopped"), none_answers()], 2, false),
        (vec![denied()], 1, false),
    ] {
        let mut failures = failures.into_iter();
        let mut made = 0;
        let delays = Delays::new(Duration::from_millis(1), Duration::from_millis(1));
        let connected = while_unopened(delays, || {
            made += 1;
            std::future::ready(failures.next().map_or(Ok(()), Err))
        })
        .await;
        assert_eq!((made, connected.is_ok()), (attempts, connects), "{connected:?}");
    }
}
