//! Process-wide state: the session, and the thread that calls functions of the program.

pub(crate) mod per_worker;
pub(crate) mod session;
pub(crate) mod start;
pub(crate) mod upcall;
