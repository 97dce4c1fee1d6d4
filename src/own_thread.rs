//! Threads with a runtime of their own, for what must go on while another runtime hangs.

use std::io;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};

/// Starts a thread with this name and a runtime of its own, and runs the future there that `begin` makes on it. Returns once
/// the future is made; it ends with the thread. A handle that is dropped leaves the thread running.
///
/// # Errors
/// The system's answer if it has no thread or no event queue left, or the error of `begin`.
pub fn spawn<F: Future<Output = ()> + 'static>(
    name: &str,
    begin: impl FnOnce() -> io::Result<F> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    spawn_on(Builder::new().name(name.to_owned()), begin)
}

fn spawn_on<F: Future<Output = ()> + 'static>(
    thread: Builder,
    begin: impl FnOnce() -> io::Result<F> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let (begun, outcome) = mpsc::sync_channel(1);
    // The runtime is built on the thread: one that is dropped with a thread that cannot start panics in asynchronous code.
    let thread = thread.spawn(move || {
        let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let made = built.and_then(|runtime| {
            let work = {
                let _context = runtime.enter();
                begin()?
            };
            Ok((runtime, work))
        });
        match made {
            Ok((runtime, work)) => {
                let _ = begun.send(Ok(()));
                runtime.block_on(work);
            }
            Err(error) => drop(begun.send(Err(error))),
        }
    })?;
    // Without an answer `begin` has panicked.
    let panicked = |_| Err(io::Error::other("the thread panicked"));
    outcome.recv().unwrap_or_else(panicked)?;
    Ok(thread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_work_runs_on_a_runtime_of_its_own_which_is_there_before_the_work() {
        let (here, (sender, receiver)) = (std::thread::current().id(), tokio::sync::oneshot::channel());
        let begin = move || {
            let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
            listener.set_nonblocking(true)?;
            // It needs a runtime.
            let listener = tokio::net::TcpListener::from_std(listener)?;
            Ok(async move {
                let _ = sender.send((std::thread::current().id(), listener.local_addr().is_ok()));
            })
        };
        let thread = spawn("work", begin).unwrap();
        let (there, listens) = receiver.await.unwrap();
        assert!(there != here && listens);
        thread.join().unwrap();
    }

    /// A runtime that was dropped here would panic.
    #[tokio::test]
    async fn a_thread_that_cannot_start_is_an_error() {
        // More than an address space holds.
        let thread = Builder::new().stack_size(1 << 50);
        spawn_on(thread, || Ok(async {})).unwrap_err();
        let refuse = || Err::<std::future::Ready<()>, _>(io::Error::other("no"));
        assert_eq!(spawn("work", refuse).unwrap_err().to_string(), "no");
    }
}
