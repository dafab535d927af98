//! Names of tensors in files: a stack as one tensor or as one for each index.

use crate::program::TensorName;

/// A tensor name that is spelled out, and which part of the stack it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The name with numbers in place of `{}`.
    pub name: String,
    /// Which of the stack's tensors it is, counted row-major over the stacked dimensions.
    pub index: usize,
}

/// The names of all tensors of a stack, whose leading dimensions have the sizes in `shape`. One
/// name if nothing is stacked.
#[must_use]
pub fn members(name: &TensorName, shape: &[u64]) -> Vec<Member> {
    let stacked = &shape[..name.first.len().min(shape.len())];
    let count: u64 = stacked.iter().product();
    (0..count)
        .map(|index| {
            let mut rest = index;
            let mut numbers: Vec<u64> = Vec::new();
            for (&size, first) in stacked.iter().zip(&name.first).rev() {
                numbers.insert(0, first + rest % size);
                rest /= size;
            }
            let mut pieces = name.template.split("{}");
            let mut spelled = pieces.next().unwrap_or_default().to_owned();
            for (number, piece) in numbers.iter().zip(pieces) {
                spelled.push_str(&number.to_string());
                spelled.push_str(piece);
            }
            Member { name: spelled, index: index as usize }
        })
        .collect()
}

/// The name of the whole stack as one tensor: the template without its `{}` and the dot at each.
#[must_use]
pub fn rolled(name: &TensorName) -> String {
    name.template.split('.').filter(|part| *part != "{}").collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_numbered_from_its_first_index() {
        let name = TensorName { template: "layers.{}.attn.wq".into(), first: vec![3] };
        let names: Vec<String> = members(&name, &[2, 64, 64]).into_iter().map(|member| member.name).collect();
        assert_eq!(names, ["layers.3.attn.wq", "layers.4.attn.wq"]);
        assert_eq!(rolled(&name), "layers.attn.wq");
    }

    #[test]
    fn nested_stacks_count_row_major() {
        let name = TensorName { template: "a.{}.b.{}".into(), first: vec![0, 1] };
        let names: Vec<String> = members(&name, &[2, 2, 5]).into_iter().map(|member| member.name).collect();
        assert_eq!(names, ["a.0.b.1", "a.0.b.2", "a.1.b.1", "a.1.b.2"]);
        let plain = members(&TensorName::plain("embed"), &[7, 3]);
        assert_eq!(plain, [Member { name: "embed".into(), index: 0 }]);
    }
}
