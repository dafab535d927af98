//! Random kernels: emitted code against the interpreter, bit for bit, and text against the kernel it prints.

mod support;

use dtlc_codegen::kir::parse;
use proptest::prelude::*;
use support::generator::{Generator, inputs};
use support::{assert_close, execute, judge, targets};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn emitted_code_has_the_bits_of_the_interpreter(
        choices in prop::collection::vec(any::<u32>(), 8..220),
        seed in any::<u32>(),
        shift in 0..9i64,
    ) {
        let kernel = Generator::new(choices).kernel();
        let text = kernel.to_string();
        prop_assert_eq!(parse(&text), Ok(kernel.clone()), "{}", text);
        let buffers = inputs(&kernel, seed);
        for target in targets() {
            let found = execute(&kernel, target, &buffers, &[shift], &[]);
            let expected = judge(&kernel, target, &buffers, &[shift]);
            assert_close(&found, &expected, 0.0);
            let middle = kernel.parallel_extent() / 3;
            let parts = execute(&kernel, target, &buffers, &[shift], &[middle, middle]);
            assert_close(&parts, &found, 0.0);
        }
    }
}
