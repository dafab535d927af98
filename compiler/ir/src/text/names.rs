//! Unique, readable names for the values and scopes of a program.
//!
//! A value goes by its source name; a later one of equal name gets `#2`, `#3`, …. A value without a
//! name contains a `~`: `d~q` is the gradient of `q`, and `attn~3` the third nameless value of the
//! layer instances called `attn`, so that an edit in one layer renames nothing in another.

use crate::program::{Program, Region, Scope, Value};
use cranelift_entity::SecondaryMap;
use rustc_hash::FxHashMap;

/// The names of a program's values and scopes. Take it once for several prints of one program.
#[derive(Clone, Debug)]
pub struct Names {
    values: SecondaryMap<Value, String>,
    defined: SecondaryMap<Value, bool>,
    scopes: SecondaryMap<Scope, String>,
}

impl Names {
    /// Names everything in `program`, in the order of the text.
    pub fn new(program: &Program) -> Names {
        let mut order = Vec::new();
        definitions(&program.main, &mut order);
        let mut defined: SecondaryMap<Value, bool> = SecondaryMap::new();
        for &value in &order {
            defined[value] = true;
        }
        order.extend(program.values.keys().filter(|&value| !defined[value]));
        let mut values: SecondaryMap<Value, String> = SecondaryMap::new();
        let mut taken = Taken::default();
        let (gradients, others): (Vec<Value>, Vec<Value>) = order.into_iter().partition(|&value| {
            let info = &program.values[value];
            info.name.is_none() && info.gradient_of.is_some_and(|of| defined[of])
        });
        for value in others {
            values[value] = own_name(program, value, &mut taken);
        }
        for value in gradients {
            let of = program.values[value].gradient_of.map(|of| values[of].clone()).unwrap_or_default();
            values[value] = taken.numbered(&format!("d~{of}"));
        }
        Names { values, defined, scopes: scope_names(program) }
    }

    /// Whether an instruction or region defines the value.
    pub fn is_defined(&self, value: Value) -> bool {
        self.defined[value]
    }

    /// The name of a value, without the `%`.
    pub fn value(&self, value: Value) -> &str {
        &self.values[value]
    }

    /// The path of a scope; empty for the model.
    pub fn scope(&self, scope: Scope) -> &str {
        &self.scopes[scope]
    }
}

/// The values that `region` defines, in the order of the text: an instruction's results stand before
/// what its body defines.
pub(super) fn definitions(region: &Region, order: &mut Vec<Value>) {
    order.extend(&region.params);
    for inst in &region.insts {
        order.extend(&inst.results);
        if let Some(body) = inst.op.region() {
            definitions(body, order);
        }
    }
}

/// `text` as it is if it is a plain word of the grammar, else in quotes.
pub(super) fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.' || c == '#';
    let starts = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    if starts && text.chars().all(plain) { text.to_string() } else { quote(text) }
}

/// `text` in quotes.
pub(super) fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            _ => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// The name of a value that isn't an unnamed gradient.
fn own_name(program: &Program, value: Value, taken: &mut Taken) -> String {
    let plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
    let info = &program.values[value];
    match &info.name {
        Some(name) if plain(name) && !name.is_empty() => taken.numbered(name),
        Some(name) => taken.numbered(&quote(name)),
        None => {
            let scope = program.origins[info.origin].scope;
            let instance = &program.scopes[scope].instance;
            taken.counted(&format!("{}~", if plain(instance) { instance.as_str() } else { "" }))
        }
    }
}

/// Unique dotted paths, `#2` where two are equal.
fn scope_names(program: &Program) -> SecondaryMap<Scope, String> {
    let mut names: SecondaryMap<Scope, String> = SecondaryMap::new();
    let mut taken = Taken::default();
    for (scope, info) in program.scopes.iter() {
        let above = info.parent.map_or("", |parent| names[parent].as_str());
        let path =
            if above.is_empty() { info.instance.clone() } else { format!("{above}.{}", info.instance) };
        names[scope] = taken.numbered(&path);
    }
    names
}

/// Names in use, with the last number given to each base.
#[derive(Default)]
struct Taken(FxHashMap<String, usize>);

impl Taken {
    /// `base`, or the first free of `base#2`, `base#3`, ….
    fn numbered(&mut self, base: &str) -> String {
        match self.0.contains_key(base) {
            false => self.take(base.to_string()),
            true => {
                self.0.entry(base.to_string()).and_modify(|last| *last = (*last).max(1));
                self.next(base, "#")
            }
        }
    }

    /// The first free of `base1`, `base2`, ….
    fn counted(&mut self, base: &str) -> String {
        self.next(base, "")
    }

    fn next(&mut self, base: &str, separator: &str) -> String {
        loop {
            let last = self.0.entry(base.to_string()).or_insert(0);
            *last += 1;
            let candidate = format!("{base}{separator}{last}");
            if !self.0.contains_key(&candidate) {
                return self.take(candidate);
            }
        }
    }

    fn take(&mut self, name: String) -> String {
        self.0.insert(name.clone(), 0);
        name
    }
}
