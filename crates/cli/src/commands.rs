//! The commands, one module each.

pub(crate) mod certs;
pub(crate) mod checkpoint;
pub(crate) mod driver_checkpoint;
pub(crate) mod guard;
pub(crate) mod images;
pub(crate) mod inspect;
pub(crate) mod manual;
pub(crate) mod migrate;
pub(crate) mod namespace;
pub(crate) mod ps;
pub(crate) mod ranks;
pub(crate) mod restore;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod worker;
