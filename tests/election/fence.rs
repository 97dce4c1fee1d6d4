//! Candidates by the library: who waits, who leads, who goes.
