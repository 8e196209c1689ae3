//! `gpu-test figures`: every promised figure in one run of eight minutes, the most important ones first.

use std::time::Duration;

use crate::gpu::steps::{Plan, Step, Tool};

/// Time for all steps; the machine's own limit for a command is ten minutes.
const FIGURES_TIME_BUDGET: Duration = Duration::from_secs(480);

/// Steps, with the most important figures first and figures of small programs after those of large ones. The references for
/// Katydid come last; NVIDIA's own checkpoint of 32 GiB alone takes half a minute.
const FIGURE_STEPS: [Step; 7] = [
    Step {
        name: "checkpoint-32g",
        tool: Tool::Katydid,
        arguments: "bench checkpoint --json --tables sizes --sizes 32G --against none --within 80s",
        seconds: 90,
        ..Step::ONCE
    },
    Step {
        name: "calls",
        tool: Tool::Katydid,
        arguments: "bench --json --mps --tls --within 110s",
        seconds: 140,
        ..Step::ONCE
    },
    Step {
        name: "training",
        tool: Tool::Ourselves,
        arguments: "frameworks --jobs 1 --within 110 --ways shm,tcp --only \
                    torch.speed_of_launches,torch.speed_of_computing,torch.speed_of_images,torch.queries,jax.speed",
        seconds: 120,
        ..Step::ONCE
    },
    Step {
        name: "checkpoint-64m",
        tool: Tool::Katydid,
        arguments: "bench checkpoint --json --tables sizes --sizes 64M --against none --within 20s",
        seconds: 30,
        ..Step::ONCE
    },
    Step {
        name: "checkpoint-32g-again",
        tool: Tool::Katydid,
        arguments: "bench checkpoint --json --tables sizes --sizes 32G --against none --within 50s",
        seconds: 60,
        ..Step::ONCE
    },
    Step {
        name: "checkpoint-programs",
        tool: Tool::Katydid,
        arguments: "bench checkpoint --json --tables programs --within 40s",
        seconds: 60,
        ..Step::ONCE
    },
    Step {
        name: "checkpoint-32g-native",
        tool: Tool::Katydid,
        arguments: "bench checkpoint --json --tables sizes --sizes 32G --within 80s",
        seconds: 90,
        ..Step::ONCE
    },
];

/// Plan of the part.
pub(crate) const FIGURES_PLAN: Plan = Plan { steps: &FIGURE_STEPS, budget: FIGURES_TIME_BUDGET };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_comes_first_and_all_fits_in_twice_the_time() {
        assert!(
            FIGURE_STEPS[0].name == "checkpoint-32g" && FIGURE_STEPS[0].arguments.split(' ').any(|word| word == "32G")
        );
        // Limits are for steps that hang: working ones take half of them.
        assert!(FIGURE_STEPS.iter().map(|step| step.seconds).sum::<u64>() <= 2 * FIGURES_TIME_BUDGET.as_secs());
    }

    #[test]
    fn a_step_of_the_frameworks_names_items_that_there_are() {
        let items = katydid_tests::frameworks::items().unwrap();
        for step in &FIGURE_STEPS {
            let after = step.arguments.split(' ').skip_while(|word| *word != "--only").nth(1);
            for name in after.into_iter().flat_map(|names| names.split(',')) {
                assert!(items.iter().any(|item| item.name == name), "{name}");
            }
        }
    }
}
