//! `quorate version`: the version of this program, and of the replicas that run.

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::connection::{EtcdArgs, connect_to_show};
use super::exit::Failure;
use super::objects::kinds::registry::find;
use super::output::{Table, one_line, print, yes_no};
use crate::release::own_version;
use crate::store::object::text::to_json;

/// Arguments of `quorate version`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quorate version
  quorate version --client            # without a question to etcd
  quorate version -o json | jq -r '.replicas[].version'")]
pub struct VersionArgs {
    /// Only the version of this program
    #[arg(long)]
    client: bool,

    /// How to show it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Form,
}

/// How versions are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Form {
    /// In words
    #[default]
    Text,
    /// As JSON
    Json,
}

/// Runs the command.
///
/// # Errors
/// 1 if etcd does not answer; the version of this program is printed all the same.
pub async fn run(args: VersionArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let own = own_version().to_string();
    let replicas = match args.client {
        true => Ok(None),
        false => replicas(etcd).await.map(Some),
    };
    let (replicas, failure) = match replicas {
        Ok(replicas) => (replicas, None),
        Err(failure) => (None, Some(failure)),
    };
    let text = match args.output {
        Form::Json => to_json(&json!({"client": own, "replicas": replicas})),
        Form::Text => words(&own, replicas.as_deref()),
    };
    print(&text)?;
    failure.map_or(Ok(()), Err)
}

/// The status of each replica, with its name.
async fn replicas(etcd: &EtcdArgs) -> Result<Vec<Value>, Failure> {
    let kind = find("replicas").map_err(Failure::failed)?;
    let store = connect_to_show(etcd).await?;
    let view = kind.read(&store, &[]).await?;
    let (found, _) = kind.select(&view, &[], Timestamp::now());
    let replicas = found.iter().map(|item| {
        let shown = kind.show(item);
        let status = &shown.document["status"];
        json!({"name": item.name, "version": status["version"], "leader": status["leader"], "malformed": shown.malformed})
    });
    Ok(replicas.collect())
}

fn words(own: &str, replicas: Option<&[Value]>) -> String {
    let mut text = format!("This program: {own}\n");
    let Some(replicas) = replicas else { return text };
    if replicas.is_empty() {
        return text + "No replica is registered\n";
    }
    let mut rows = vec![["REPLICA", "VERSION", "LEADER"].map(str::to_owned).to_vec()];
    rows.extend(replicas.iter().map(|replica| {
        vec![
            one_line(replica["name"].as_str().unwrap_or_default()),
            replica["version"].as_str().unwrap_or("<malformed>").to_owned(),
            yes_no(replica["leader"] == true).to_owned(),
        ]
    }));
    text.push_str(&Table::default().lay_out(&rows));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_shown_of_this_program_and_of_each_replica() {
        let replicas = [
            json!({"name": "a", "version": "1.2.0", "leader": true}),
            json!({"name": "b", "version": null, "leader": null}),
        ];
        assert_eq!(
            words("1.3.0", Some(&replicas)),
            "This program: 1.3.0\nREPLICA   VERSION       LEADER\na         1.2.0         yes\nb         <malformed>   no\n"
        );
        assert_eq!(
            words("1.3.0", Some(&[])),
            "This program: 1.3.0\nNo replica is registered\n"
        );
        assert_eq!(words("1.3.0", None), "This program: 1.3.0\n");
    }
}
