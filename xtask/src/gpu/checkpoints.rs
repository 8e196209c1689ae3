//! `gpu-test checkpoint`: the checkpoint tests that a change must pass on a GPU, in less than ten minutes.

use std::time::Duration;

use crate::gpu::steps::{Plan, Step, Tool};

/// Time for all steps; the machine's own limit for a command is ten minutes.
const CHECKPOINTS_TIME_BUDGET: Duration = Duration::from_secs(570);

/// Steps. Cases that once hung or are unlike any other come first, then everything by the connection of the program, as far as
/// time allows. `--only` selects a step, also frameworks and programs that continue with another driver. OpenCL is a separate
/// part.
const CHECKPOINT_STEPS: [Step; 8] = [
    Step {
        name: "streams",
        tool: Tool::Tests("checkpoint"),
        arguments: "streams_events --test-threads=4",
        seconds: 40,
        times: 5,
    },
    Step {
        name: "processes",
        tool: Tool::Ourselves,
        arguments: "apps --only process_checkpoint,code_forms,kept_devices",
        seconds: 60,
        ..Step::ONCE
    },
    Step {
        name: "unix",
        tool: Tool::Tests("checkpoint"),
        arguments: "unix:: --test-threads=12 --skip opencl --skip random_calls --skip framework --skip moved",
        seconds: 400,
        ..Step::ONCE
    },
    Step {
        name: "tcp",
        tool: Tool::Tests("checkpoint"),
        arguments: "tcp:: --test-threads=12 --skip opencl --skip random_calls --skip framework --skip moved",
        seconds: 400,
        ..Step::ONCE
    },
    Step {
        name: "shm",
        tool: Tool::Tests("checkpoint"),
        arguments: "--test-threads=12 --skip unix:: --skip tcp:: --skip opencl --skip random_calls --skip framework --skip moved",
        seconds: 560,
        ..Step::ONCE
    },
    Step {
        name: "frameworks",
        tool: Tool::Tests("checkpoint"),
        arguments: "framework --test-threads=4",
        seconds: 560,
        ..Step::ONCE
    },
    Step {
        name: "workers",
        tool: Tool::Tests("checkpoint"),
        arguments: "kept_as_a_process --test-threads=4",
        seconds: 400,
        ..Step::ONCE
    },
    Step {
        name: "moved",
        tool: Tool::Tests("checkpoint"),
        arguments: "moved --test-threads=8",
        seconds: 560,
        ..Step::ONCE
    },
];

/// Plan of the part.
pub(crate) const CHECKPOINTS_PLAN: Plan = Plan { steps: &CHECKPOINT_STEPS, budget: CHECKPOINTS_TIME_BUDGET };

#[cfg(test)]
mod tests {
    use super::*;
    use katydid_tests::catalog;

    #[test]
    fn a_step_names_programs_that_there_are() {
        let apps = catalog::apps().unwrap();
        let named = CHECKPOINT_STEPS.iter().filter_map(|step| step.arguments.strip_prefix("apps --only "));
        let names: Vec<&str> = named.flat_map(|names| names.split(',')).collect();
        assert!(!names.is_empty());
        for name in names {
            assert!(apps.iter().any(|app| app.name == name), "{name}");
        }
    }
}
