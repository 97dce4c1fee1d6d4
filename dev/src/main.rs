//! Parse, run, exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    quorate_dev::cli::main()
}
