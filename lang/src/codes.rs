//! The one table of diagnostic codes: number, name, short title, and the long text that `dtlc explain E0123` prints.
//!
//! To add a code: one row below, and `codes/E….md` with the long text (what happened, a small wrong example, the same
//! put right). Ranges: E00 faults of ours, E01 syntax, E02 names, E03 types, E04 plan and placement, E05 memory and contracts, E06 files
//! and data. A number is never reused. Does not know where a code is raised.

macro_rules! codes {
    ($($name:ident $number:literal $title:literal;)*) => {
        /// What a diagnostic is about. The number is stable; the title may be reworded.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $(#[doc = concat!($number, ": ", $title, ".")] $name,)*
        }

        impl Code {
            /// Every code, in the table's order.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            /// The number that users see, `E0101`.
            pub fn number(self) -> &'static str {
                match self { $(Code::$name => $number,)* }
            }

            /// A short title for lists of codes.
            pub fn title(self) -> &'static str {
                match self { $(Code::$name => $title,)* }
            }

            /// The long text, in Markdown.
            pub fn explanation(self) -> &'static str {
                match self { $(Code::$name => include_str!(concat!("codes/", $number, ".md")),)* }
            }
        }
    };
}

codes! {
    // E00: ours
    Fault "E0001" "bug in dtlc";
    // E01: syntax
    UnexpectedToken "E0101" "unexpected token";
    UnclosedBracket "E0102" "bracket without its partner";
    UnclosedText "E0103" "text or comment that does not end";
    UnknownItem "E0104" "not an item";
    InvalidNumber "E0105" "number out of range";
    TooDeep "E0106" "nested too deep";
    PositionalAxis "E0107" "dimension without a name";
    NoResult "E0108" "block without a result";
    UnknownPlanItem "E0109" "not a plan item";
    InvalidUtf8 "E0110" "file is not UTF-8";
    FileTooLarge "E0111" "file is too large";
    TooManyErrors "E0112" "too many errors";
    UnknownParameterKind "E0113" "not a kind of parameter";
    // E02: names
    UnknownName "E0201" "unknown name";
    DuplicateName "E0202" "declared twice";
    UnresolvedImport "E0203" "import that leads nowhere";
    UnknownImport "E0204" "imported name that is not there";
    CyclicImport "E0205" "files that import each other";
    CyclicLayer "E0206" "layer or function inside of itself";
    UnknownDim "E0207" "unknown dimension";
    MisplacedMember "E0208" "member of the wrong kind of item";
    NotCallable "E0209" "not a layer or function";
    UnknownField "E0210" "no such part of a layer";
    // E03: types
    DimMismatch "E0301" "dimensions do not match";
    ElementMismatch "E0302" "element types do not match";
    WrongArguments "E0303" "wrong arguments";
    OperandDims "E0304" "operands that do not combine";
    MissingDim "E0305" "dimension that a value lacks";
    RepeatedDim "E0306" "dimension twice in a type";
    InvalidSize "E0307" "size that can't be";
    NotCompileTime "E0308" "not known at compile time";
    WrongDims "E0309" "wrong dimensions in brackets";
    WrongValue "E0310" "wrong kind of value";
    TooLarge "E0311" "tensor too large";
    LimitReached "E0312" "too much to compile";
    RepeatType "E0313" "layer that can't be repeated";
    InvalidInitialiser "E0314" "not an initialiser";
    LossSignature "E0315" "model without a proper loss";
    Unmet "E0316" "requirement that does not hold";
    // E04: plans and placements
    WhichPlan "E0401" "which plan is meant";
    WhichModel "E0402" "which model is meant";
    UnknownAxis "E0403" "unknown mesh axis";
    RuleMatchesNothing "E0404" "rule that matches nothing";
    ConflictingRules "E0405" "two rules for the same thing";
    AxisTwice "E0406" "mesh axis used twice";
    NotDivided "E0407" "dimension that an axis does not divide";
    InvalidBatch "E0408" "batch that does not come out";
    InvalidSetting "E0409" "setting that can't be";
    NotSupported "E0410" "not supported yet";
    InvalidOptimizer "E0411" "optimizer that does not fit";
    InvalidOverride "E0412" "size that can't be overridden";
    DuplicateEntry "E0413" "entry twice in a plan";
    InvalidMesh "E0414" "mesh that can't be";
    InvalidExpectation "E0415" "contract that can't be";
    NoEffect "E0416" "entry that changes nothing";
    // E04: found by the passes
    UnusableDimension "E0452" "dimension used against its factors";
    LossNotASum "E0453" "loss is not a sum over micro-batches";
    NoOptimizer "E0454" "plan without an optimizer";
    RuleConflict "E0467" "rules disagree";
    NeedsLeave "E0469" "moving this would gather it";
    // E05: memory and contracts
    MemoryExceeded "E0501" "plan needs more memory than it may";
    ExpectationBroken "E0502" "contract of a plan broken";
    // E06: files and data
    UnusableFile "E0601" "file can't be used";
    UnfitData "E0602" "data does not fit the program";
}

impl Code {
    /// The code with a number such as `E0101` (case does not matter).
    pub fn from_number(number: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.number().eq_ignore_ascii_case(number))
    }
}
