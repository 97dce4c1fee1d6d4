//! The program of `make chaos`.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser;
use clap::builder::PossibleValuesParser;
use quorate::cli::companion;
use quorate::store::keys::BadPrefix;
use quorate_chaos::Error;
use quorate_chaos::check::{check, judged};
use quorate_chaos::history::History;
use quorate_chaos::mutations;
use quorate_chaos::report::{again, remove, report};
use quorate_chaos::run::{Options, run};
use quorate_chaos::schedule::KINDS;
use quorate_dev::workspace::Programs;

/// Overlapping faults against a whole Quorate cluster, and a check of what it did meanwhile.
#[derive(Parser, Debug)]
#[command(max_term_width = 100)]
struct Args {
    /// From which everything follows [default: fresh ones, one run after the other, until one fails]
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,

    /// How many faults; none: a cluster is watched that is left alone
    #[arg(long, value_name = "N", default_value_t = 200)]
    faults: u32,

    /// Only faults of these kinds [default: all]
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = PossibleValuesParser::new(KINDS))]
    only: Vec<String>,

    /// How many times as long it takes from one fault to the next
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pace: u64,

    /// How long a cluster is watched that is left alone
    #[arg(long, value_name = "MINUTES", default_value_t = 10)]
    minutes: u64,

    /// Runs with fresh seeds [default: without end]
    #[arg(long, value_name = "N", conflicts_with = "seed")]
    runs: Option<u32>,

    /// Where each run has a directory for its files [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,

    /// Keep the directory of a run that passes, too
    #[arg(long)]
    keep: bool,

    /// Run without an apiserver: no resources, and nothing of the gate
    #[arg(long)]
    no_kubernetes: bool,

    /// The quorate to run [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,

    /// Check a recorded history again, and run nothing
    #[arg(long, value_name = "FILE", exclusive = true)]
    check: Option<PathBuf>,

    /// The guard that a program that was built for it takes out of the replicas
    #[arg(long, value_name = "NAME", requires = "program", value_parser = guard)]
    mutation: Option<String>,
}

fn main() -> ExitCode {
    // On this thread processes are started: they end with it.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(runs(&Args::parse())),
        Err(error) => Err(Error::Harness(format!("cannot start: {error}"))),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let mut causes = format!("chaos: the run was not carried out: {error}");
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                causes += &format!(": {cause}");
                source = cause.source();
            }
            eprintln!("{causes}");
            ExitCode::from(2)
        }
    }
}

/// Checks a history that was recorded; whether it passes.
fn check_again(file: &Path) -> Result<bool, Error> {
    let reading = File::open(file).map_err(Error::read(file))?;
    let history = History::read(BufReader::new(reading))?;
    let unreadable = |error: BadPrefix| Error::Harness(error.to_string());
    let violations = check(&history).map_err(unreadable)?;
    for violation in &violations {
        println!("{}: {}", violation.check, violation.render(&history));
    }
    println!("chaos: judged: {}", judged(&history).map_err(unreadable)?);
    println!("chaos: {} violations", violations.len());
    Ok(violations.is_empty())
}

/// Runs one seed, or fresh ones; whether all passed.
async fn runs(args: &Args) -> Result<bool, Error> {
    if let Some(file) = &args.check {
        return check_again(file);
    }
    let mut left = args.runs.unwrap_or(u32::MAX);
    loop {
        let seed = args.seed.unwrap_or_else(fresh_seed);
        let options = options(args, seed)?;
        println!("chaos: seed {seed}: {}", again(&options));
        let ran = tokio::select! {
            ran = run(&options) => ran,
            _ = tokio::signal::ctrl_c() => {
                println!("chaos: interrupted; the files of this run are in {}", options.directory.display());
                return Ok(true);
            }
        };
        let verdict = ran.inspect_err(|_| {
            eprintln!(
                "chaos: the files of this run are in {}",
                options.directory.display()
            );
        })?;
        if !verdict.passes() {
            println!("{}", report(&verdict, &options));
            return Ok(false);
        }
        println!(
            "chaos: seed {seed} passed: {} events, no invariant broken, everything settled; judged: {}",
            verdict.history.events.len(),
            verdict.judged
        );
        if !args.keep {
            remove(&options.directory).map_err(Error::write(&options.directory))?;
        }
        left -= 1;
        if args.seed.is_some() || left == 0 {
            return Ok(true);
        }
    }
}

fn options(args: &Args, seed: u64) -> Result<Options, Error> {
    let base = args.directory.clone().unwrap_or_else(std::env::temp_dir);
    let directory = base.join(format!("quorate-chaos-{seed}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).map_err(Error::write(&directory))?;
    let directory = directory.canonicalize().map_err(Error::read(&directory))?;
    let find = |name: &str| {
        let found = companion::find(name);
        found.ok_or_else(|| Error::Harness(format!("{name} is not beside this program: run `make build`")))
    };
    // So that the command that a report shows repeats a run without a guard.
    let mutation = args.mutation.as_deref().and_then(mutations::named);
    Ok(Options {
        seed,
        faults: args.faults,
        only: args.only.clone(),
        pace: args.pace,
        deeds: mutation.map_or_else(Vec::new, |mutation| mutation.deeds.to_vec()),
        minutes: args.minutes,
        directory,
        programs: Programs {
            quorate: match &args.program {
                Some(program) => program.clone(),
                None => find("quorate")?,
            },
            quorate_dev: find("quorate-dev")?,
        },
        kubernetes: !args.no_kubernetes,
        mutation: args.mutation.clone().unwrap_or_default(),
    })
}

fn guard(name: &str) -> Result<String, String> {
    match mutations::named(name) {
        Some(_) => Ok(name.to_owned()),
        None => {
            let guards: Vec<_> = mutations::ALL.iter().map(|mutation| mutation.guard).collect();
            Err(format!("no such guard; expected one of {}", guards.join(", ")))
        }
    }
}

fn fresh_seed() -> u64 {
    // The clock is after 1970.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() * 1_000 + u64::from(since.subsec_millis())
}
