//! The types that PTX writes behind a point: their names, sizes and kinds.

/// A fundamental type of PTX, or a packed or alternate form that instructions name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the PTX type of the same name")]
pub enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    Tf32,
    F32,
    F64,
}

impl Type {
    const NAMES: [(&'static str, Type); 21] = [
        ("pred", Type::Pred),
        ("b8", Type::B8),
        ("b16", Type::B16),
        ("b32", Type::B32),
        ("b64", Type::B64),
        ("b128", Type::B128),
        ("u8", Type::U8),
        ("u16", Type::U16),
        ("u32", Type::U32),
        ("u64", Type::U64),
        ("s8", Type::S8),
        ("s16", Type::S16),
        ("s32", Type::S32),
        ("s64", Type::S64),
        ("f16", Type::F16),
        ("f16x2", Type::F16x2),
        ("bf16", Type::Bf16),
        ("bf16x2", Type::Bf16x2),
        ("tf32", Type::Tf32),
        ("f32", Type::F32),
        ("f64", Type::F64),
    ];

    /// The type of this name, without its point.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Type> {
        Type::NAMES.iter().find(|(known, _)| *known == name).map(|(_, ty)| *ty)
    }

    /// The name, without its point.
    #[must_use]
    pub fn name(self) -> &'static str {
        Type::NAMES.iter().find(|(_, ty)| *ty == self).map_or("?", |(name, _)| name)
    }

    /// How many bytes a value takes in memory; a predicate takes none.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Type::Pred => 0,
            Type::B8 | Type::U8 | Type::S8 => 1,
            Type::B16 | Type::U16 | Type::S16 | Type::F16 | Type::Bf16 => 2,
            Type::B32 | Type::U32 | Type::S32 | Type::F32 | Type::F16x2 | Type::Bf16x2 | Type::Tf32 => 4,
            Type::B64 | Type::U64 | Type::S64 | Type::F64 => 8,
            Type::B128 => 16,
        }
    }

    /// Whether it is a signed integer.
    #[must_use]
    pub fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    /// Whether its values are floating-point numbers, packed ones included.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(
            self,
            Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2 | Type::Tf32 | Type::F32 | Type::F64
        )
    }
}
