//! Authorities and certificates, with the real program.

mod authorities;
