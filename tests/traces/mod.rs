//! Traces, as a collector gets them over the real protocol from a real replica.

mod agents;
mod dead;
mod exported;
