//! The program side of a session, shared by the shims.
