//! Asking before something is destroyed.

use std::io::{IsTerminal, Write};

use super::exit::Failure;

/// Refuses to go on without `--yes` where no person can be asked: nothing has happened yet.
///
/// # Errors
/// 64 if standard input is not a terminal.
pub fn require(yes: bool, what: &str) -> Result<(), Failure> {
    if yes || std::io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "cannot ask whether to {what}: standard input is not a terminal"
    ))
    .hint(format!("add --yes to {what} without being asked")))
}

/// Prints what will happen to each object, and asks for confirmation.
///
/// # Errors
/// 1 if the answer is not yes; `undone` says that nothing happened.
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
