//! The console blocks of a manual: commands, and the output that a reader expects.

use std::sync::LazyLock;

use regex::Regex;

/// A manual, split at its commands.
#[derive(Debug)]
pub struct Manual {
    pieces: Vec<Piece>,
}

#[derive(Debug)]
enum Piece {
    /// Lines outside console blocks, fences included.
    Text(String),
    Step(Step),
}

/// A command in a console block, and its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The number of its first line.
    pub line: usize,
    /// Without the prompt; several lines with a here-document.
    pub command: String,
    /// All lines up to the next command or the end of the block.
    pub output: String,
}

impl Manual {
    pub fn parse(text: &str) -> Self {
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut in_console = false;
        let mut lines = text.split_inclusive('\n').enumerate();
        while let Some((number, line)) = lines.next() {
            let prompt = line.strip_prefix("$ ").filter(|_| in_console);
            if let Some(first) = prompt {
                pieces.push(Piece::Text(std::mem::take(&mut plain)));
                let mut command = first.to_owned();
                if first.contains("<<END") {
                    for (_, line) in lines.by_ref() {
                        command.push_str(line);
                        if line.trim_end() == "END" {
                            break;
                        }
                    }
                }
                pieces.push(Piece::Step(Step {
                    line: number + 1,
                    command: command.trim_end().to_owned(),
                    output: String::new(),
                }));
                continue;
            }
            if line.starts_with("```") {
                in_console = line.trim_end() == "```console";
            }
            match pieces.last_mut() {
                Some(Piece::Step(step)) if in_console && plain.is_empty() => step.output.push_str(line),
                _ => plain.push_str(line),
            }
        }
        pieces.push(Piece::Text(plain));
        Self { pieces }
    }

    pub fn steps(&mut self) -> impl Iterator<Item = &mut Step> {
        self.pieces.iter_mut().filter_map(|piece| match piece {
            Piece::Text(_) => None,
            Piece::Step(step) => Some(step),
        })
    }

    pub fn render(&self) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Step(step) => format!("$ {}\n{}", step.command, step.output),
        };
        self.pieces.iter().map(piece).collect()
    }
}

/// What differs from run to run, and what stands for it in a comparison.
static VARIABLE: LazyLock<Vec<(Regex, &'static str)>> = LazyLock::new(|| {
    [
        (r"[^\s=]*quorate-dev-[A-Za-z0-9]+", "DIRECTORY"),
        (r"[^\s=]*target/debug", "PROGRAMS"),
        (r"starting \S*kube-apiserver", "starting kube-apiserver"),
        (r"(?m)^.* still starting .*\n", ""),
        // Only some releases of etcd have one.
        (r"(?m)^Known fault: .*\n", ""),
        // In the order of the members' ids.
        (r"ETCD_INITIAL_CLUSTER=\S+", "ETCD_INITIAL_CLUSTER=MEMBERS"),
        (r"127\.0\.0\.1:\d+", "ADDRESS"),
        (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UUID"),
        (r"\b[0-9a-f]{15,16}\b", ID),
        (r"\b\d{4}-\d\d-\d\dT[\d:.]+Z\b", "MOMENT"),
        // Of an authority, in base32.
        (r"\b[a-z2-7]{52}\b", "DIGEST"),
        (r#"(term|"term":|"call":|"run":) ?\d+"#, "$1 N"),
        (r"\b\d+(\.\d+)? (KiB|MiB)\b", "SIZE"),
        (r"\b3\.\d+\.\d+\b", "ETCD-VERSION"),
        (r"\b(\d+(\.\d+)? ?(ms|s|m|h|d))+\b", "TIME"),
        (r"-{4,}", "----"),
        (r"[ \t]+", " "),
    ]
    .map(|(pattern, stands_for)| (Regex::new(pattern).unwrap(), stands_for))
    .into()
});

/// Stands for the id of a member. Members are listed by id, so that their order differs from run to run, too.
const ID: &str = "ID";

/// The output without what differs from run to run.
pub fn normalise(output: &str) -> String {
    let text = VARIABLE
        .iter()
        .fold(output.to_owned(), |text, (pattern, stands_for)| {
            pattern.replace_all(&text, *stands_for).into_owned()
        });
    let mut lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    if text.contains(ID) {
        lines.sort_unstable();
    }
    lines.join("\n").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "# Title\n\n```console\n$ echo a\na\n$ cat <<END\nb\nEND\nb\n```\n\n```sh\n$ not run\n```\nend\n";

    #[test]
    fn commands_come_with_their_output_and_a_manual_is_rendered_as_it_was() {
        let mut manual = Manual::parse(TEXT);
        assert_eq!(manual.render(), TEXT);
        let steps: Vec<Step> = manual.steps().map(|step| step.clone()).collect();
        let step = |line, command: &str, output: &str| Step {
            line,
            command: command.to_owned(),
            output: output.to_owned(),
        };
        assert_eq!(
            steps,
            [step(4, "echo a", "a\n"), step(6, "cat <<END\nb\nEND", "b\n")]
        );
    }

    #[test]
    fn an_output_compares_without_ports_ages_and_ids_and_with_everything_else() {
        let shown = "NAME               NODE   AGE   SIZE\n0123456789abcdef   n1     10s   240 KiB\n1123456789abcdef   n2     3s    1 KiB\n";
        let other = "NAME   NODE   AGE   SIZE\nffffffffffffffff   n2   1m3s   9 KiB\nabcdefabcdefabcd   n1   2h   9 KiB\n";
        assert_eq!(normalise(shown), normalise(other));
        assert_ne!(normalise(shown), normalise(&other.replace("n2", "n3")));
        assert_eq!(
            normalise("http://127.0.0.1:80 in /tmp/quorate-dev-x1Y/a (0.6 s)"),
            normalise("http://127.0.0.1:9999 in /var/tmp/quorate-dev-Z/a (12.0 s)")
        );
        assert_ne!(
            normalise("status DONE, version 0.1.0"),
            normalise("status DONE, version 0.2.0")
        );
    }
}
