//! Samples, and the tables that show them.

use std::fmt;
use std::time::Duration;

/// Repeated measurements of one quantity, in one unit.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn push(&mut self, sample: f64) {
        self.0.push(sample);
    }

    /// Adds a time in milliseconds.
    pub fn push_time(&mut self, time: Duration) {
        self.push(time.as_secs_f64() * 1e3);
    }

    /// Each sample divided by the other one of its round: noise that affects both sides cancels out.
    pub fn per(&self, other: &Self) -> Self {
        self.pairs(other, |own, other| own / other)
    }

    /// Each sample minus the other one of its round.
    pub fn minus(&self, other: &Self) -> Self {
        self.pairs(other, |own, other| own - other)
    }

    fn pairs(&self, other: &Self, combine: impl Fn(f64, f64) -> f64) -> Self {
        Self(
            self.0
                .iter()
                .zip(&other.0)
                .map(|(own, other)| combine(*own, *other))
                .collect(),
        )
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// The middle sample; of an even number, the mean of the two in the middle; NaN without samples.
    pub fn median(&self) -> f64 {
        let sorted = self.sorted();
        match sorted.len() {
            0 => f64::NAN,
            len => (sorted[(len - 1) / 2] + sorted[len / 2]) / 2.0,
        }
    }

    /// The least and the greatest sample; of twenty or more, the 5th and the 95th percentile, since one outlier would hide
    /// the rest.
    fn spread(&self) -> (f64, f64) {
        let sorted = self.sorted();
        let cut = match sorted.len() {
            0 => return (f64::NAN, f64::NAN),
            len if len >= 20 => len / 20,
            _ => 0,
        };
        (sorted[cut], sorted[sorted.len() - 1 - cut])
    }
}

/// The unit of a number.
#[derive(Clone, Copy, Debug)]
pub enum Unit {
    Millis,
    Seconds,
    /// A ratio.
    Times,
    Count,
    Bytes,
    Mebibytes,
}

impl Unit {
    fn show(self, value: f64) -> String {
        let digits = match value.abs() {
            size if size < 1.0 => 3,
            size if size < 10.0 => 2,
            size if size < 100.0 => 1,
            _ => 0,
        };
        match self {
            Self::Millis => format!("{value:.digits$} ms"),
            Self::Seconds => format!("{value:.digits$} s"),
            Self::Times => format!("{value:.2} ×"),
            Self::Count if value.fract() == 0.0 => format!("{value:.0}"),
            Self::Count => format!("{value:.1}"),
            Self::Bytes => format!("{value:.0} B"),
            Self::Mebibytes => format!("{value:.1} MiB"),
        }
    }
}

/// A table in Markdown with a row for each measurement.
#[derive(Debug)]
pub struct Table {
    title: &'static str,
    rows: Vec<[String; 5]>,
    notes: Vec<String>,
}

impl Table {
    pub fn new(title: &'static str) -> Self {
        let heads = ["measured", "median", "spread", "rounds", "aim"].map(str::to_owned);
        Self {
            title,
            rows: vec![heads],
            notes: Vec::new(),
        }
    }

    /// Adds a row; `aim` may be empty.
    pub fn row(&mut self, what: &str, samples: &Samples, unit: Unit, aim: &str) {
        let (least, greatest) = samples.spread();
        let spread = match samples.0.len() {
            0 | 1 => String::new(),
            _ => format!("{} – {}", unit.show(least), unit.show(greatest)),
        };
        self.rows.push([
            what.to_owned(),
            unit.show(samples.median()),
            spread,
            samples.0.len().to_string(),
            aim.to_owned(),
        ]);
    }

    /// Adds a row with one measurement.
    pub fn single(&mut self, what: &str, value: f64, unit: Unit, aim: &str) {
        self.row(what, &Samples(vec![value]), unit, aim);
    }

    /// Adds a sentence below the table.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "### {}\n", self.title)?;
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: [usize; 5] = std::array::from_fn(width);
        for (index, row) in self.rows.iter().enumerate() {
            for (cell, width) in row.iter().zip(widths) {
                write!(f, "| {cell:width$} ")?;
            }
            writeln!(f, "|")?;
            if index == 0 {
                for width in widths {
                    write!(f, "| {} ", "-".repeat(width))?;
                }
                writeln!(f, "|")?;
            }
        }
        for note in &self.notes {
            write!(f, "\n{note}\n")?;
        }
        Ok(())
    }
}
