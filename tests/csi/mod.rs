//! CSI plugins as the controller and an agent see them: a real server on a real socket, in a process of its own.

mod calls;
mod codes;
mod connections;
mod node;
mod readiness;
mod secrets;
