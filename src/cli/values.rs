//! Values of flags and their variables, with messages that say what is expected.

use std::env;
use std::net::SocketAddr;

use clap::{Command, Parser};

use crate::identity::etcd::Host;

/// Parses the command line of this process. A variable that is empty counts as none, since a manifest may set it to nothing; but a flag
/// with a default takes it, so that an empty list of endpoints does not become the default one.
///
/// # Errors
/// What clap has to say, help included.
pub fn parse<C: Parser>() -> Result<C, clap::Error> {
    let mut matches = without_empty_variables(C::command()).try_get_matches()?;
    C::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut C::command()))
}

fn without_empty_variables(command: Command) -> Command {
    command
        .mut_args(|arg| {
            let value = arg.get_env().and_then(env::var_os);
            match value.is_some_and(|value| value.is_empty()) && arg.get_default_values().is_empty() {
                true => arg.env(None::<&'static str>),
                false => arg,
            }
        })
        .mut_subcommands(without_empty_variables)
}

/// Parses the variable of a switch.
///
/// # Errors
/// A sentence that says what is expected.
pub fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err("expected true, yes, on or 1, or false, no, off or 0".to_owned()),
    }
}

/// Parses an address to listen on.
///
/// # Errors
/// A sentence that says what is expected.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "expected ADDRESS:PORT, like 0.0.0.0:8080".to_owned())
}

/// Parses the name of a host, as a browser sends it.
///
/// # Errors
/// A sentence that says what is expected.
pub fn host_name(text: &str) -> Result<String, String> {
    match Host::parse(text.strip_suffix('.').unwrap_or(text)) {
        Ok(_) if !text.contains('*') => Ok(text.to_owned()),
        _ => Err("expected the name of a host, like quorate.example.com, without scheme and port".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_host_has_no_scheme_no_port_and_no_wildcard() {
        for name in ["quorate.example.com", "Ctl1.example.com.", "ctl1", "10.0.0.4"] {
            assert_eq!(host_name(name), Ok(name.to_owned()));
        }
        for other in ["", "http://x", "x:8080", "*.example.com", "a b"] {
            assert!(
                host_name(other).unwrap_err().starts_with("expected the name"),
                "{other}"
            );
        }
    }

    #[test]
    fn a_switch_is_written_in_words_or_as_a_number() {
        for text in ["true", "True", "yes", "on", "1"] {
            assert_eq!(switch(text), Ok(true), "{text}");
        }
        for text in ["false", "FALSE", "no", "off", "0"] {
            assert_eq!(switch(text), Ok(false), "{text}");
        }
        for text in ["", "maybe", "2"] {
            assert!(switch(text).unwrap_err().starts_with("expected true"), "{text}");
        }
    }

    #[test]
    fn an_address_has_a_port() {
        assert!(address("[::1]:8080").is_ok());
        for text in ["", "nowhere", "127.0.0.1", "localhost:8080"] {
            assert!(
                address(text).unwrap_err().starts_with("expected ADDRESS:PORT"),
                "{text}"
            );
        }
    }
}
