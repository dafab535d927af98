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
}

impl Code {
    /// The code with a number such as `E0101` (case does not matter).
    pub fn from_number(number: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.number().eq_ignore_ascii_case(number))
    }
}
