//! x
pub mod object;
