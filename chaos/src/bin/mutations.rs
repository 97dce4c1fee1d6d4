//! The program of `make mutations`: runs replicas without a guard, one guard after the other, until the checker finds that it is gone.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use quorate::cli::companion;
use quorate_chaos::Error;
use quorate_chaos::check::{Violation, check};
use quorate_chaos::history::History;
use quorate_chaos::mutations::{ALL, Mutation};
use quorate_chaos::run::{Options, history_file, run};
use quorate_dev::workspace::Programs;

/// Takes each guard out of the replicas in turn, and shows by what the checker finds that it is gone.
#[derive(Parser, Debug)]
#[command(max_term_width = 100)]
struct Args {
    /// A quorate that was built for this
    #[arg(long, value_name = "FILE")]
    program: PathBuf,

    /// Only these guards
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    guards: Vec<String>,

    /// The first seed
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,

    /// Seeds for each guard, at most
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: u64,

    /// Faults of each seed [default: as many as the guard needs]
    #[arg(long, value_name = "N")]
    faults: Option<u32>,

    /// Where each run has a directory for its files [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,

    /// Keep the directories of the runs
    #[arg(long)]
    keep: bool,
}

/// By which run a guard was found missing.
struct Found {
    seed: u64,
    violation: Violation,
    seconds: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(unknown) = args
        .guards
        .iter()
        .find(|name| !ALL.iter().any(|known| known.guard == **name))
    {
        let known: Vec<&str> = ALL.iter().map(|mutation| mutation.guard).collect();
        eprintln!("mutations: {unknown} is no guard: expected {}", known.join(", "));
        return ExitCode::from(64);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => runtime.block_on(all(&args)),
        Err(error) => {
            eprintln!("mutations: cannot start: {error}");
            ExitCode::from(2)
        }
    }
}

/// Takes the guards out, one after the other, and prints a row for each.
async fn all(args: &Args) -> ExitCode {
    println!(
        "| guard | invariant | seed | faults | s | found by | as |\n| --- | --- | --- | --- | --- | --- | --- |"
    );
    let mut missed = 0;
    for mutation in ALL {
        if !args.guards.is_empty() && !args.guards.iter().any(|name| name == mutation.guard) {
            continue;
        }
        let found = seeds(args, mutation).await;
        let faults = args.faults.unwrap_or(mutation.faults);
        let row = match &found {
            Some(found) => format!(
                "{} | {} | {} | {} | {}",
                found.seed, faults, found.seconds, found.violation.check, found.violation.sentence
            ),
            None => format!("| {faults} | | not found within {} seeds |", args.runs),
        };
        println!("| {} | {} | {row} |", mutation.guard, mutation.rule);
        missed += u32::from(found.is_none());
    }
    match missed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

async fn seeds(args: &Args, mutation: Mutation) -> Option<Found> {
    let begun = Instant::now();
    for seed in args.seed..args.seed + args.runs {
        let options = options(args, mutation, seed).inspect_err(|error| eprintln!("mutations: {error}"));
        let violation = without(&options.ok()?, mutation, args.keep).await;
        if let Some(violation) = violation {
            return Some(Found {
                seed,
                violation,
                seconds: begun.elapsed().as_secs(),
            });
        }
    }
    None
}

/// One run without the guard: what the check found that has to find this. What a run recorded counts even if it could not be completed: a cluster
/// without a guard may come to a standstill.
async fn without(options: &Options, mutation: Mutation, keep: bool) -> Option<Violation> {
    let violations = match run(options).await {
        Ok(verdict) => verdict.violations,
        Err(error) => {
            eprintln!(
                "mutations: {} was not carried out to its end: {error}",
                mutation.guard
            );
            recorded(options)
        }
    };
    let is_sought = |violation: &Violation| violation.check == mutation.check;
    for violation in violations.iter().filter(|violation| !is_sought(violation)) {
        eprintln!(
            "mutations: without {}, too: {}: {}: {}",
            mutation.guard, violation.rule, violation.check, violation.sentence
        );
    }
    if !keep && let Err(error) = std::fs::remove_dir_all(&options.directory) {
        eprintln!(
            "mutations: {} cannot be removed: {error}",
            options.directory.display()
        );
    }
    violations.into_iter().find(is_sought)
}

fn recorded(options: &Options) -> Vec<Violation> {
    let read = std::fs::File::open(history_file(&options.directory)).ok();
    let history = read.and_then(|file| History::read(std::io::BufReader::new(file)).ok());
    history
        .and_then(|history| check(&history).ok())
        .unwrap_or_default()
}

fn options(args: &Args, mutation: Mutation, seed: u64) -> Result<Options, Error> {
    let base = args.directory.clone().unwrap_or_else(std::env::temp_dir);
    let name = format!(
        "quorate-mutation-{}-{seed}-{}",
        mutation.guard,
        std::process::id()
    );
    let directory = base.join(name);
    std::fs::create_dir_all(&directory).map_err(Error::write(&directory))?;
    let directory = directory.canonicalize().map_err(Error::read(&directory))?;
    let quorate_dev = companion::find("quorate-dev").ok_or_else(|| {
        Error::Harness("quorate-dev is not beside this program: run `make build`".to_owned())
    })?;
    Ok(Options {
        seed,
        faults: args.faults.unwrap_or(mutation.faults),
        only: mutation.under.iter().map(|kind| (*kind).to_owned()).collect(),
        pace: mutation.pace,
        deeds: mutation.deeds.to_vec(),
        minutes: 0,
        directory,
        programs: Programs {
            quorate: args.program.clone(),
            quorate_dev,
        },
        kubernetes: true,
        mutation: mutation.guard.to_owned(),
    })
}
