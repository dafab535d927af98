use crate::llama::llama;
use crate::support::*;
#[test]
fn dump() {
    let step = with_update(joint(&llama(16)));
    let plan = std::env::var("PLAN").unwrap().replace("/", "\n");
    let program = check(&step, &plan);
    if std::env::var("TEXT").is_ok() { println!("{}", dtlc_ir::text::print_step(&program)); }
    for c in dtlc_passes::report::collectives(&program) {
        println!("{:15} {:6} {:6} {:9} x{} {}B wire {}", c.kind.name(), c.axis, c.scope, c.phase.name(), c.per_step, c.bytes, c.wire_bytes);
        for w in c.why { println!("      {w}"); }
    }
}
