//! "Did you mean": the nearest of some names to a misspelt one.
//!
//! Pure text; knows nothing of scopes.

/// The candidate nearest to `name`, if one is near enough to be a likely slip; the first of equals.
///
/// Near means at most a third of the name's length in single edits (insert, delete, replace, swap of neighbours), at
/// least one; a difference in case alone always counts.
pub fn did_you_mean<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.chars().count() / 3).max(1);
    let mut best: Option<(usize, &str)> = None;
    for candidate in candidates {
        if candidate == name {
            continue;
        }
        let distance = if candidate.eq_ignore_ascii_case(name) { 0 } else { edit_distance(name, candidate) };
        // One letter for another is no slip but another name (dimensions are single letters).
        if distance >= name.chars().count().max(candidate.chars().count()) {
            continue;
        }
        if distance <= limit && best.is_none_or(|(known, _)| distance < known) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// Single-character edits between two texts, a swap of neighbours counted as one (optimal string alignment).
fn edit_distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().collect();
    let right: Vec<char> = right.chars().collect();
    let mut before_last = vec![0; right.len() + 1];
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for row in 1..=left.len() {
        let mut current = vec![row];
        for column in 1..=right.len() {
            let replaced = last[column - 1] + usize::from(left[row - 1] != right[column - 1]);
            let mut cost = replaced.min(last[column] + 1).min(current[column - 1] + 1);
            let swapped = row > 1
                && column > 1
                && left[row - 1] == right[column - 2]
                && left[row - 2] == right[column - 1];
            if swapped {
                cost = cost.min(before_last[column - 2] + 1);
            }
            current.push(cost);
        }
        before_last = std::mem::replace(&mut last, current);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_slips_and_nothing_else() {
        assert_eq!(did_you_mean("modle", ["layer", "model"]), Some("model"));
        assert_eq!(did_you_mean("RMSNorm", ["RmsNorm"]), Some("RmsNorm"));
        assert_eq!(did_you_mean("D", ["F", "K"]), None);
        assert_eq!(did_you_mean("attention", ["rope"]), None);
    }
}
