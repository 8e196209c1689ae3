//! Instruction forms and small programs, run on any device and compared with what a GPU made of them.
//!
//! The catalogue names forms, one line a family; each becomes a kernel over edge values. Beside it stand whole programs,
//! and random ones made from a seed. What an H200 answered lies in `data`, with its driver and the day; tests run the same
//! on the interpreter and compare bit for bit, or within the error that the PTX ISA allows an approximation.
//!
//! The rule of the crate: a case is text and bytes only. It knows neither the interpreter nor the driver, so that all
//! devices are asked the very same question, and a kept answer that was given to another question is never used.
//!
//! | module | what |
//! |---|---|
//! | `kind`, `values`, `rng` | types, and the values to try |
//! | `form`, `catalog`, `kernel`, `program`, `random` | where cases come from |
//! | `case`, `suite` | what a case is, and all of them |
//! | `device`, `interpreter`, `gpu` | what runs them |
//! | `accepted`, `near` | which forms ptxas takes, to be loaded and refused alike; those that are almost right |
//! | `store`, `check`, `exact` | kept answers, and comparing with them |
//! | `table` | the page of forms |

mod accepted;
mod case;
mod catalog;
mod check;
mod device;
mod exact;
mod form;
mod gpu;
mod interpreter;
mod kernel;
mod kind;
mod program;
mod random;
mod rng;
mod store;
mod suite;
mod table;
mod values;

pub use accepted::{
    ASKED_TARGETS, Acceptance, AcceptedError, Disagreement, Form, conversions, differing, header_forms, judge,
    keep_disagreements, known_disagreements, near_misses,
};
pub use case::{Argument, Case};
pub use check::{Difference, Verdict, compare, written};
pub use device::{Device, DeviceAnswer, DeviceError};
pub use gpu::Gpu;
pub use interpreter::Interpreter;
pub use store::{Origin, RecordedAnswers, StoreError};
pub use suite::{Group, SuiteError, recorded, suite};
pub use table::{PageError, forms_page, result_page};
