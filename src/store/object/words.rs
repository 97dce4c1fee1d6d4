//! The words that documents use for the values of an enum.

/// The word for a value; empty for one without a word, which is the unset one.
pub fn word<T: PartialEq>(words: &[(&'static str, T)], value: &T) -> &'static str {
    let found = words.iter().find(|(_, candidate)| candidate == value);
    found.map_or("", |(word, _)| *word)
}

/// The word for a stored number: empty if it is unset, `unknown (9)` for one that only a later release knows.
pub fn word_of_number<T: PartialEq + TryFrom<i32>>(words: &[(&'static str, T)], number: i32) -> String {
    match T::try_from(number) {
        Ok(value) => word(words, &value).to_owned(),
        Err(_) => format!("unknown ({number})"),
    }
}
