//! One program state in the worker: handles and dispatch.
