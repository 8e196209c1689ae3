//! The whole system under test: apps, transports, drivers, kills.
