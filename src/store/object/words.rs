//! The words that documents use for the values of an enum, and what a misspelt word means.

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

/// ` (did you mean node?)`, with the candidate that a misspelt word most likely means; empty if none is alike.
pub fn did_you_mean<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    nearest(word, candidates).map_or_else(String::new, |meant| format!(" (did you mean {meant}?)"))
}

fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .map(|candidate| {
            let alike =
                strsim::normalized_damerau_levenshtein(&word.to_lowercase(), &candidate.to_lowercase());
            (candidate, alike)
        })
        // At least half of the letters fit; below that, suggestions mislead.
        .filter(|(_, alike)| *alike > 0.5)
        .max_by(|(_, a), (_, b)| a.total_cmp(b))
        .map(|(candidate, _)| candidate)
}
