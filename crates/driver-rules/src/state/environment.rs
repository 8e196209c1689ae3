//! Environment variables that NVIDIA documents for its driver, and where each takes effect here.
//!
//! The program reads its own variables. Those that a driver reads at its start only take effect where the driver starts: in
//! the worker, which a server has started before the program came. If a variable is set and has no effect, it is reported
//! once a process.

/// Where a variable takes effect in Katydid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// In this library, in the program.
    Program,
    /// In a GPU's driver, at its start.
    Driver,
    /// In this library for NVRTC's compilations, and in a GPU's driver, at its start, for its own.
    Cache,
    /// In a GPU's driver at its start; softcuda always behaves as it asks.
    Given,
    /// Katydid ignores the variable.
    None,
}

/// An environment variable that NVIDIA documents for its driver.
#[derive(Debug, PartialEq, Eq)]
pub struct Variable {
    /// Name of the variable.
    pub name: &'static str,
    /// A value that changes nothing; empty without one.
    pub default: &'static str,
    /// Where the variable takes effect.
    pub effect: Effect,
}

const fn variable(name: &'static str, default: &'static str, effect: Effect) -> Variable {
    Variable { name, default, effect }
}

/// The documented variables, in the order in which messages name them.
pub const CUDA_VARIABLES: &[Variable] = &[
    variable("CUDA_VISIBLE_DEVICES", "", Effect::Program),
    variable("CUDA_DEVICE_ORDER", "FASTEST_FIRST", Effect::Program),
    variable("CUDA_LAUNCH_BLOCKING", "0", Effect::Program),
    variable("CUDA_LOG_FILE", "", Effect::Program),
    variable("CUDA_MODULE_LOADING", "LAZY", Effect::Program),
    variable("CUDA_MANAGED_FORCE_DEVICE_ALLOC", "0", Effect::None),
    variable("CUDA_FORCE_PTX_JIT", "0", Effect::Given),
    variable("CUDA_FORCE_JIT", "0", Effect::Given),
    variable("CUDA_DISABLE_PTX_JIT", "0", Effect::Driver),
    variable("CUDA_DISABLE_JIT", "0", Effect::Driver),
    variable("CUDA_CACHE_DISABLE", "0", Effect::Cache),
    variable("CUDA_CACHE_PATH", "", Effect::Cache),
    variable("CUDA_CACHE_MAXSIZE", "", Effect::Cache),
    variable("CUDA_MODULE_DATA_LOADING", "", Effect::Driver),
    variable("CUDA_BINARY_LOADER_THREAD_COUNT", "", Effect::Driver),
    variable("CUDA_DEVICE_MAX_CONNECTIONS", "8", Effect::Driver),
    variable("CUDA_DEVICE_MAX_COPY_CONNECTIONS", "8", Effect::Driver),
    variable("CUDA_SCALE_LAUNCH_QUEUES", "1x", Effect::Driver),
    variable("CUDA_GRAPHS_USE_NODE_PRIORITY", "0", Effect::Driver),
    variable("CUDA_DEVICE_WAITS_ON_EXCEPTION", "0", Effect::Driver),
    variable("CUDA_DEVICE_DEFAULT_PERSISTING_L2_CACHE_PERCENTAGE_LIMIT", "0", Effect::Driver),
    variable("CUDA_DISABLE_PERF_BOOST", "0", Effect::Driver),
    variable("CUDA_AUTO_BOOST", "", Effect::Driver),
    variable("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "0", Effect::Driver),
    variable("CUDA_ENABLE_USER_TRIGGERED_COREDUMP", "0", Effect::Driver),
    variable("CUDA_ENABLE_LIGHTWEIGHT_COREDUMP", "0", Effect::Driver),
    variable("CUDA_ENABLE_CPU_COREDUMP_ON_EXCEPTION", "1", Effect::Driver),
    variable("CUDA_COREDUMP_FILE", "", Effect::Driver),
    variable("CUDA_COREDUMP_PIPE", "", Effect::Driver),
    variable("CUDA_COREDUMP_GENERATION_FLAGS", "", Effect::Driver),
    variable("CUDA_COREDUMP_SHOW_PROGRESS", "0", Effect::Driver),
    variable("CUDA_MPS_PIPE_DIRECTORY", "", Effect::Driver),
    variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "", Effect::Driver),
    variable("CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING", "", Effect::Driver),
    variable("CUDA_MPS_CLIENT_PRIORITY", "", Effect::Driver),
    variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "", Effect::Driver),
];

/// A variable that is set, and its value.
pub type Setting = (&'static Variable, String);

/// The variables that are set, and not to their default.
pub fn set(value: impl Fn(&str) -> Option<String>) -> Vec<Setting> {
    let setting = |variable: &'static Variable| {
        let value = value(variable.name).filter(|value| !value.is_empty() && value != variable.default)?;
        Some((variable, value))
    };
    CUDA_VARIABLES.iter().filter_map(setting).collect()
}

/// Returns a variable of this process.
#[must_use]
pub fn value(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Returns whether launches wait for their kernels, and return their errors.
#[must_use]
pub fn launches_block() -> bool {
    value("CUDA_LAUNCH_BLOCKING").is_some_and(|value| value.parse::<i64>().is_ok_and(|number| number != 0))
}

/// Returns the settings of a driver as text: those of `own_settings` that it acts on, a line each.
#[must_use]
pub fn in_effect(own_settings: &[Setting], is_soft: bool) -> String {
    let acts = |effect| match effect {
        Effect::Given => true,
        Effect::Driver | Effect::Cache => !is_soft,
        Effect::Program | Effect::None => false,
    };
    let lines = own_settings.iter().filter(|(variable, _)| acts(variable.effect));
    lines.map(|(variable, value)| format!("{}={value}\n", variable.name)).collect()
}

/// Returns, as text for the user, the settings of a program without effect on a driver that has `in_effect`; none if all
/// have one. softcuda always behaves as [`Effect::Given`] asks.
#[must_use]
pub fn without_effect(program: &[Setting], in_effect: &str, is_soft: bool) -> Option<String> {
    let has_effect = |setting: &Setting| match setting.0.effect {
        Effect::Program | Effect::Cache => true,
        Effect::Given => is_soft || is_listed(setting, in_effect),
        Effect::Driver => is_listed(setting, in_effect),
        Effect::None => false,
    };
    named(program.iter().filter(|setting| !has_effect(setting)))
}

/// Returns, as text for the user, a program's cache settings that only NVRTC heeds, since a GPU's driver that has
/// `in_effect` was started without them; none if there are none. softcuda compiles nothing and has no cache.
#[must_use]
pub fn without_driver_cache(program: &[Setting], in_effect: &str, is_soft: bool) -> Option<String> {
    let is_divided =
        |setting: &&Setting| setting.0.effect == Effect::Cache && !is_soft && !is_listed(setting, in_effect);
    named(program.iter().filter(is_divided))
}

/// Returns whether a driver that has `in_effect` has this setting.
fn is_listed((variable, value): &Setting, in_effect: &str) -> bool {
    in_effect.lines().any(|line| line.split_once('=') == Some((variable.name, value)))
}

/// Returns settings in the form for messages.
fn named<'settings>(settings: impl Iterator<Item = &'settings Setting>) -> Option<String> {
    let named: Vec<String> = settings.map(|(variable, value)| format!("{}={value}", variable.name)).collect();
    (!named.is_empty()).then(|| named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Vec<Setting> {
        set(|name| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned))
    }

    #[test]
    fn variables_that_change_nothing_are_not_settings() {
        assert!(settings("CUDA_FORCE_PTX_JIT=0\nCUDA_CACHE_PATH=\nCUDA_DEVICE_MAX_CONNECTIONS=8").is_empty());
        assert_eq!(settings("CUDA_FORCE_PTX_JIT=1\nCUDA_AUTO_BOOST=0").len(), 2);
    }

    #[test]
    fn a_variable_that_the_driver_was_not_started_with_is_named() {
        let program = settings("CUDA_DEVICE_MAX_CONNECTIONS=1\nCUDA_AUTO_BOOST=0\nCUDA_LAUNCH_BLOCKING=1");
        let server = in_effect(&settings("CUDA_DEVICE_MAX_CONNECTIONS=1\nCUDA_COREDUMP_FILE=/c"), false);
        assert_eq!(server, "CUDA_DEVICE_MAX_CONNECTIONS=1\nCUDA_COREDUMP_FILE=/c\n");
        assert_eq!(without_effect(&program, &server, false).as_deref(), Some("CUDA_AUTO_BOOST=0"));
        assert_eq!(without_effect(&program, &in_effect(&program, false), false), None);
    }

    #[test]
    fn softcuda_acts_on_what_it_does_anyway_and_on_nothing_else_of_a_driver() {
        let program = settings("CUDA_FORCE_PTX_JIT=1\nCUDA_DISABLE_JIT=1\nCUDA_MANAGED_FORCE_DEVICE_ALLOC=1");
        assert_eq!(in_effect(&program, true), "CUDA_FORCE_PTX_JIT=1\n");
        let without = without_effect(&program, "", true);
        assert_eq!(without.as_deref(), Some("CUDA_MANAGED_FORCE_DEVICE_ALLOC=1, CUDA_DISABLE_JIT=1"));
    }

    #[test]
    fn a_cache_is_named_that_a_gpus_driver_does_not_share_with_the_program() {
        let program = settings("CUDA_CACHE_PATH=/c\nCUDA_CACHE_MAXSIZE=4096\nCUDA_LAUNCH_BLOCKING=1");
        let server = in_effect(&settings("CUDA_CACHE_PATH=/c\nCUDA_CACHE_MAXSIZE=1"), false);
        assert_eq!(server, "CUDA_CACHE_PATH=/c\nCUDA_CACHE_MAXSIZE=1\n");
        assert_eq!(without_driver_cache(&program, &server, false).as_deref(), Some("CUDA_CACHE_MAXSIZE=4096"));
        assert_eq!(without_effect(&program, &server, false), None);
        assert_eq!((in_effect(&program, true).as_str(), without_driver_cache(&program, "", true)), ("", None));
    }

    #[test]
    fn no_variable_stands_there_twice() {
        let mut names: Vec<_> = CUDA_VARIABLES.iter().map(|variable| variable.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CUDA_VARIABLES.len());
    }
}
