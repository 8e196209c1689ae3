//! `gpu-test checkpoint`: what a change must have been seen to do with checkpoints on a GPU, in less than ten minutes.

use std::time::Duration;

use crate::gpu::steps::{Plan, Step, Tool};

/// All of it; the machine's own limit for a command is ten minutes.
const CHECKPOINTS_TIME_BUDGET: Duration = Duration::from_secs(570);

/// First what hung once, or is not like anything else; then everything, by how the program is connected, as far as the time
/// goes: `--only` has each alone, as also frameworks and programs that go on with another driver. OpenCL is a part of its own.
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

/// What is run.
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
