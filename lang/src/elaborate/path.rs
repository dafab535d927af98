//! Paths of parameters: as the model names them, with places for layer numbers, and as checkpoints made elsewhere do.

use super::context::Elaborator;
use crate::ast::StringLiteral;
use crate::codes::Code;
use crate::diagnostic::Diagnostic;
use crate::suggest::did_you_mean;

/// One instance on the way from the model to a parameter.
#[derive(Clone, Debug)]
pub(super) struct PathSegment {
    /// The instance's name.
    pub name: String,
    /// Whether it is a stack, so that a layer's number follows.
    pub numbered: bool,
    /// What `as` says.
    pub checkpoint: Option<StringLiteral>,
}

/// The names of a parameter.
pub(super) struct ParamNames {
    /// `layers.attn.wq`.
    pub plain: String,
    /// `layers.{}.attn.wq`.
    pub numbered: String,
    /// The same under `as` names; none if nothing is renamed.
    pub alias: Option<String>,
}

impl Elaborator<'_> {
    /// Reports pairs behind the `as` of the present instance that name no parameter in it.
    pub fn check_pairs(&mut self, written: &StringLiteral) {
        if !written.text.contains(':') {
            return;
        }
        let names: Vec<&str> = self.path.iter().map(|segment| segment.name.as_str()).collect();
        let prefix = format!("{}.", names.join("."));
        let known: Vec<&str> =
            self.params.values().filter_map(|param| param.path.strip_prefix(prefix.as_str())).collect();
        let keys =
            written.text.split(',').map(|pair| pair.split_once(':').map_or(pair, |(key, _)| key).trim());
        let Some(wrong) = keys.filter(|key| !known.contains(key)).map(str::to_owned).next() else { return };
        let mut diagnostic = Diagnostic::error(Code::UnknownField, format!("no parameter `{wrong}` to name"))
            .label(written.span, "names it")
            .note(format!("parameters: {}", known.join(", ")));
        if let Some(near) = did_you_mean(&wrong, known.iter().copied()) {
            diagnostic = diagnostic.hint(format!("as \"{near}: …\""));
        }
        self.report(diagnostic);
    }

    /// The names of a parameter of the present instance.
    ///
    /// `as "x"` on a parameter renames it; on a layer it stands for the layer's segment, and leaves it out where it is
    /// empty. `as "weight: ln_w, bias: ln_b"` on a layer names single parameters in it, each by its path from there,
    /// and leaves out the layer's segment for those.
    pub fn param_names(&self, name: &str, own: Option<&StringLiteral>) -> ParamNames {
        let mut plain = name.to_owned();
        let mut numbered = name.to_owned();
        let mut alias = own.map_or(name, |own| &own.text).to_owned();
        let mut renamed = own.is_some();
        for segment in self.path.iter().rev() {
            let number = if segment.numbered { ".{}" } else { "" };
            let checkpoint = segment.checkpoint.as_ref().map(|it| it.text.as_str());
            alias = match checkpoint {
                None => format!("{}{number}.{alias}", segment.name),
                Some(text) if text.contains(':') => match pair(text, &plain) {
                    Some(name) => name.to_owned(),
                    None => format!("{}{number}.{alias}", segment.name),
                },
                Some("") => format!("{}{alias}", if segment.numbered { "{}." } else { "" }),
                Some(text) => format!("{text}{number}.{alias}"),
            };
            renamed |= checkpoint.is_some();
            plain = format!("{}.{plain}", segment.name);
            numbered = format!("{}{number}.{numbered}", segment.name);
        }
        ParamNames { plain, numbered, alias: renamed.then_some(alias) }
    }
}

/// The right side of the pair `key: name` in a list of pairs.
fn pair<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.split(',')
        .filter_map(|pair| pair.split_once(':'))
        .find(|(known, _)| known.trim() == key)
        .map(|(_, name)| name.trim())
}

/// Whether a tensor can have both names, each with the sizes of the stack whose numbers stand for its `{}`.
pub(super) fn have_one_name(left: (&str, &[u64]), right: (&str, &[u64])) -> bool {
    let (left, right) = (segments(left), segments(right));
    left.len() == right.len()
        && left.iter().zip(&right).all(|pair| match pair {
            (Segment::Word(left), Segment::Word(right)) => left == right,
            (Segment::Below(size), Segment::Word(word)) | (Segment::Word(word), Segment::Below(size)) => {
                word.parse::<u64>().is_ok_and(|number| number < *size && number.to_string() == *word)
            }
            (Segment::Below(_), Segment::Below(_)) => true,
        })
}

/// A part of a name between dots.
enum Segment<'a> {
    Word(&'a str),
    /// A number below this.
    Below(u64),
}

fn segments<'a>((name, sizes): (&'a str, &[u64])) -> Vec<Segment<'a>> {
    let mut sizes = sizes.iter();
    let segment = |word: &'a str| match word {
        "{}" => sizes.next().map_or(Segment::Word(word), |&size| Segment::Below(size)),
        word => Segment::Word(word),
    };
    name.split('.').map(segment).collect()
}

#[cfg(test)]
mod tests {
    use super::have_one_name;

    #[test]
    fn names_with_numbers_meet_where_a_number_can_stand() {
        assert!(have_one_name(("a.w", &[]), ("a.w", &[])));
        assert!(!have_one_name(("a.w", &[]), ("b.w", &[])));
        assert!(have_one_name(("h.{}.w", &[3]), ("h.2.w", &[])));
        assert!(!have_one_name(("h.{}.w", &[3]), ("h.3.w", &[])));
        assert!(!have_one_name(("h.{}.w", &[3]), ("h.02.w", &[])));
        assert!(have_one_name(("h.{}.w", &[3]), ("h.{}.w", &[4])));
        assert!(!have_one_name(("h.{}.w", &[3]), ("h.{}.x.w", &[4])));
    }
}
