//! Members that die, stall and return; endpoints that follow them.
