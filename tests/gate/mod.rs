//! The gate: no release serves that the reconciled state excludes.
