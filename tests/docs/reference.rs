//! The tables of docs/reference.md, generated from the program and the message definitions.

use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, ArgAction, Command, CommandFactory};
use quorate::cli::{Cli, exit};
use quorate::metrics::{self, Metrics};
use quorate_dev::workspace::root;
use regex::Regex;

use super::{expect_manual, manuals, read};

const FILE: &str = "docs/reference.md";

/// Replaces the text between `<!-- generated: NAME -->` and `<!-- end -->`.
fn replace(manual: &str, name: &str, table: &str) -> String {
    let begin = format!("<!-- generated: {name} -->\n");
    let (before, rest) = manual
        .split_once(&begin)
        .unwrap_or_else(|| panic!("{FILE} has no {begin}"));
    let (_, after) = rest
        .split_once("<!-- end -->")
        .unwrap_or_else(|| panic!("{name} has no end"));
    format!("{before}{begin}\n{table}\n<!-- end -->{after}")
}

/// One cell of a table.
fn cell(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|").trim().to_owned()
}

fn code(text: &str) -> String {
    match text.is_empty() {
        true => String::new(),
        false => format!("`{text}`"),
    }
}

/// `--flag VALUE`, or `VALUE` for an argument without a name.
fn shown(arg: &Arg) -> String {
    let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let names = arg.get_value_names().unwrap_or_default();
    let values: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    let values = match takes_value {
        true => values.join(" "),
        false => String::new(),
    };
    let long = arg.get_long().map(|long| format!("--{long}"));
    let short = arg.get_short().map(|short| format!("-{short}"));
    let flags: Vec<String> = short.into_iter().chain(long).collect();
    format!("{} {values}", flags.join(", ")).trim().to_owned()
}

fn arguments<'a>(args: impl Iterator<Item = &'a Arg>) -> String {
    let mut table = String::new();
    for arg in args {
        let id = arg.get_id().as_str();
        if arg.is_hide_set() || ["help", "version"].contains(&id) {
            continue;
        }
        let defaults = arg.get_default_values().iter();
        let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
        let defaults: Vec<_> = defaults
            .map(|value| value.to_string_lossy())
            .filter(|_| takes_value)
            .collect();
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned());
        let _ = writeln!(
            table,
            "| `{}` | {} | {} | {} |",
            cell(&shown(arg)),
            code(&cell(&defaults.join(","))),
            code(&variable.unwrap_or_default()),
            cell(&help)
        );
    }
    match table.is_empty() {
        true => table,
        false => format!("| argument | default | variable | meaning |\n| --- | --- | --- | --- |\n{table}"),
    }
}

/// Every command that people run, with its arguments; those of all commands come first.
fn commands() -> String {
    fn walk(command: &Command, path: &str, text: &mut String) {
        let visible = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let own = arguments(command.get_arguments().filter(|arg| !arg.is_global_set()));
        if !command.get_subcommands().any(|command| visible(&command)) {
            let _ = writeln!(text, "### {path}\n\n{}.\n", cell(&about));
            if !own.is_empty() {
                let _ = writeln!(text, "{own}");
            }
        }
        for command in command.get_subcommands().filter(visible) {
            walk(command, &format!("{path} {}", command.get_name()), text);
        }
    }
    let cli = Cli::command();
    let global = arguments(cli.get_arguments());
    let mut text = format!("### Every command\n\n{global}\n");
    walk(&cli, "quorate", &mut text);
    text.trim_end().to_owned() + "\n"
}

/// Metrics with a series for every family, also for those that have none before their first event.
fn every_family() -> String {
    let handles = Metrics::new("0.0.0");
    let (operation, code) = ("", "");
    drop(
        handles
            .etcd_request_seconds
            .get_or_create(&metrics::Request { operation, code }),
    );
    drop(handles.resources.get_or_create(&metrics::Outcome { result: "" }));
    for volumes in [&handles.volumes, &handles.agent_volumes] {
        drop(volumes.get_or_create(&metrics::State { state: "" }));
    }
    let blocked = metrics::Blocked {
        kind: "",
        reason: String::new(),
    };
    drop(handles.volumes_blocked.get_or_create(&blocked));
    let call = metrics::ControlCall { method: "", code: "" };
    drop(handles.control_calls.get_or_create(&call));
    let call = metrics::CsiOperation {
        driver_name: String::new(),
        method_name: "",
        grpc_status_code: "",
    };
    handles.set_csi_plugin("", false, 0, 0);
    drop(handles.csi_operations_seconds.get_or_create(&call));
    handles.encode()
}

/// The labels of a metric, from its first series.
fn labels(exposition: &str, sample: &str) -> String {
    let series = Regex::new(&format!(r"(?m)^{sample}(?:_count)?\{{([^}}]*)\}} ")).unwrap();
    let Some(found) = series.captures(exposition) else {
        return String::new();
    };
    let label = Regex::new(r#"(\w+)="[^"]*""#).unwrap();
    let names: Vec<String> = label
        .captures_iter(&found[1])
        .map(|name| format!("`{}`", &name[1]))
        .collect();
    names.join(", ")
}

/// Every metric by the name of its samples, with its type, labels and help.
fn metrics() -> String {
    let exposition = every_family();
    let help = Regex::new(r"(?m)^# HELP (\S+) (.*)\.$").unwrap();
    let mut rows: Vec<String> = Vec::new();
    for found in help.captures_iter(&exposition) {
        let (name, help) = (&found[1], &found[2]);
        let sort = Regex::new(&format!(r"(?m)^# TYPE {name} (\S+)$")).unwrap();
        let sort = sort.captures(&exposition).unwrap()[1].to_owned();
        let sample = match sort.as_str() {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name.to_owned(),
        };
        let labels = labels(&exposition, &sample);
        rows.push(format!("| `{sample}` | {sort} | {labels} | {} |\n", cell(help)));
    }
    let declared = Regex::new(r"(?m)^    [a-z_]+: .*,$").unwrap();
    let source = read(Path::new("src/metrics/mod.rs"));
    let (_, source) = source.split_once("\nmetrics! {").unwrap();
    let (source, _) = source.split_once("\n}").unwrap();
    // One more: the metric of the build.
    assert_eq!(
        rows.len(),
        declared.find_iter(source).count() + 1,
        "a family has no series here"
    );
    format!(
        "| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n{}",
        rows.concat()
    )
}

fn exit_codes() -> String {
    let (_, list) = exit::TABLE.split_once(": ").unwrap();
    let rows = list.trim_end_matches('.').split(", ").map(|entry| {
        let (number, meaning) = entry.split_once(' ').unwrap();
        format!("| {number} | {meaning} |\n")
    });
    format!("| code | meaning |\n| --- | --- |\n{}", rows.collect::<String>())
}

/// Every key whose value is a message, from the comments of the message definitions.
fn keys() -> String {
    let folder = root().join("proto/quorate/v1");
    let key = Regex::new(r"(?m)^// Key: <prefix>((?:<[^>]*>|[^\s.,<])+)").unwrap();
    let message = Regex::new(r"(?m)^message (\w+)").unwrap();
    let mut rows: Vec<String> = Vec::new();
    let mut keys = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        keys += text.matches("// Key: ").count();
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        rows.extend(key.captures_iter(&text).map(|found| {
            // One message may be the value of several keys.
            let rest = &text[found.get(0).unwrap().end()..];
            let message = &message.captures(rest).unwrap()[1];
            let key = &found[1];
            format!("| `{key}` | [`{message}`](../proto/quorate/v1/{file}) |\n")
        }));
    }
    rows.sort();
    assert_eq!(rows.len(), keys, "{rows:#?}");
    format!(
        "| key below the prefix | value |\n| --- | --- |\n{}",
        rows.concat()
    )
}

#[test]
fn the_tables_of_the_reference_are_those_of_the_program() {
    let manual = read(Path::new(FILE));
    let mut expected = manual.clone();
    for (name, table) in [
        ("commands", commands()),
        ("metrics", metrics()),
        ("exit codes", exit_codes()),
        ("keys", keys()),
    ] {
        expected = replace(&expected, name, &table);
    }
    let faults: String = expected
        .lines()
        .filter(|line| !manual.contains(line))
        .map(|line| format!("missing: {line}\n"))
        .collect();
    let faults = match faults.is_empty() && manual != expected {
        true => "lines that are obsolete, or in another order\n".to_owned(),
        false => faults,
    };
    expect_manual(Path::new(FILE), &expected, &faults);
}

#[test]
fn every_metric_and_variable_that_a_manual_names_exists() {
    let (metrics, commands) = (metrics(), commands());
    let metric = Regex::new(r"\bquorate_[a-z_]+[a-z]\b").unwrap();
    let variable = Regex::new(r"\bQUORATE_[A-Z_]+[A-Z]\b").unwrap();
    let mut found = 0;
    for file in manuals() {
        let text = read(&file);
        for name in metric.find_iter(&text) {
            found += 1;
            let name = name.as_str();
            let base = name
                .trim_end_matches("_bucket")
                .trim_end_matches("_count")
                .trim_end_matches("_sum");
            assert!(
                metrics.contains(&format!("`{base}`")),
                "{} names {name}",
                file.display()
            );
        }
        for name in variable.find_iter(&text) {
            found += 1;
            let name = name.as_str();
            assert!(
                commands.contains(&format!("`{name}`")),
                "{} names {name}",
                file.display()
            );
        }
    }
    assert!(found > 20, "only {found} names were found");
}
