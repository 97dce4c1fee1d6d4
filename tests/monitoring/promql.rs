//! What an expression of PromQL names. Enough of its grammar for the rules and the dashboard, and no more.

use std::collections::BTreeSet;

/// A series, and the labels that select it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// The name of the series.
    pub series: String,
    /// Each label with what is compared to it.
    pub labels: Vec<(String, String)>,
}

/// What an expression names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// The series.
    pub selectors: Vec<Selector>,
    /// The labels by which it groups and matches.
    pub groups: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    Mark(char),
}

/// Words before a list of labels.
const GROUPING: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];

/// Words that are operators, or a part of one.
const OPERATORS: [&str; 5] = ["and", "or", "unless", "bool", "offset"];

/// Reads an expression.
pub fn named(expression: &str) -> Named {
    let tokens = tokens(expression);
    let mut named = Named::default();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token {
            Token::Mark('[') => at += before(&tokens[at..], ']') + 1,
            Token::Word(word) if GROUPING.contains(&word.as_str()) => {
                let end = at + before(&tokens[at..], ')');
                let labels = tokens[at..end].iter().filter_map(word_of);
                named.groups.extend(labels.map(str::to_owned));
                at = end + 1;
            }
            Token::Word(word) if is_name(word) && !is_called(&tokens[at..]) => {
                let mut labels = Vec::new();
                if tokens.get(at) == Some(&Token::Mark('{')) {
                    let end = at + before(&tokens[at..], '}');
                    labels = matchers(&tokens[at + 1..end]);
                    at = end + 1;
                }
                let series = word.clone();
                named.selectors.push(Selector { series, labels });
            }
            Token::Word(_) | Token::Text(_) | Token::Mark(_) => {}
        }
    }
    named
}

fn tokens(expression: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = expression.chars().peekable();
    while let Some(first) = rest.next() {
        let is_of_word = |c: &char| c.is_ascii_alphanumeric() || ['_', ':', '.', '$'].contains(c);
        if first == '"' {
            tokens.push(Token::Text(rest.by_ref().take_while(|c| *c != '"').collect()));
        } else if is_of_word(&first) {
            let mut word = String::from(first);
            while let Some(next) = rest.next_if(is_of_word) {
                word.push(next);
            }
            tokens.push(Token::Word(word));
        } else if !first.is_whitespace() {
            tokens.push(Token::Mark(first));
        }
    }
    tokens
}

/// How many tokens come before this mark. Panics where it does not come.
fn before(tokens: &[Token], mark: char) -> usize {
    let found = tokens.iter().position(|token| *token == Token::Mark(mark));
    found.unwrap_or_else(|| panic!("no {mark} in {tokens:?}"))
}

fn word_of(token: &Token) -> Option<&str> {
    match token {
        Token::Word(word) => Some(word),
        Token::Text(_) | Token::Mark(_) => None,
    }
}

/// Neither a number nor an operator.
fn is_name(word: &str) -> bool {
    !word.starts_with(|c: char| c.is_ascii_digit() || c == '.') && !OPERATORS.contains(&word)
}

/// Whether what comes next makes the word before it the name of a function.
fn is_called(next: &[Token]) -> bool {
    match next.first() {
        Some(Token::Mark('(')) => true,
        Some(Token::Word(word)) => ["by", "without"].contains(&word.as_str()),
        _ => false,
    }
}

fn matchers(tokens: &[Token]) -> Vec<(String, String)> {
    let mut labels = Vec::new();
    let mut label = None;
    for token in tokens {
        match token {
            Token::Word(word) => label = Some(word.clone()),
            Token::Text(text) => labels.push((label.take().expect("a label stands before"), text.clone())),
            Token::Mark(_) => {}
        }
    }
    labels
}

#[test]
fn an_expression_is_read_for_its_series_and_labels() {
    let selector = |series: &str, labels: &[(&str, &str)]| Selector {
        series: series.to_owned(),
        labels: labels
            .iter()
            .map(|(label, value)| ((*label).to_owned(), (*value).to_owned()))
            .collect(),
    };
    let read = named(
        "max by (job, kind) (\n  rate(a_total{job=\"q\",code!~\"OK|A b\"}[5m]) and on (instance) b == 1) > 0.5 * 2\n  \
         unless max_over_time(sum by (job) (c{})[1h:1m]) > bool 3 or vector(0)",
    );
    assert_eq!(
        read.selectors,
        [
            selector("a_total", &[("job", "q"), ("code", "OK|A b")]),
            selector("b", &[]),
            selector("c", &[])
        ]
    );
    assert_eq!(read.groups, ["instance", "job", "kind"].map(str::to_owned).into());
    let variables = named("increase(d{namespace=~\"$namespace\"}[$__rate_interval])");
    assert_eq!(
        variables.selectors,
        [selector("d", &[("namespace", "$namespace")])]
    );
}
