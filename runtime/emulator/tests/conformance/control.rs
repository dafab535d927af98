//! Branches, loops, tables, calls, barriers.

use super::check;
use crate::support::Bench;
use dtlc_emulator::{Argument, FaultKind, LaunchShape};

const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

#[test]
fn lanes_part_and_meet() {
    // Each lane loops as often as its own number says.
    let body = "and.b32 %r1, %a, 15; mov.u32 %x, 0; mov.u32 %r2, 0;\n\
                again: setp.ge.u32 %p, %r2, %r1; @%p bra done; mad.lo.u32 %x, %x, 3, %r2; add.u32 %r2, %r2, 1; bra.uni again;\n\
                done: and.b32 %r3, %a, 1; setp.eq.u32 %p, %r3, 1; @!%p bra even; xor.b32 %x, %x, 5; bra join;\n\
                even: add.u32 %x, %x, 9; join: activemask.b32 %r4; not.b32 %r4, %r4; add.u32 %x, %x, %r4;";
    check(body, [4; 3], 4, |a, _, _| {
        let x = (0..a & 15).fold(0_u64, |x, n| x.wrapping_mul(3).wrapping_add(n) & 0xffff_ffff);
        if a & 1 == 1 { x ^ 5 } else { x + 9 }
    });
}

#[test]
fn tables_of_targets() {
    let body = "table: .branchtargets one, two, three, one;\n\
                and.b32 %r1, %a, 3; brx.idx %r1, table;\n\
                one: mov.u32 %x, 11; bra join; two: mov.u32 %x, 22; bra join; three: mov.u32 %x, 33; join: add.u32 %x, %x, 1;";
    // A table may stand behind its use in a body, too; NVRTC puts it before.
    check(body, [4; 3], 4, |a, _, _| [12, 23, 34, 12][(a & 3) as usize]);
}

#[test]
fn calls() {
    // A function that calls itself, with lanes that stop at different depths, and one that writes through a pointer to the caller's memory.
    let text = format!(
        "{HEAD}.func (.param .b32 result) factorial(.param .b32 n) {{\n\
         .reg .b32 %n, %m, %r; .reg .pred %p; ld.param.u32 %n, [n]; setp.lt.u32 %p, %n, 2; mov.u32 %r, 1; @%p bra end;\n\
         sub.u32 %m, %n, 1; {{ .param .b32 argument; st.param.b32 [argument+0], %m; .param .b32 back;\n\
         call.uni (back), factorial, (argument); ld.param.b32 %r, [back+0]; }} mul.lo.u32 %r, %r, %n;\n\
         end: st.param.b32 [result+0], %r; ret; }}\n\
         .func store(.param .b64 to, .param .b32 what) {{ .reg .b64 %t; .reg .b32 %w; ld.param.u64 %t, [to]; ld.param.u32 %w, [what];\n\
         st.u32 [%t], %w; ret; }}\n\
         .visible .entry k(.param .u64 p0) {{ .reg .b64 %o, %b, %l; .reg .b32 %t, %n, %r, %s; .reg .pred %p; .local .align 4 .b8 room[4];\n\
         ld.param.u64 %o, [p0]; mov.u32 %t, %tid.x; rem.u32 %n, %t, 7; setp.eq.u32 %p, %n, 6; mov.u32 %r, 0; mov.u32 %s, 0;\n\
         @%p bra skip; {{ .param .b32 argument; st.param.b32 [argument+0], %n; .param .b32 back;\n\
         call.uni (back), factorial, (argument); ld.param.b32 %r, [back+0]; }}\n\
         mov.u64 %l, room; cvta.local.u64 %l, %l; {{ .param .b64 to; .param .b32 what; st.param.b64 [to+0], %l; st.param.b32 [what+0], %t;\n\
         call.uni store, (to, what); }} ld.local.u32 %s, [room];\n\
         skip: add.u32 %r, %r, %s; mul.wide.u32 %b, %t, 4; add.u64 %o, %o, %b; st.global.u32 [%o], %r; ret; }}\n"
    );
    let bench = Bench::new(&text);
    let out = bench.room::<u32>(40);
    bench.run("k", LaunchShape::linear(1, 40), &[Argument::Pointer(out)]);
    for (thread, found) in bench.values::<u32>(out, 40).into_iter().enumerate() {
        let n = thread % 7;
        let expected = if n == 6 { 0 } else { (1..=n).product::<usize>() + thread };
        assert_eq!(found as usize, expected, "thread {thread}");
    }
}

#[test]
fn a_function_that_ends_some_threads() {
    let text = format!(
        "{HEAD}.func stop(.param .b32 n) {{ .reg .b32 %n; .reg .pred %p; ld.param.u32 %n, [n]; setp.lt.u32 %p, %n, 5; @%p ret; exit; }}\n\
         .visible .entry k(.param .u64 p0) {{ .reg .b64 %o, %b; .reg .b32 %t; ld.param.u64 %o, [p0]; mov.u32 %t, %tid.x;\n\
         {{ .param .b32 n; st.param.b32 [n+0], %t; call.uni stop, (n); }} mul.wide.u32 %b, %t, 4; add.u64 %o, %o, %b;\n\
         st.global.u32 [%o], %t; ret; }}\n"
    );
    let bench = Bench::new(&text);
    let out = bench.buffer(&[9_u32; 32]);
    bench.run("k", LaunchShape::linear(1, 32), &[Argument::Pointer(out)]);
    let expected: Vec<u32> = (0..32).map(|thread| if thread < 5 { thread } else { 9 }).collect();
    assert_eq!(bench.values::<u32>(out, 32), expected);
}

#[test]
fn barriers_that_reduce() {
    let yes = "setp.lt.u32 %p, %r0, 40;";
    check(&format!("{yes} bar.red.popc.u32 %x, 0, %p;"), [4; 3], 4, |_, _, _| 40);
    check(&format!("{yes} bar.red.and.pred %q, 0, %p; selp.u32 %x, 1, 0, %q;"), [4; 3], 4, |_, _, _| 0);
    check(&format!("{yes} bar.red.or.pred %q, 1, %p; selp.u32 %x, 1, 0, %q;"), [4; 3], 4, |_, _, _| 1);
    check("barrier.sync.aligned 3, 64; bar.cta.sync 0; mov.u32 %x, 1;", [4; 3], 4, |_, _, _| 1);
}

#[test]
fn ended_threads_do_not_hold_a_barrier() {
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 p0) {{ .reg .b64 %o; .reg .b32 %t; .reg .pred %p; mov.u32 %t, %tid.x; setp.ge.u32 %p, %t, 70;\n\
         @%p exit; bar.sync 0; ld.param.u64 %o, [p0]; red.global.add.u32 [%o], 1; ret; }}\n"
    );
    let bench = Bench::new(&text);
    let out = bench.buffer(&[0_u32]);
    bench.run("k", LaunchShape::linear(3, 128), &[Argument::Pointer(out)]);
    assert_eq!(bench.values::<u32>(out, 1), [210]);
}

#[test]
fn lanes_that_leave_are_missed_where_others_wait() {
    // Two lanes go on their own and end there.
    let text = format!(
        "{HEAD}.visible .entry k() {{ .reg .b32 %t; .reg .pred %p; mov.u32 %t, %laneid; setp.lt.u32 %p, %t, 2; @%p bra far;\n\
         bar.warp.sync -1;\n ret;\n far: mov.u32 %t, 1; ret; }}\n"
    );
    let fault = Bench::new(&text).fault("k", LaunchShape::linear(1, 32), &[]);
    let missed = FaultKind::DivergentLanes { opcode: "bar.warp.sync", named: u32::MAX, running: !3 };
    assert_eq!((&fault.kind, fault.thread), (&missed, [2, 0, 0]), "{fault}");
    assert!(
        text.lines().nth(fault.ptx_line as usize - 1).is_some_and(|line| line.contains("bar.warp.sync")),
        "{fault}"
    );
}

#[test]
fn a_trap_and_its_place() {
    let text = format!(
        "{HEAD}.visible .entry k() {{ .reg .b32 %t, %u; .reg .pred %p; mov.u32 %t, %tid.y; mov.u32 %u, %ctaid.z; add.u32 %t, %t, %u;\n\
         .loc 3 17 2\n setp.eq.u32 %p, %t, 4;\n @%p trap;\n ret; }}\n.file 3 \"model.cu\"\n"
    );
    let bench = Bench::new(&text);
    let shape = LaunchShape { grid: [2, 1, 4], block: [4, 3, 2], shared_bytes: 0 };
    let fault = bench.fault("k", shape, &[]);
    assert_eq!(
        (fault.block, fault.thread, fault.ptx_line, &fault.kind),
        ([0, 0, 2], [0, 2, 0], 7, &FaultKind::Trap)
    );
    assert_eq!(
        fault.to_string(),
        "kernel `k`, block (0, 0, 2), thread (0, 2, 0), PTX line 7 (model.cu:17): a trap"
    );
}
