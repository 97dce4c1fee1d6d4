//! CSI plugins as the controller sees them: a real server on a real socket, in a process of its own.

mod calls;
mod codes;
mod connections;
mod readiness;
mod secrets;
