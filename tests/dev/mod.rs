//! The launchers that `quorate dev` and the tests share, and the command itself.

mod command;
mod launchers;
mod proxy;
mod roles;
