//! Where sharded training goes wrong: reports by users of other systems, each as a small case with the right behaviour.
//!
//! | reported at | test, or what it waits for |
//! | --- | --- |
//! | xla#43774, xla#15402, oneflow#9942 | [`placement::xla_43774_every_collective_is_traced_to_lines_and_rules`], [`placement::xla_15402_a_bad_split_is_an_error_that_names_the_dimension`] |
//! | jax#21562, xla#15207 | [`placement::jax_21562_a_reshard_over_two_axes_replicates_nothing`], [`placement::xla_15207_what_only_a_gather_can_move_asks_for_leave`] |
//! | pytorch/xla#6379, jax#25010 | [`placement::pytorch_xla_6379_one_block_s_gathered_weights_live_at_a_time`]; that a send is never replayed waits for pipelines |
//! | marin#8508, jax#31292 | [`placement::marin_8508_too_little_memory_is_known_when_compiling`] |
//! | Mega#443, Mega#7452, bigcode#37 | [`gradients::mega_443_a_replicated_weight_s_gradient_is_summed`] |
//! | tt#4245 | [`gradients::tt_4245_a_row_parallel_bias_counts_once`] |
//! | xla#42481 | [`gradients::xla_42481_untouched_embedding_rows_are_exactly_zero`] |
//! | tt#1842, transformers#34242, Mega#906 | [`gradients::tt_1842_a_mean_is_one_sum_over_one_count`]; its context axis waits |
//! | NeMo-RL#3788, Mega#5916, tt#596 | [`gradients::nemo_rl_3788_the_clip_norm_counts_each_value_once`]; experts and stages wait for their axes |
//! | pt#168058 | [`bits::pt_168058_dropout_and_initial_values_do_not_depend_on_the_ranks`] |
//! | DS#8061, DS#5545 | [`streams::ds_8061_what_a_collective_reads_is_ordered_by_events`], [`streams::ds_5545_each_event_that_is_not_waited_for_is_caught`], [`streams::ds_5545_between_processes_too`] |
//! | DS#4851, DS#5059 | [`bits::ds_4851_a_part_kept_for_the_backward_pass_changes_nothing`] |
//! | pt#106395, Mega#6199 | [`bits::pt_106395_sums_of_bf16_keep_a_bound_that_does_not_grow_with_the_ranks`] |
//! | pt#172668, pt#127332, DS#4966, DS#7998 | waits for pipelines and experts |
//! | pt#144530 | waits for pipelines |
//! | DS#2898, Mega#1517 | [`bits::ds_2898_a_checkpoint_loads_under_any_plan`]; stages wait |
//! | jax#2777, alpa#681 | `tests/tests/compile_time.rs` |
//! | Mega#1754, Megatron-Bridge#1331 | [`bits::mega_1754_vocabulary_pads_are_in_nothing`] |
//! | an odd size is exact or an error | [`also::an_odd_size_is_exact_or_an_error`] |
//! | fused weights are product dimensions | [`also::fused_weights_are_cut_by_heads_and_hidden_units`] |
//! | an auxiliary loss has one strength | [`also::an_auxiliary_loss_has_the_same_strength_under_every_plan`] |
//! | context-parallel layouts carry their positions | waits for the context axis |
//!
//! Beside these, `property` judges random models under random plans, where most of these kinds occur.

mod also;
mod bits;
mod gradients;
mod placement;
#[path = "../../../runtime/tests/support/mod.rs"]
mod programs;
mod streams;
mod support;
#[path = "../on_device/switch.rs"]
mod switch;
