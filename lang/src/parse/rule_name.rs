//! What grammar rules are called in "expected …".
//!
//! A table; [`super::message`] makes sentences of it.

use super::grammar::Rule;

/// How much it says that a rule was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Likelihood {
    /// It could only stand at few places.
    Telling,
    /// It could stand after almost anything, as operators do.
    Anywhere,
}

/// A rule's name for people; `None` for rules that never stand for a choice of the writer.
pub(super) fn rule_name(rule: Rule) -> Option<(&'static str, Likelihood)> {
    if let Some(name) = token_name(rule).or_else(|| phrase_name(rule)) {
        return Some((name, Likelihood::Telling));
    }
    operator_name(rule).map(|name| (name, Likelihood::Anywhere))
}

fn token_name(rule: Rule) -> Option<&'static str> {
    Some(match rule {
        Rule::ident | Rule::word | Rule::name => "a name",
        Rule::comma => "`,`",
        Rule::colon => "`:`",
        Rule::path_sep => "`::`",
        Rule::arrow => "`->`",
        Rule::equals => "`=`",
        Rule::open_paren => "`(`",
        Rule::close_paren => "`)`",
        Rule::open_square => "`[`",
        Rule::close_square => "`]`",
        Rule::open_brace => "`{`",
        Rule::close_brace => "`}`",
        Rule::string => "a text in quotes",
        Rule::number | Rule::plan_number => "a number",
        Rule::boolean => "`true` or `false`",
        Rule::kw_for => "`for`",
        Rule::kw_else => "`else`",
        Rule::kw_let => "`let`",
        Rule::kw_require => "`require`",
        Rule::kw_over => "`over`",
        Rule::kw_largest => "`largest`",
        Rule::kw_step => "`step`",
        Rule::kw_per => "`per`",
        Rule::kw_none => "`none`",
        Rule::kw_save => "`save`",
        Rule::comparison => "`<=`",
        Rule::EOI => "the end of the file",
        _ => return None,
    })
}

fn phrase_name(rule: Rule) -> Option<&'static str> {
    Some(match rule {
        Rule::ty | Rule::tensor_type | Rule::tuple_type | Rule::scalar_type => "a type",
        Rule::shape => "a shape in brackets",
        Rule::expression | Rule::operand | Rule::parenthesised => "an expression",
        Rule::argument => "an argument",
        Rule::parameter => "a parameter",
        Rule::parameters => "parameters in parentheses",
        Rule::dim_argument | Rule::dim_argument_list | Rule::placed_dim | Rule::dim_names => "a dimension",
        Rule::rule_dims | Rule::store_dim | Rule::dim_declaration => "a dimension",
        Rule::block | Rule::body => "a body in braces",
        Rule::pattern => "a name or names in parentheses",
        Rule::layer_use => "a layer",
        Rule::use_path | Rule::use_name => "a path",
        Rule::sublayer_member => "a member",
        Rule::axes | Rule::axis => "a mesh axis",
        Rule::mesh_axes => "mesh axes in braces",
        Rule::mesh_axis => "an axis such as `dp: 2`",
        Rule::use_rule | Rule::store_rule => "a rule such as `B -> dp`",
        Rule::roles | Rule::role => "`params`, `grads`, `opt` or `acts`",
        Rule::value_path => "the name of a value",
        Rule::settings => "settings in braces",
        Rule::setting => "a setting such as `seq 2048`",
        Rule::plan_value | Rule::plan_argument => "a value",
        Rule::remat_policy => "`save …`, `full` or `none`",
        Rule::expect_collectives | Rule::expect_bound => "a contract such as `peak <= 70 GiB`",
        Rule::expect_counts | Rule::expect_count => "a count such as `2 all_gather`",
        Rule::zero_step => "`zero`",
        Rule::rules_step => "the step's name",
        _ => return None,
    })
}

fn operator_name(rule: Rule) -> Option<&'static str> {
    Some(match rule {
        Rule::or
        | Rule::and
        | Rule::equal
        | Rule::not_equal
        | Rule::less
        | Rule::less_equal
        | Rule::greater
        | Rule::greater_equal
        | Rule::add
        | Rule::subtract
        | Rule::multiply
        | Rule::divide
        | Rule::remainder => "an operator",
        Rule::field => "`.`",
        Rule::dim_arguments => "`[`",
        Rule::arguments => "`(`",
        Rule::dim_parameters => "`[`",
        Rule::default => "`=`",
        Rule::kw_at => "`at`",
        Rule::kw_pad => "`pad`",
        Rule::kw_on => "`on`",
        Rule::kw_as | Rule::checkpoint_name | Rule::use_alias => "`as`",
        Rule::param_kind | Rule::kw_kind => "`kind`",
        Rule::rest => "`..`",
        Rule::at_sign => "`@`",
        Rule::unit => "a unit such as `GB`",
        _ => return None,
    })
}
