//! Work on a thread of its own that ends with its owner.

use std::convert::Infallible;
use std::io;

use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::own_thread;

/// Work on a thread of its own, which is stopped when this is dropped. It is not waited for: the thread may be stuck in the kernel.
pub struct Thread {
    ended: oneshot::Receiver<Infallible>,
    _stop: DropGuard,
}

impl Thread {
    /// Starts a thread of this name, which does the work until the work ends, or this is dropped.
    ///
    /// # Errors
    /// The system has no thread or no event queue left.
    pub fn start<F>(name: &str, work: impl FnOnce() -> F + Send + 'static) -> io::Result<Self>
    where
        F: Future<Output = ()> + 'static,
    {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let (alive, ended) = oneshot::channel::<Infallible>();
        let begin = move || {
            Ok(async move {
                // Dropped when the work ends, also when it panics.
                let _alive = alive;
                tokio::select! {
                    () = stopped.cancelled() => {}
                    () = work() => {}
                }
            })
        };
        own_thread::spawn(name, begin)?;
        Ok(Self {
            ended,
            _stop: stop.drop_guard(),
        })
    }

    /// Waits until the thread has ended by itself: its work is done, or has panicked, which the system reports on stderr.
    pub async fn ended(&mut self) {
        // The only way to end is that the sender is dropped.
        let Err(_) = (&mut self.ended).await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_thread_whose_work_panics_is_noticed_and_so_is_one_whose_work_is_done() {
        let mut panics = Thread::start("panics", || async { panic!("on purpose") }).unwrap();
        timeout(SOON, panics.ended()).await.unwrap();
        let mut done = Thread::start("done", || async {}).unwrap();
        timeout(SOON, done.ended()).await.unwrap();
    }

    #[tokio::test]
    async fn work_goes_on_until_the_thread_is_dropped() {
        let (sender, receiver) = mpsc::channel();
        let work = move || async move {
            sender.send("begins").unwrap();
            pending().await
        };
        let mut thread = Thread::start("works", work).unwrap();
        assert_eq!(receiver.recv_timeout(SOON), Ok("begins"));
        timeout(Duration::from_millis(50), thread.ended())
            .await
            .unwrap_err();
        drop(thread);
        // The sender of the work is gone.
        assert_eq!(
            receiver.recv_timeout(SOON),
            Err(mpsc::RecvTimeoutError::Disconnected)
        );
    }
}
