//! The log on stderr, and the levels that it is written at.

use tokio::sync::watch;
use tracing::info;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{Directive, EnvFilter, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, fmt, registry, reload};

use super::LogFormat;
use crate::lines;
use crate::replica::LogLevels;
use crate::span;
use crate::traces::SpanLayer;

/// The log of this process, whose levels can be changed while it runs.
pub struct Log {
    levels: reload::Handle<EnvFilter, Registry>,
}

impl Log {
    /// Starts the log; with `traces`, the spans of the program as well. Where a log was started before, that one serves.
    pub fn start(format: LogFormat, traces: Option<SpanLayer>) -> Self {
        let lines = fmt::layer::<Registry>()
            .with_ansi(false)
            .with_writer(lines::stderr);
        let lines: Box<dyn Layer<Registry> + Send + Sync> = match format {
            LogFormat::Text => lines.boxed(),
            LogFormat::Json => {
                lines::stderr().in_json();
                lines.json().flatten_event(true).boxed()
            }
        };
        let (filter, levels) = reload::Layer::new(filter(&LogLevels::new()));
        let log = registry().with(lines.with_filter(filter));
        // Without traces there is nothing that takes a span: each is disabled where it is made.
        let _ = match traces {
            None => log.try_init(),
            Some(traces) => {
                let spans = filter_fn(SpanLayer::takes).with_max_level_hint(LevelFilter::DEBUG);
                log.with(traces.with_filter(spans)).try_init()
            }
        };
        Self { levels }
    }

    /// Writes at the levels that operators have set, after each change. Ends once nothing publishes them.
    pub async fn follow(&self, mut set: watch::Receiver<LogLevels>) {
        while set.changed().await.is_ok() {
            let levels = set.borrow_and_update().clone();
            // Fails where this log never started, so that there is nothing to set.
            let _ = self.levels.reload(filter(&levels));
            info!("log levels: {}", words(&levels));
        }
    }
}

/// The levels in words.
fn words(levels: &LogLevels) -> String {
    let words: Vec<String> = levels
        .iter()
        .map(|(module, level)| format!("{module}={level}"))
        .collect();
    match words.is_empty() {
        true => "as at the start".to_owned(),
        false => format!("{}; all others as at the start", words.join(" ")),
    }
}

/// What of the log is written: `$RUST_LOG`, and above it these levels.
fn filter(levels: &LogLevels) -> EnvFilter {
    let start = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(format!("info,{}", crate::kube::QUIET)));
    let set = levels.iter().map(|(module, level)| format!("{module}={level}"));
    // No line of the log shows a span of traces, at whichever level.
    let spans = format!("{}=off", span::TARGET);
    // That the levels have changed is said at whichever level, so that a log that ends says why.
    let changes = format!("{}=info", module_path!());
    // The path of a module and the word of a level make a directive.
    let directives = set
        .chain([spans, changes])
        .filter_map(|text| text.parse::<Directive>().ok());
    directives.fold(start, EnvFilter::add_directive)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::replica::Level;

    #[test]
    fn the_log_makes_no_span_at_whichever_level() {
        let everything = LogLevels::from([("quorate".to_owned(), Level::Trace)]);
        for levels in [LogLevels::new(), everything] {
            let lines = fmt::layer::<Registry>().with_writer(io::sink);
            let log = registry().with(lines.with_filter(filter(&levels)));
            tracing::subscriber::with_default(log, || {
                assert!(span::pass("x").is_disabled(), "{levels:?}");
            });
        }
    }

    #[test]
    fn a_change_of_the_levels_is_said_where_nothing_else_is() {
        let nothing = LogLevels::from([
            ("quorate".to_owned(), Level::Off),
            ("quorate::cli::run::log".to_owned(), Level::Off),
        ]);
        let shown = filter(&nothing).to_string();
        assert!(shown.contains("quorate=off"), "{shown}");
        assert!(shown.contains("quorate::cli::run::log=info"), "{shown}");
    }

    #[test]
    fn a_level_of_a_module_stands_above_those_of_the_start() {
        let levels = LogLevels::from([("quorate::roles".to_owned(), Level::Debug)]);
        let shown = filter(&levels).to_string();
        assert!(shown.contains("quorate::roles=debug"), "{shown}");
        assert!(shown.contains("quorate::span=off"), "{shown}");
        assert!(!filter(&LogLevels::new()).to_string().contains("roles"));
        assert_eq!(words(&levels), "quorate::roles=debug; all others as at the start");
    }
}
