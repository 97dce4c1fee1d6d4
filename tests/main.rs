//! The integration tests, against real servers: one binary, so that its modules share one build and one link.

mod dev;
mod support;
