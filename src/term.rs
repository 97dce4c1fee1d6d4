//! What exists only while leading.
