//! Command lines. They are parsed, and no command runs.

use std::sync::LazyLock;

use clap::{CommandFactory as _, FromArgMatches as _};
use quorate::cli::Cli;

static COMMAND: LazyLock<clap::Command> = LazyLock::new(Cli::command);

/// Parses a command line: a word a line, without the name of the program.
pub fn flags(data: &[u8]) {
    let words = std::iter::once("quorate").chain(crate::text(data).lines());
    let parsed = COMMAND.clone().try_get_matches_from(words);
    let parsed = parsed.and_then(|matches| Cli::from_arg_matches(&matches));
    if let Err(shown) = parsed {
        let said = shown.render().to_string();
        assert!(!said.trim().is_empty());
        assert!(shown.use_stderr() || !said.starts_with("error: "), "{said}");
    }
}
