//! `quorate ca show`.

use clap::Args;
use jiff::Timestamp;

use super::CaDir;
use crate::cli::exit::Failure;
use crate::cli::output::{Description, print};
use crate::identity::directory::{self, DirectoryError};
use crate::identity::{Authority, AuthorityKind};

/// Hours of a day.
const DAY: i64 = 24;

/// Arguments of `quorate ca show`.
#[derive(Args, Debug)]
#[command(after_help = "\
The digest is that of the certificate (SHA-256 in base32). While the authorities are rotated, those of next/ are shown as well.

Exit codes: 0 all can sign, 1 one cannot, or cannot be read.")]
pub struct ShowArgs {
    #[command(flatten)]
    ca: CaDir,
}

pub fn run(args: &ShowArgs) -> Result<(), Failure> {
    let now = Timestamp::now();
    let mut shown = Description::default();
    let mut failures = Vec::new();
    for kind in AuthorityKind::ALL {
        let read = directory::read(&args.ca.ca_dir, kind, now);
        describe(&mut shown, title(kind), &read, now);
        failures.extend(read.err().map(Failure::from));
    }
    if directory::has_next(&args.ca.ca_dir) {
        for kind in AuthorityKind::ALL {
            let read = directory::read_next(&args.ca.ca_dir, kind, now);
            describe(&mut shown, &format!("Next {}", title(kind)), &read, now);
            failures.extend(read.err().map(Failure::from));
        }
    }
    print(&shown.render())?;
    Failure::all("not every authority can sign:", &failures)
}

fn title(kind: AuthorityKind) -> &'static str {
    match kind {
        AuthorityKind::Node => "Node authority",
        AuthorityKind::Etcd => "etcd authority",
    }
}

fn describe(shown: &mut Description, title: &str, read: &Result<Authority, DirectoryError>, now: Timestamp) {
    shown.field(title, "");
    let authority = match read {
        Ok(authority) => authority,
        Err(error) => {
            shown.nested("Can sign", format!("no: {error}"));
            return;
        }
    };
    let days = authority.not_after().duration_since(now).as_hours() / DAY;
    shown
        .nested("Subject", authority.subject())
        .nested("Digest", authority.digest().to_string())
        .nested("Valid from", authority.not_before().to_string())
        .nested(
            "Valid until",
            format!("{} ({days} days left)", authority.not_after()),
        )
        .nested("Can sign", "yes");
}
