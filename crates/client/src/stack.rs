//! The stack of current contexts of each thread.
//!
//! Its rules were measured on driver 580: setting replaces the top (or pushes onto an empty stack), setting none pops
//! the top, popping an empty stack is an error.

/// The contexts of one thread; the current one is last.
#[derive(Debug)]
pub struct ContextStack<T> {
    contexts: Vec<T>,
}

impl<T> ContextStack<T> {
    /// Creates a stack without a current context.
    pub const fn new() -> Self {
        Self { contexts: Vec::new() }
    }

    /// Returns the context on top of the calling thread's stack; none if the stack is empty.
    pub fn current(&self) -> Option<&T> {
        self.contexts.last()
    }

    /// Pushes `context`, which becomes current.
    pub fn push(&mut self, context: T) {
        self.contexts.push(context);
    }

    /// Pops the top, and returns it. The context below becomes current again.
    pub fn pop(&mut self) -> Option<T> {
        self.contexts.pop()
    }

    /// Replaces the top, or removes it when `context` is none.
    pub fn set(&mut self, context: Option<T>) {
        self.contexts.pop();
        self.contexts.extend(context);
    }
}

impl<T> Default for ContextStack<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_replaces_the_top_and_popping_returns_it() {
        let mut stack = ContextStack::new();
        stack.push('a');
        stack.set(Some('b'));
        assert_eq!(stack.current(), Some(&'b'));
        assert_eq!(stack.pop(), Some('b'));
        assert_eq!(stack.pop(), None);
    }

    #[test]
    fn setting_on_an_empty_stack_pushes() {
        let mut stack = ContextStack::new();
        stack.set(Some('a'));
        stack.push('b');
        assert_eq!((stack.pop(), stack.pop(), stack.pop()), (Some('b'), Some('a'), None));
    }

    #[test]
    fn setting_none_pops_the_top_only() {
        let mut stack = ContextStack::new();
        stack.push('a');
        stack.push('b');
        stack.set(None);
        assert_eq!(stack.current(), Some(&'a'));
        stack.set(None);
        stack.set(None);
        assert_eq!(stack.current(), None);
    }
}
