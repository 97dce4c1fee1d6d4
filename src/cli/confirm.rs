//! Asking before something is destroyed, and the writes of operators.

use std::io::{IsTerminal, Write};

use super::exit::{Exit, Failure};
use crate::etcd::{Etcd, Txn, TxnError};

/// How often what others overtook is decided anew.
pub const ATTEMPTS: u32 = 10;

/// Refuses to go on where nobody can be asked and nobody said yes.
///
/// # Errors
/// A usage failure.
pub fn require(yes: bool, what: &str) -> Result<(), Failure> {
    if yes || std::io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "nobody can be asked whether to {what}: standard input is no terminal"
    ))
    .hint(format!("add --yes to {what} without being asked")))
}

/// Says what will happen to what, and asks.
///
/// # Errors
/// A failure where the answer is not yes; `undone` says that nothing happened.
pub fn ask(statements: &[&str], undone: &str) -> Result<(), Failure> {
    let mut err = std::io::stderr();
    let _ = write!(err, "{}\nGo on? [y/N] ", statements.join("\n"));
    let _ = err.flush();
    let mut answer = String::new();
    std::io::stdin()
        .read_line(&mut answer)
        .map_err(|error| Failure::failed(format!("cannot read the answer: {error}")))?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::failed(format!("not confirmed, {undone}"))),
    }
}

/// Makes an operator's write; `false` if something that it compares has changed, so that nothing was written.
///
/// # Errors
/// A failure if etcd refused it, or did not answer; `done` is what then may or may not have happened.
pub async fn commit(etcd: &Etcd, txn: Txn, done: &str) -> Result<bool, Failure> {
    #[expect(
        clippy::disallowed_methods,
        reason = "an operator's write, which no leadership guards; it compares what it was decided from"
    )]
    let outcome = etcd.unfenced(txn).await;
    match outcome {
        Ok(_) => Ok(true),
        Err(TxnError::Conflict { .. }) => Ok(false),
        Err(TxnError::Failed(error)) => Err(Failure::failed(error)),
        Err(TxnError::Unknown(error)) => Err(Failure::failed(format!(
            "it may or may not be {done} yet, look again: {error}"
        ))),
    }
}

/// The failure of a write that others overtook again and again.
pub fn overtaken() -> Failure {
    Failure::new(
        Exit::Conflict,
        format!("others changed it {ATTEMPTS} times in a row; try again"),
    )
}
