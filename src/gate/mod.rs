//! The gate: version, status key, wait-ready.
