//! `quorate log-level`: what every replica writes to its log, changed while they run.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use clap::Args;
use jiff::SignedDuration;
use prost::Message;

use super::commit::commit;
use super::connection::{EtcdArgs, connect, connect_to_show};
use super::duration::whole_seconds;
use super::exit::Failure;
use super::output::{Reader, Table, UNKNOWN, note, one_line, print, warn};
use crate::etcd::{Etcd, LeaseId, Txn};
use crate::proto::LogLevel;
use crate::replica::{Level, NoLevel, is_module, read_log_level};
use crate::store::Store;
use crate::store::object::words::did_you_mean;

/// Arguments of `quorate log-level`.
#[derive(Args, Debug)]
#[command(after_help = "\
Without arguments: shows the levels that are set, and when each ends. Every replica, also one that starts later, takes them up within \
moments; above what its $RUST_LOG says, except for modules that $RUST_LOG names more exactly. etcd ends a level that was set with \
--for: the clocks of the replicas do not matter, and after a change of etcd's leader its time begins again. A replica that cannot \
reach etcd keeps the levels that it knows.

MODULE is quorate, a part of it such as quorate::roles or quorate::volumes::plan, or a library: h2, hyper, kube_client, rustls, \
tonic, tower. LEVEL is off, error, warn, info, debug or trace.

Examples:
  quorate log-level quorate::roles=debug --for 10m
  quorate log-level quorate=debug h2=info
  quorate log-level
  quorate log-level --reset quorate::roles
  quorate log-level --reset

Exit codes: 0 done, 1 failed, 64 usage: no module of Quorate, or no level.")]
pub struct LogLevelArgs {
    /// What to set; with --reset the modules alone, or none for all
    #[arg(value_name = "MODULE=LEVEL")]
    levels: Vec<String>,

    /// For how long; without it, until --reset
    #[arg(long = "for", value_name = "DURATION", value_parser = whole_seconds(DURATION), requires = "levels")]
    duration: Option<Duration>,

    /// Take levels back
    #[arg(long, conflicts_with = "duration")]
    reset: bool,
}

/// How long a level may be set for, in seconds: long enough for etcd, which grants no shorter lease, and up to a month.
const DURATION: RangeInclusive<u64> = 2..=2_678_400;

/// Libraries that write to the log as well.
const LIBRARIES: [&str; 6] = ["h2", "hyper", "kube_client", "rustls", "tonic", "tower"];

/// The parts of Quorate that a module can begin with: those of `src/lib.rs`.
const PARTS: [&str; 39] = [
    "agent",
    "causes",
    "check",
    "cli",
    "clock",
    "control",
    "csi",
    "deallocator",
    "etcd",
    "failpoint",
    "gate",
    "grpc_code",
    "grpc_status",
    "identity",
    "kube",
    "limit",
    "lines",
    "metrics",
    "mutation",
    "one_stream",
    "own_thread",
    "page",
    "prelude",
    "proto",
    "release",
    "replica",
    "resources",
    "retry",
    "roles",
    "secrets",
    "serve",
    "span",
    "store",
    "summary",
    "term",
    "traces",
    "volumes",
    "wipe",
    "wire",
];

/// Sets, shows or resets levels.
///
/// # Errors
/// 64 for what is no module or no level; 1 if etcd does not answer, or denies the write.
pub async fn run(args: LogLevelArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let said = if args.reset {
        reset(&args.levels, etcd).await?
    } else if args.levels.is_empty() {
        show(etcd).await?
    } else {
        set(&args.levels, args.duration, etcd).await?
    };
    print(&said).map(|_: Reader| ())
}

async fn set(given: &[String], duration: Option<Duration>, etcd: &EtcdArgs) -> Result<String, Failure> {
    let levels = given.iter().map(|given| parse(given));
    let levels = levels.collect::<Result<Vec<_>, _>>()?;
    let mut modules = BTreeSet::new();
    // etcd takes no transaction that writes a key twice.
    if let Some((twice, _)) = levels.iter().find(|(module, _)| !modules.insert(*module)) {
        return Err(Failure::usage(format_args!("{twice} is given twice")));
    }
    let Store { etcd, keys } = connect(etcd).await?;
    let lease = match duration {
        Some(duration) => Some(etcd.grant_lease(duration).await?),
        None => None,
    };
    let mut txn = Txn::new();
    for (module, level) in &levels {
        let level = level.word().to_owned();
        let value = LogLevel { level }.encode_to_vec();
        let key = keys.log_level(module);
        txn = match lease {
            Some((lease, _)) => txn.put_leased(&key, value, lease),
            None => txn.put(&key, value),
        };
    }
    // The last command decides, so that nothing is compared. Where the write fails, the lease ends by itself.
    commit(&etcd, txn, "set").await?;
    let until = match lease {
        Some((_, granted)) => format!("for {}", words(granted)),
        None => "until quorate log-level --reset".to_owned(),
    };
    let lines = levels
        .iter()
        .map(|(module, level)| format!("{module} is at {level} {until}\n"));
    Ok(lines.collect())
}

async fn reset(modules: &[String], etcd: &EtcdArgs) -> Result<String, Failure> {
    if let Some(wrong) = modules.iter().find(|module| !is_module(module)) {
        return Err(Failure::usage(format_args!("{wrong:?} is no module"))
            .hint("with --reset give modules alone, without a level; or nothing, for all of them"));
    }
    let Store { etcd, keys } = connect(etcd).await?;
    let txn = match modules.is_empty() {
        true => Txn::new().delete_range(&keys.log_levels()),
        false => modules
            .iter()
            .fold(Txn::new(), |txn, module| txn.delete(&keys.log_level(module))),
    };
    commit(&etcd, txn, "reset").await?;
    Ok(match modules.is_empty() {
        true => "all log levels are as each replica was started with\n".to_owned(),
        false => modules
            .iter()
            .map(|module| format!("{module} is at the level that each replica was started with\n"))
            .collect(),
    })
}

async fn show(etcd: &EtcdArgs) -> Result<String, Failure> {
    let Store { etcd, keys } = connect_to_show(etcd).await?;
    let (stored, _) = etcd.list(&keys.log_levels()).await?;
    let mut rows = vec![["MODULE", "LEVEL", "ENDS"].map(str::to_owned).to_vec()];
    for kv in &stored {
        let module = keys.parse_log_level(&kv.key).unwrap_or_default();
        match read_log_level(module, &kv.value) {
            Ok(level) => rows.push(vec![
                module.to_owned(),
                level.to_string(),
                end(&etcd, kv.lease).await,
            ]),
            Err(why) => warn(&format!(
                "{} cannot be read, and is ignored: {why}",
                one_line(&String::from_utf8_lossy(&kv.key))
            )),
        }
    }
    if rows.len() == 1 {
        note("no log levels are set: each replica is at those that it was started with");
        return Ok(String::new());
    }
    Ok(Table::default().lay_out(&rows))
}

/// When a level on this lease ends.
async fn end(etcd: &Etcd, lease: Option<LeaseId>) -> String {
    let Some(lease) = lease else {
        return "with --reset".to_owned();
    };
    match etcd.time_left(lease).await {
        Ok(left) => format!("in {}", words(left)),
        Err(_) => UNKNOWN.to_owned(),
    }
}

/// A duration of whole seconds, as flags take it.
fn words(duration: Duration) -> String {
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    format!("{:#}", SignedDuration::from_secs(seconds))
}

/// A module and its level.
fn parse(given: &str) -> Result<(&str, Level), Failure> {
    let Some((module, level)) = given.split_once('=') else {
        return Err(Failure::usage(format_args!(
            "{given:?} sets no level: expected MODULE=LEVEL, like quorate::roles=debug"
        )));
    };
    check_module(module)?;
    let level = level
        .parse()
        .map_err(|error: NoLevel| Failure::usage(error).on(module))?;
    Ok((module, level))
}

/// Refuses what can be no module of this release, so that a misspelt one is not set in vain. What stands below the first part of
/// Quorate is not checked.
fn check_module(module: &str) -> Result<(), Failure> {
    let mut path = module.split("::");
    let (first, part) = (path.next().unwrap_or_default(), path.next());
    let known = match part {
        _ if LIBRARIES.contains(&first) => true,
        None => first == "quorate",
        Some(part) => first == "quorate" && PARTS.contains(&part),
    };
    if known && is_module(module) {
        return Ok(());
    }
    let modules = PARTS.map(|part| format!("quorate::{part}"));
    let all = modules.iter().map(String::as_str).chain(LIBRARIES);
    let hint = did_you_mean(module, all.chain(["quorate"]));
    Err(
        Failure::usage(format_args!("{module:?} is no module that writes to the log{hint}")).hint(
            "expected quorate, quorate::PART like quorate::roles, or a library: quorate log-level --help lists them",
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_the_modules_of_the_library() {
        let library = include_str!("../lib.rs");
        let mut declared: Vec<&str> = library
            .lines()
            .filter_map(|line| line.strip_prefix("pub mod "))
            .map(|rest| rest.trim_end_matches([';', ' ', '{']))
            .collect();
        declared.sort_unstable();
        assert_eq!(declared, PARTS);
    }

    #[test]
    fn a_module_of_quorate_or_of_a_library_has_a_level_and_nothing_else_has() {
        for (given, module, level) in [
            ("quorate=debug", "quorate", Level::Debug),
            ("quorate::roles=off", "quorate::roles", Level::Off),
            (
                "quorate::volumes::plan=trace",
                "quorate::volumes::plan",
                Level::Trace,
            ),
            ("h2=warn", "h2", Level::Warn),
            ("h2::codec=info", "h2::codec", Level::Info),
        ] {
            assert_eq!(parse(given).unwrap(), (module, level));
        }
        for (given, why) in [
            ("quorate", "expected MODULE=LEVEL"),
            ("debug", "expected MODULE=LEVEL"),
            ("quorate::rolls=debug", "quorate::roles"),
            ("roles=debug", "is no module"),
            ("quorate::roles::=debug", "is no module"),
            ("quorate::roles[x]=debug", "is no module"),
            ("=debug", "is no module"),
            ("quorate=loud", "is not a level"),
            ("quorate=DEBUG", "is not a level"),
            ("quorate=debug,h2=trace", "is not a level"),
        ] {
            let failure = parse(given).unwrap_err().to_string();
            assert!(failure.contains(why), "{given}: {failure}");
        }
    }
}
