//! A reader of documents that keeps the path of each field and goes on after a fault, so that all faults are reported
//! at once.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

use super::words::did_you_mean;
use asked::{EMPTY, ask};
use fault::{expected_found, found};

mod asked;
mod fault;

pub use asked::Asked;
pub use fault::{Fault, join};

/// One object of a document. Every field that is asked for becomes a known one; fields that stay unknown are faults.
#[derive(Debug)]
pub struct Fields<'v, 'f> {
    path: String,
    map: &'v Map<String, Value>,
    known: Vec<&'static str>,
    faults: &'f mut Vec<Fault>,
    /// Where the fields that are asked for are recorded, if they are.
    asked: Option<&'f mut Vec<Asked>>,
}

impl<'v, 'f> Fields<'v, 'f> {
    /// Reads the whole document `value` with `read`, and adds to `faults`. `None` if the value is not an object.
    pub fn document<R>(
        value: &'v Value,
        faults: &'f mut Vec<Fault>,
        read: impl FnOnce(&mut Fields<'v, '_>) -> R,
    ) -> Option<R> {
        Self::at(String::new(), value, faults, None, read)
    }

    /// Every field that `read` asks for, in its order. Objects come before their fields, and lists have one element.
    pub fn asked<R>(read: impl FnOnce(&mut Fields<'v, '_>) -> R) -> Vec<Asked> {
        let mut asked = Vec::new();
        Self::at(String::new(), &EMPTY, &mut Vec::new(), Some(&mut asked), read);
        asked
    }

    fn at<R>(
        path: String,
        value: &'v Value,
        faults: &mut Vec<Fault>,
        asked: Option<&mut Vec<Asked>>,
        read: impl FnOnce(&mut Fields<'v, '_>) -> R,
    ) -> Option<R> {
        let Value::Object(map) = value else {
            faults.push(Fault::new(
                path,
                format!("expected an object, found {}", found(value)),
            ));
            return None;
        };
        let mut fields = Fields {
            path,
            map,
            known: Vec::new(),
            faults,
            asked,
        };
        let result = read(&mut fields);
        fields.refuse_unknown();
        Some(result)
    }

    fn refuse_unknown(&mut self) {
        for name in self
            .map
            .keys()
            .filter(|name| !self.known.contains(&name.as_str()))
        {
            let meant = did_you_mean(name, self.known.iter().copied());
            let message = format!("unknown field{meant}");
            self.faults.push(Fault::new(join(&self.path, name), message));
        }
    }

    /// The value of a field that the caller checks by itself, and what it has to be; `None` if it is left out or null.
    pub fn raw(&mut self, name: &'static str, expected: &str) -> Option<&'v Value> {
        self.ask(name, expected);
        self.value(name)
    }

    /// The value of a field; `None` if it is left out or null.
    pub fn value(&mut self, name: &'static str) -> Option<&'v Value> {
        if !self.known.contains(&name) {
            self.known.push(name);
        }
        self.ask(name, "");
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn ask(&mut self, name: &str, expected: &str) {
        if let Some(asked) = self.asked.as_deref_mut() {
            ask(asked, join(&self.path, name), expected);
        }
    }

    /// The value of an object; an empty one if fields are recorded, so that its own are as well.
    fn nested(&mut self, name: &'static str) -> Option<&'v Value> {
        self.ask(name, "an object");
        match self.value(name) {
            None if self.asked.is_some() => Some(&*EMPTY),
            value => value,
        }
    }

    /// Whether the document has the field, even as null.
    pub fn is_given(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    /// Adds a fault of a field.
    pub fn fault(&mut self, name: &str, message: impl Into<String>) {
        let path = join(&self.path, name);
        self.faults.push(Fault::new(path, message));
    }

    /// Adds a fault of a nested field, at this path below the object.
    pub fn fault_at(&mut self, below: &str, message: impl Into<String>) {
        let path = match self.path.as_str() {
            "" => below.to_owned(),
            path => format!("{path}.{below}"),
        };
        self.faults.push(Fault::new(path, message));
    }

    /// Adds a fault if a field is left out or null.
    pub fn require(&mut self, name: &'static str) {
        if self.value(name).is_none() {
            self.fault(name, "missing");
        }
        self.is_required(name);
    }

    /// Says that a document without this field is faulty, where the caller has refused one already.
    pub fn is_required(&mut self, name: &str) {
        let path = join(&self.path, name);
        let asked = self.asked.iter_mut().flat_map(|asked| asked.iter_mut());
        asked
            .filter(|asked| asked.path == path)
            .for_each(|asked| asked.required = true);
    }

    fn typed<T>(
        &mut self,
        name: &'static str,
        expected: &str,
        read: impl FnOnce(&'v Value) -> Option<T>,
    ) -> Option<T> {
        self.ask(name, expected);
        let value = self.value(name)?;
        let result = read(value);
        if result.is_none() {
            self.fault(name, expected_found(expected, value));
        }
        result
    }

    /// A string.
    pub fn string(&mut self, name: &'static str) -> Option<&'v str> {
        self.typed(name, "a string", Value::as_str)
    }

    /// True or false.
    pub fn boolean(&mut self, name: &'static str) -> Option<bool> {
        self.typed(name, "true or false", Value::as_bool)
    }

    /// A whole number.
    pub fn integer(&mut self, name: &'static str) -> Option<i64> {
        self.typed(name, "a whole number", Value::as_i64)
    }

    /// A string that `parse` accepts; its error is the fault.
    pub fn parsed<T, E: fmt::Display>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.string(name)?;
        match parse(text) {
            Ok(value) => Some(value),
            Err(error) => {
                self.fault(name, error.to_string());
                None
            }
        }
    }

    /// A string that is one of these words.
    pub fn one_of<T: Copy>(&mut self, name: &'static str, words: &[(&'static str, T)]) -> Option<T> {
        let names = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>();
        self.ask(name, &format!("one of {}", names().join(", ")));
        let text = self.string(name)?;
        let chosen = words
            .iter()
            .find(|(word, _)| *word == text)
            .map(|(_, value)| *value);
        if chosen.is_none() {
            let names = names();
            let meant = did_you_mean(text, names.iter().copied());
            self.fault(
                name,
                format!("\"{text}\" is not one of {}{meant}", names.join(", ")),
            );
        }
        chosen
    }

    /// An object, read field by field.
    pub fn object<R>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Fields<'v, '_>) -> R,
    ) -> Option<R> {
        let value = self.nested(name)?;
        let path = join(&self.path, name);
        Fields::at(path, value, self.faults, self.asked.as_deref_mut(), read)
    }

    /// A required object, read field by field.
    pub fn required<R>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Fields<'v, '_>) -> R,
    ) -> Option<R> {
        self.require(name);
        self.object(name, read)
    }

    /// The elements of a list, each with its path.
    fn elements(
        &mut self,
        name: &'static str,
    ) -> Option<impl Iterator<Item = (String, &'v Value)> + use<'v>> {
        let elements = self.typed(name, "a list", Value::as_array)?;
        let path = join(&self.path, name);
        let numbered = elements.iter().enumerate();
        Some(numbered.map(move |(index, value)| (format!("{path}[{index}]"), value)))
    }

    /// A list of objects. An element that is not an object is a fault and left out.
    pub fn objects<R>(
        &mut self,
        name: &'static str,
        mut read: impl FnMut(&mut Fields<'v, '_>) -> R,
    ) -> Option<Vec<R>> {
        self.ask(name, "a list of objects");
        if let Some(asked) = self.asked.as_deref_mut() {
            let element = format!("{}[]", join(&self.path, name));
            Fields::at(element, &EMPTY, self.faults, Some(asked), &mut read);
        }
        let elements = self.elements(name)?;
        let read_all =
            elements.filter_map(|(path, value)| Fields::at(path, value, self.faults, None, &mut read));
        Some(read_all.collect())
    }

    /// A list of distinct strings that `parse` accepts; its error is the fault of the element, which is left out.
    pub fn distinct<T: PartialEq, E: fmt::Display>(
        &mut self,
        name: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<Vec<T>> {
        let mut all = Vec::new();
        self.ask(name, "a list of strings");
        for (path, value) in self.elements(name)? {
            let parsed = match value.as_str().map(&parse) {
                None => Err(expected_found("a string", value)),
                Some(Err(error)) => Err(error.to_string()),
                Some(Ok(parsed)) if all.contains(&parsed) => Err("occurs twice".to_owned()),
                Some(Ok(parsed)) => Ok(parsed),
            };
            match parsed {
                Ok(parsed) => all.push(parsed),
                Err(message) => self.faults.push(Fault::new(path, message)),
            }
        }
        Some(all)
    }

    /// A map of strings. An entry that is not a string is a fault and left out.
    pub fn strings(&mut self, name: &'static str) -> Option<BTreeMap<String, String>> {
        self.ask(name, "an object of strings");
        let entries = self.typed(name, "an object", Value::as_object)?;
        let path = join(&self.path, name);
        Some(texts(&path, entries, self.faults))
    }

    /// A list of maps of strings.
    pub fn string_maps(&mut self, name: &'static str) -> Option<Vec<BTreeMap<String, String>>> {
        let mut all = Vec::new();
        self.ask(name, "a list of objects of strings");
        for (path, value) in self.elements(name)? {
            match value.as_object() {
                Some(entries) => all.push(texts(&path, entries, self.faults)),
                None => self
                    .faults
                    .push(Fault::new(path, expected_found("an object", value))),
            }
        }
        Some(all)
    }
}

fn texts(path: &str, entries: &Map<String, Value>, faults: &mut Vec<Fault>) -> BTreeMap<String, String> {
    let mut strings = BTreeMap::new();
    for (key, value) in entries {
        match value.as_str() {
            Some(text) => {
                strings.insert(key.clone(), text.to_owned());
            }
            None => faults.push(Fault::new(join(path, key), expected_found("a string", value))),
        }
    }
    strings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(value: &Value, read: impl FnOnce(&mut Fields<'_, '_>)) -> Vec<String> {
        let mut faults = Vec::new();
        Fields::document(value, &mut faults, read);
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_unknown_field_is_named_with_its_path_and_its_likely_meaning() {
        let value = json!({"spec": {"desiredRol": "worker", "zzz": 1}});
        let faults = faults(&value, |fields| {
            fields.object("spec", |spec| {
                spec.string("desiredRole");
                spec.string("availability");
            });
        });
        assert_eq!(
            faults,
            [
                "spec.desiredRol: unknown field (did you mean desiredRole?)",
                "spec.zzz: unknown field"
            ]
        );
    }

    #[test]
    fn each_wrong_type_is_reported_and_reading_goes_on() {
        let value = json!({
            "text": 1.5, "flag": "yes", "count": "3", "map": {"a": 1, "b/c": true, "d": "fine"},
            "list": [{"x": 1}, 7], "object": [], "word": "actve"
        });
        let faults = faults(&value, |fields| {
            fields.string("text");
            fields.boolean("flag");
            fields.integer("count");
            assert_eq!(fields.strings("map").unwrap().len(), 1);
            fields.objects("list", |element| element.string("x").map(str::to_owned));
            fields.object("object", |_| ());
            fields.one_of("word", &[("active", 1), ("pause", 2)]);
        });
        assert_eq!(
            faults,
            [
                "text: expected a string, found the number 1.5 (put it in quotes)",
                "flag: expected true or false, found the string \"yes\"",
                "count: expected a whole number, found the string \"3\"",
                "map.a: expected a string, found the number 1 (put it in quotes)",
                "map[\"b/c\"]: expected a string, found true (put it in quotes)",
                "list[0].x: expected a string, found the number 1 (put it in quotes)",
                "list[1]: expected an object, found the number 7",
                "object: expected an object, found a list",
                "word: \"actve\" is not one of active, pause (did you mean active?)",
            ]
        );
    }

    #[test]
    fn null_counts_as_left_out_but_can_be_distinguished() {
        let value = json!({"a": null});
        let faults = faults(&value, |fields| {
            assert_eq!(fields.string("a"), None);
            assert!(fields.is_given("a") && !fields.is_given("b"));
        });
        assert!(faults.is_empty());
    }

    #[test]
    fn a_required_field_that_is_left_out_or_null_is_missing() {
        let value = json!({"given": "", "unset": null});
        let faults = faults(&value, |fields| {
            for name in ["given", "unset", "absent"] {
                fields.require(name);
            }
        });
        assert_eq!(faults, ["unset: missing", "absent: missing"]);
    }

    #[test]
    fn a_reader_says_which_fields_it_asks_for() {
        let asked = Fields::asked(|fields| {
            fields.required("spec", |spec| {
                spec.one_of("word", &[("a", 1), ("b", 2)]);
                spec.objects("list", |element| element.require("x"));
                spec.strings("map");
                spec.value("any");
                spec.parsed("time", str::parse::<i64>);
            });
        });
        let shown = asked.iter().map(|asked| {
            let required = if asked.required { "!" } else { "" };
            format!("{}{required} {}", asked.path, asked.expected)
        });
        assert_eq!(
            shown.collect::<Vec<_>>(),
            [
                "spec! an object",
                "spec.word one of a, b",
                "spec.list a list of objects",
                "spec.list[].x! ",
                "spec.map an object of strings",
                "spec.any ",
                "spec.time a string",
            ]
        );
    }

    #[test]
    fn a_document_that_is_not_an_object_is_a_fault_without_a_path() {
        assert_eq!(faults(&json!([1]), |_| ()), ["expected an object, found a list"]);
    }
}
