//! Calls of an OpenCL library that is loaded at run time, shared by all measurements of OpenCL.

/// Defines `Functions`, with an address for each named function of `cl.h`.
macro_rules! functions {
    ($($name:ident($($argument:ty),*) -> $result:ty;)*) => {
        #[expect(non_snake_case, reason = "names are OpenCL's")]
        struct Functions { $($name: unsafe extern "C" fn($($argument),*) -> $result,)* }

        impl Functions {
            fn load(library: &Library) -> Result<Self, String> {
                Ok(Self { $(
                    // SAFETY: every OpenCL library exports these symbols with these signatures (cl.h).
                    $name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                        .map_err(|error| error.to_string())?,
                )* })
            }
        }
    };
}

/// Calls a function that returns a code.
macro_rules! call {
    ($functions:expr, $name:ident($($argument:expr),*)) => {{
        // SAFETY: handles came from this very library; pointers are to memory that the enclosing method owns or borrows
        // for the call, of the size that it passes.
        match unsafe { ($functions.$name)($($argument),*) } {
            0 => Ok(()),
            code => Err(format!("{}: error {code}", stringify!($name))),
        }
    }};
}

/// Calls a function that returns an object and writes its code to the last argument.
macro_rules! make {
    ($functions:expr, $name:ident($($argument:expr),*)) => {{
        let mut code = 0;
        // SAFETY: as in `call`.
        let made = unsafe { ($functions.$name)($($argument,)* &raw mut code) };
        if code == 0 { Ok(made) } else { Err(format!("{}: error {code}", stringify!($name))) }
    }};
}

pub(super) use {call, functions, make};
