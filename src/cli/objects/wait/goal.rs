//! What `quorate wait` waits for. Pure.

use std::str::FromStr;

use serde_json::Value;

/// What `--for` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The object exists.
    Created,
    /// The object does not exist.
    Deleted,
    /// A condition has this status.
    HasCondition {
        /// The type of the condition.
        r#type: String,
        /// `True`, `False` or `Unknown`.
        status: &'static str,
    },
    /// A field has a value.
    Field {
        /// The way to it.
        path: Path,
        /// Its value as text, "" for one that is left out; `None`: any but an empty one.
        value: Option<String>,
    },
}

/// A way through a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Field(String),
    Index(usize),
}

/// The forms of `--for`, for messages.
const FORMS: &str = "create, delete, condition=TYPE[=STATUS] or jsonpath=PATH[=VALUE]";

/// What a condition's status may be.
const STATUSES: [&str; 3] = ["True", "False", "Unknown"];

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (form, rest) = match text.split_once('=') {
            Some((form, rest)) => (form, Some(rest)),
            None => (text, None),
        };
        match (form, rest) {
            ("create", None) => Ok(Self::Created),
            ("delete", None) => Ok(Self::Deleted),
            ("condition", Some(rest)) => condition(rest),
            ("jsonpath", Some(rest)) => field(rest),
            _ => Err(format!("expected {FORMS}")),
        }
    }
}

fn condition(text: &str) -> Result<Goal, String> {
    let (r#type, wanted) = text.split_once('=').unwrap_or((text, STATUSES[0]));
    if r#type.is_empty() {
        return Err("condition= names no condition; expected condition=TYPE[=STATUS]".to_owned());
    }
    let status = STATUSES.iter().find(|status| status.eq_ignore_ascii_case(wanted));
    let Some(status) = status else {
        return Err(format!(
            "\"{}\" is no status of a condition; expected {}",
            wanted.escape_debug(),
            STATUSES.join(", ")
        ));
    };
    Ok(Goal::HasCondition {
        r#type: r#type.to_owned(),
        status,
    })
}

fn field(text: &str) -> Result<Goal, String> {
    // kubectl's form has braces, which end before the value.
    let (path, value) = match text.strip_prefix('{') {
        Some(inner) => {
            let (path, rest) = inner
                .split_once('}')
                .ok_or("the brace of jsonpath={PATH} is not closed")?;
            match rest.strip_prefix('=') {
                None if !rest.is_empty() => {
                    return Err(format!(
                        "expected = after the brace, found \"{}\"",
                        rest.escape_debug()
                    ));
                }
                value => (path, value),
            }
        }
        None => match text.split_once('=') {
            Some((path, value)) => (path, Some(value)),
            None => (text, None),
        },
    };
    Ok(Goal::Field {
        path: path.parse()?,
        value: value.map(str::to_owned),
    })
}

impl FromStr for Path {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fault = |why: &str| {
            format!(
                "\"{}\" is no path: {why}; expected one like .status.ready",
                text.escape_debug()
            )
        };
        let mut parts = Vec::new();
        for piece in text.strip_prefix('.').unwrap_or(text).split('.') {
            let (name, mut indexes) = match piece.find('[') {
                Some(at) => piece.split_at(at),
                None => (piece, ""),
            };
            if name.is_empty() {
                return Err(fault("a name is missing"));
            }
            parts.push(Part::Field(name.to_owned()));
            while let Some(rest) = indexes.strip_prefix('[') {
                let (index, rest) = rest
                    .split_once(']')
                    .ok_or_else(|| fault("a bracket is not closed"))?;
                let index = index.parse().map_err(|_| fault("an index is no number"))?;
                parts.push(Part::Index(index));
                indexes = rest;
            }
            if !indexes.is_empty() {
                return Err(fault("a name follows a bracket"));
            }
        }
        Ok(Self(parts))
    }
}

impl Path {
    fn find<'d>(&self, document: &'d Value) -> Option<&'d Value> {
        self.0.iter().try_fold(document, |value, part| match part {
            Part::Field(name) => value.get(name),
            Part::Index(index) => value.get(index),
        })
    }
}

impl Goal {
    /// Whether it depends on what the object says, and not only on whether it exists.
    pub fn reads_the_object(&self) -> bool {
        matches!(self, Self::HasCondition { .. } | Self::Field { .. })
    }

    /// What is said of an object that is as it is waited for.
    pub fn met(&self) -> &'static str {
        match self {
            Self::Created => "exists",
            Self::Deleted => "deleted",
            Self::HasCondition { .. } | Self::Field { .. } => "condition met",
        }
    }

    /// What an object lacks, as the document of `quorate get -o json` shows it; `None` if it is as it is waited for.
    pub fn lacks(&self, document: Option<&Value>) -> Option<String> {
        let absent = || Some("it does not exist".to_owned());
        match (self, document) {
            (Self::Created, Some(_)) | (Self::Deleted, None) => None,
            (Self::Deleted, Some(_)) => Some("it still exists".to_owned()),
            (Self::Created | Self::HasCondition { .. } | Self::Field { .. }, None) => absent(),
            (Self::HasCondition { r#type, status }, Some(document)) => {
                lacks_condition(document, r#type, status)
            }
            (Self::Field { path, value }, Some(document)) => {
                lacks_field(path.find(document), value.as_deref())
            }
        }
    }
}

/// A field that is left out and an empty one are the same.
fn lacks_field(found: Option<&Value>, wanted: Option<&str>) -> Option<String> {
    let now = found.map(text_of).unwrap_or_default();
    let is_met = match wanted {
        Some(wanted) => now == wanted,
        None => !now.is_empty(),
    };
    match now.as_str() {
        _ if is_met => None,
        "" => Some("it has no such field".to_owned()),
        now => Some(format!("the field is {now}")),
    }
}

fn lacks_condition(document: &Value, r#type: &str, status: &str) -> Option<String> {
    let conditions = document["status"]["conditions"].as_array();
    let text = |condition: &Value, field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    let found = conditions
        .into_iter()
        .flatten()
        .find(|condition| text(condition, "type").eq_ignore_ascii_case(r#type));
    let Some(found) = found else {
        return Some(format!("it has no condition {type}"));
    };
    let now = text(found, "status");
    (now != status).then(|| {
        let (reason, message) = (text(found, "reason"), text(found, "message"));
        format!("its condition {type} is {now} ({reason}): {message}")
    })
}

/// A value as a person writes it: text without quotes, all else as JSON; nothing for an empty list or object.
fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(elements) if elements.is_empty() => String::new(),
        Value::Object(fields) if fields.is_empty() => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lacks(goal: &str, document: Option<&Value>) -> Option<String> {
        goal.parse::<Goal>().unwrap().lacks(document)
    }

    #[test]
    fn an_object_is_waited_for_by_existence_condition_or_field() {
        let conditions =
            json!([{"type": "Ready", "status": "False", "reason": "NodeDown", "message": "n1 is down"}]);
        let document = json!({"status": {"role": "worker", "ready": true, "csi": [{"nodeID": "a"}], "memberID": "", "list": [], "conditions": conditions}});
        let some = Some(&document);
        for met in [
            "create",
            "condition=Ready=False",
            "condition=ready=false",
            "jsonpath=.status.role=worker",
            "jsonpath={.status.ready}=true",
            "jsonpath={.status.csi[0].nodeID}",
            "jsonpath=status.csi[0].nodeID=a",
            "jsonpath=.status.memberID=",
            "jsonpath=.status.other=",
        ] {
            assert_eq!(lacks(met, some), None, "{met}");
        }
        for (goal, why) in [
            ("delete", "it still exists"),
            (
                "condition=Ready",
                "its condition Ready is False (NodeDown): n1 is down",
            ),
            ("condition=Other=False", "it has no condition Other"),
            ("jsonpath=.status.role=manager", "the field is worker"),
            ("jsonpath=.status.role=", "the field is worker"),
            ("jsonpath=.status.memberID", "it has no such field"),
            ("jsonpath=.status.list", "it has no such field"),
            ("jsonpath=.status.csi[1]", "it has no such field"),
            ("jsonpath=.status.role.x", "it has no such field"),
        ] {
            assert_eq!(lacks(goal, some).as_deref(), Some(why), "{goal}");
        }
        assert_eq!(lacks("delete", None), None);
        for absent in ["create", "condition=Ready", "jsonpath=.status"] {
            assert_eq!(
                lacks(absent, None).as_deref(),
                Some("it does not exist"),
                "{absent}"
            );
        }
    }

    #[test]
    fn a_wrong_form_is_refused_with_the_right_one() {
        for (text, why) in [
            ("", "expected create, delete"),
            ("created", "expected create, delete"),
            ("delete=now", "expected create, delete"),
            ("condition=", "names no condition"),
            (
                "condition=Ready=maybe",
                "is no status of a condition; expected True, False, Unknown",
            ),
            ("jsonpath=", "a name is missing"),
            ("jsonpath=.status..role", "a name is missing"),
            ("jsonpath=.csi[0", "a bracket is not closed"),
            ("jsonpath=.csi[a]", "an index is no number"),
            ("jsonpath=.csi[0]x", "a name follows a bracket"),
            ("jsonpath={.status", "is not closed"),
            ("jsonpath={.status}x", "expected = after the brace"),
        ] {
            let error = text.parse::<Goal>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
