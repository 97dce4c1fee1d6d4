//! How the settings are printed with which etcd starts as a member that is listed already. Pure.

use serde_json::{Map, Value};

use super::JoinFormat;
use crate::cli::output::shell_word;
use crate::etcd::MemberId;
use crate::roles::settings::EtcdSettings;
use crate::store::Name;
use crate::store::object::text::to_json;

/// The settings of this member of the node, in this format.
pub fn render(settings: &EtcdSettings, node: &Name, member: MemberId, format: JoinFormat) -> String {
    let lines = |indent: &str| -> String {
        let line = |(name, value): &(&str, String)| format!("{indent}{name}={}\n", shell_word(value));
        settings.variables.iter().map(line).collect()
    };
    match format {
        JoinFormat::Env => lines(""),
        JoinFormat::Json => {
            let pairs = settings.variables.iter();
            let pairs = pairs.map(|(name, value)| ((*name).to_owned(), Value::from(value.as_str())));
            to_json(&Value::Object(pairs.collect::<Map<_, _>>()))
        }
        JoinFormat::Text => {
            let kind = if settings.learner { "a learner" } else { "a voter" };
            let (data, lost) = match settings.started {
                true => (
                    "its existing data directory",
                    format!("If that is lost: quorate replace {node}\n"),
                ),
                false => ("an empty data directory", String::new()),
            };
            format!(
                "node/{node}: member {member} is in etcd's list as {kind}. Start its etcd on {data} with\n{}{lost}",
                lines("  ")
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(started: bool) -> EtcdSettings {
        EtcdSettings {
            learner: !started,
            started,
            variables: vec![
                ("ETCD_NAME", "it's $HOME".to_owned()),
                ("ETCD_ADVERTISE_CLIENT_URLS", "http://a;reboot:2379".to_owned()),
            ],
        }
    }

    fn printed(started: bool, format: JoinFormat) -> String {
        render(&settings(started), &"n4".parse().unwrap(), MemberId(2), format)
    }

    #[test]
    fn no_value_means_more_than_itself_to_a_shell() {
        assert_eq!(
            printed(false, JoinFormat::Env),
            "ETCD_NAME='it'\\''s $HOME'\nETCD_ADVERTISE_CLIENT_URLS='http://a;reboot:2379'\n"
        );
        let json = printed(false, JoinFormat::Json);
        assert!(json.contains("\"ETCD_NAME\": \"it's $HOME\""), "{json}");
    }

    #[test]
    fn a_first_start_takes_an_empty_directory_and_any_other_the_data_that_is_there() {
        let first = printed(false, JoinFormat::Text);
        assert!(
            first.contains("as a learner") && first.contains("on an empty data directory"),
            "{first}"
        );
        let again = printed(true, JoinFormat::Text);
        assert!(
            again.contains("as a voter") && again.contains("its existing data directory"),
            "{again}"
        );
        assert!(
            again.ends_with("If that is lost: quorate replace n4\n"),
            "{again}"
        );
    }
}
