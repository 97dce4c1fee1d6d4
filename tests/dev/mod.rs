//! The launchers that `quorate dev` and the tests share, and the command itself.

mod launchers;
mod proxy;
