//! The facts about a context when it becomes active: the reply of `kdContextRetain` and `kdContextCreate`.
//!
//! ```text
//! id u64, api_version u32, flags u32, least_priority i32, greatest_priority i32,
//! cache_config u32, shared_config u32, limits u32 (<= 64), then each: code u32, value u64 (ids from 0)
//! ```

use super::bytes::{Reader, Writer, repeat};
use super::{DriverAnswer, FactsError};

/// Most limits of one context.
const MAX_CONTEXT_LIMITS: u32 = 64;

/// The facts about a context when it becomes active.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContextFacts {
    /// Unique id of the context, from `cuCtxGetId`.
    pub id: u64,
    /// API version of the context, from `cuCtxGetApiVersion`.
    pub api_version: u32,
    /// Flags of `CUctx_flags`, from `cuCtxGetFlags`.
    pub flags: u32,
    /// `cuCtxGetStreamPriorityRange`, the lowest priority (numerically largest).
    pub least_priority: i32,
    /// The highest priority (numerically smallest).
    pub greatest_priority: i32,
    /// Preferred cache, a `CUfunc_cache` from `cuCtxGetCacheConfig`.
    pub cache_config: u32,
    /// Bank size of shared memory, a `CUsharedconfig` from `cuCtxGetSharedMemConfig`.
    pub shared_config: u32,
    /// `cuCtxGetLimit` of ids 0, 1, 2 and so on.
    pub limits: Vec<DriverAnswer<u64>>,
}

impl ContextFacts {
    /// Encodes the layout at the top of this file.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(self.id);
        out.u32(self.api_version);
        out.u32(self.flags);
        out.i32(self.least_priority);
        out.i32(self.greatest_priority);
        out.u32(self.cache_config);
        out.u32(self.shared_config);
        out.count(self.limits.len());
        for limit in &self.limits {
            out.u32(limit.code);
            out.u64(limit.value);
        }
        out.bytes
    }

    /// Decodes the result of [`ContextFacts::encode`].
    ///
    /// # Errors
    ///
    /// The bytes are too few, too many, or a count is beyond its bound.
    pub fn decode(bytes: &[u8]) -> Result<Self, FactsError> {
        let mut input = Reader::new(bytes);
        let facts = Self {
            id: input.u64()?,
            api_version: input.u32()?,
            flags: input.u32()?,
            least_priority: input.i32()?,
            greatest_priority: input.i32()?,
            cache_config: input.u32()?,
            shared_config: input.u32()?,
            limits: {
                let count = input.count("limits", MAX_CONTEXT_LIMITS)?;
                repeat(count, || Ok(DriverAnswer { code: input.u32()?, value: input.u64()? }))?
            },
        };
        input.end()?;
        Ok(facts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ContextFacts {
        let limits = vec![DriverAnswer { code: 0, value: 1024 }, DriverAnswer { code: 215, value: 0 }];
        ContextFacts { id: 7, greatest_priority: -5, limits, ..Default::default() }
    }

    #[test]
    fn facts_survive_the_wire() {
        assert_eq!(ContextFacts::decode(&sample().encode()), Ok(sample()));
    }

    #[test]
    fn every_cut_is_an_error() {
        let bytes = sample().encode();
        for cut in 0..bytes.len() {
            assert!(matches!(ContextFacts::decode(&bytes[..cut]), Err(FactsError::Truncated { .. })), "cut at {cut}");
        }
    }
}
