//! The syntax tree of a PTX text, with names unresolved and instructions uninterpreted.
//!
//! Every name is a slice of the text. Nodes keep their lines for messages.

/// The items of one PTX text, in their order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Module<'a> {
    /// `.version` as major and minor.
    pub version: (u32, u32),
    /// `.target`: the architecture first (`sm_90`), then options (`debug`, `texmode_unified`).
    pub target: Vec<&'a str>,
    /// Bits of an address: 32 or 64. As in ptxas 13.0, 64 if the text does not tell.
    pub address_size: u32,
    /// Variables and functions in the order of the text.
    pub items: Vec<Item<'a>>,
}

/// A declaration at module level.
#[derive(Debug, Clone, PartialEq)]
pub enum Item<'a> {
    /// A `.global`, `.const` or `.shared` variable.
    Variable(Variable<'a>),
    /// An `.entry` or `.func`, defined or declared.
    Function(Function<'a>),
    /// An alias of a function, `.alias name, target;`.
    Alias {
        /// Name that the alias declares.
        name: &'a str,
        /// The function it stands for.
        target: &'a str,
        /// Line of the directive.
        line: u32,
    },
}

/// Linkage of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Linkage {
    /// Visible in this text only.
    #[default]
    Private,
    /// Defined here, for all texts.
    Visible,
    /// Defined in another text, or by the driver.
    Extern,
    /// Defined here unless another text defines it.
    Weak,
    /// One definition, the largest, shared by all texts.
    Common,
}

/// State spaces a variable can be declared in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// `.global`: memory of the device, which all threads see.
    Global,
    /// `.const`: constant memory.
    Const,
    /// `.shared`: memory of a block.
    Shared,
    /// `.local`: memory of one thread.
    Local,
    /// `.param`: parameters of kernels and functions.
    Param,
    /// `.reg`: registers of one thread.
    Reg,
}

/// A declared variable, parameter or register (range).
#[derive(Debug, Clone, PartialEq)]
pub struct Variable<'a> {
    /// Linkage of the variable; `Private` inside functions.
    pub linkage: Linkage,
    /// State space that holds the variable.
    pub space: Space,
    /// `.align`, 0 if the text has none.
    pub align: u32,
    /// Elements of the `.v2`/`.v4` before the type, else 1.
    pub vector: u32,
    /// The type without its dot: `f32`, `b8`, `pred`, `texref`.
    pub ty: &'a str,
    /// Its name; for a register range `%r<9>` the part before `<`.
    pub name: &'a str,
    /// The number in `<...>`: registers `name0` to `name(count-1)`.
    pub count: Option<u32>,
    /// Array dimensions; 0 for `[]`. Empty for a scalar.
    pub dimensions: Vec<u64>,
    /// Elements of the initialiser; empty for zeroes.
    pub initial: Vec<Initial<'a>>,
    /// `.attribute(.managed)`: the host uses it at the same address.
    pub managed: bool,
    /// Line of its name.
    pub line: u32,
}

/// One element of an initialiser, nested braces flattened by `Initial::List`.
#[derive(Debug, Clone, PartialEq)]
pub enum Initial<'a> {
    /// An integer, two's complement.
    Int(u64),
    /// A float of 32 bits, written as `0f` and its bits in hexadecimal.
    F32(u32),
    /// `0d...` or decimal bits.
    F64(u64),
    /// The address of a variable or function plus a constant.
    Address(SymbolAddress<'a>),
    /// A braced row of a multi-dimensional array.
    List(Vec<Initial<'a>>),
}

/// `mask(generic(name) + offset)`; all parts except the name are optional.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SymbolAddress<'a> {
    /// The variable or function.
    pub name: &'a str,
    /// Whether `generic()` was around it.
    pub generic: bool,
    /// Added to the address.
    pub offset: i64,
    /// `0xFF00(...)`: take the bits of this mask, shifted down.
    pub mask: Option<u64>,
}

/// A function or kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct Function<'a> {
    /// Linkage of the function.
    pub linkage: Linkage,
    /// Whether it is a kernel.
    pub entry: bool,
    /// Name of the function.
    pub name: &'a str,
    /// Return parameters, in their order; none for a kernel.
    pub returns: Vec<Variable<'a>>,
    /// Parameters, in their order.
    pub params: Vec<Variable<'a>>,
    /// `.maxntid 128, 1, 1` and the like: name without dot, numbers.
    pub directives: Vec<(&'a str, Vec<u64>)>,
    /// `None` for a declaration.
    pub body: Option<Vec<Statement<'a>>>,
    /// Line of its name.
    pub line: u32,
}

/// A statement of a function's body.
#[derive(Debug, Clone, PartialEq)]
pub enum Statement<'a> {
    /// A label, `name:`, with its line.
    Label(&'a str, u32),
    /// `.reg`, `.local`, `.shared`, `.param`, ... declarations.
    Declare(Variable<'a>),
    /// An instruction with its operands.
    Instruction(Instruction<'a>),
    /// `{ ... }`: a nested scope.
    Block(Vec<Statement<'a>>),
    /// `name: .callprototype (returns) _ (params);`
    Prototype(Function<'a>),
    /// `name: .branchtargets a, b;` or `.calltargets`.
    Targets {
        /// The list's own label.
        name: &'a str,
        /// Names that the list holds, in their order: labels of branches, or functions.
        targets: Vec<&'a str>,
        /// Line of the label.
        line: u32,
    },
}

/// One instruction of PTX: guard, opcode, modifiers and operands.
#[derive(Debug, Clone, PartialEq)]
pub struct Instruction<'a> {
    /// The guard predicate, `@p` or `@!p`; none if the instruction always runs.
    pub guard: Option<Guard<'a>>,
    /// The part before the first dot.
    pub opcode: &'a str,
    /// The parts after it, in the order written, without dots: `global`, `L2::128B`, `f32`.
    pub modifiers: Vec<&'a str>,
    /// Operands, in the order of the text.
    pub operands: Vec<Operand<'a>>,
    /// Line of the opcode.
    pub line: u32,
}

impl Instruction<'_> {
    /// Returns opcode and modifiers as written, for messages.
    pub fn full_name(&self) -> String {
        let mut name = self.opcode.to_owned();
        for modifier in &self.modifiers {
            name.push('.');
            name.push_str(modifier);
        }
        name
    }
}

/// The predicate before an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guard<'a> {
    /// Whether the instruction runs where the predicate is false (`@!p`).
    pub negated: bool,
    /// Name of the predicate register.
    pub register: &'a str,
}

/// One operand of an instruction.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand<'a> {
    /// A register, variable, label, function or special register.
    Name(&'a str),
    /// `%tid.x`: name and component.
    Member(&'a str, &'a str),
    /// An address and a number of bytes, `name+4` outside brackets.
    Offset(&'a str, i64),
    /// An integer constant, two's complement.
    Int(u64),
    /// A float of 32 bits, written as `0f` and its bits in hexadecimal.
    F32(u32),
    /// `0d...` or decimal bits.
    F64(u64),
    /// A negated predicate, `!p`.
    Not(&'a str),
    /// `-r` and `-r.h1`: a register or a part of it, negated.
    Negated(Box<Operand<'a>>),
    /// Two operands with a bar between, `d|p`.
    Pair(Box<(Operand<'a>, Operand<'a>)>),
    /// `{a, b, c, d}`
    Vector(Vec<Operand<'a>>),
    /// `(a, b)` of a call.
    List(Vec<Operand<'a>>),
    /// `[base+offset]`; `base` is absent in `[1024]`.
    Address {
        /// A register, variable or parameter.
        base: Option<&'a str>,
        /// Added to it, in bytes.
        offset: i64,
    },
    /// `[a, {x, y}]`: several operands in brackets, of texture and bulk instructions.
    Bracket(Vec<Operand<'a>>),
    /// The sink symbol `_`: the result is dropped.
    Discard,
}
