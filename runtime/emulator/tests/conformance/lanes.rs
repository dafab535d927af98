//! What lanes do together, one block of 64 threads at a time.

use super::{run, values};

/// Runs an instruction and gives its results by warps, beside what a held.
fn by_warps(body: &str) -> Vec<([u64; 32], [u64; 32])> {
    let rows = values([4; 3], 77);
    let found = run(body, [4; 3], 4, &rows);
    let a: Vec<u64> = rows.iter().map(|row| row[0]).collect();
    let warps = a.chunks(32).zip(found.chunks(32));
    warps.map(|(a, x)| (a.try_into().expect("a warp"), x.try_into().expect("a warp"))).collect()
}

/// A shuffle as PTX's reference has it, in its own words.
fn source(mode: &str, lane: i64, b: i64, c: i64) -> (i64, bool) {
    let (clamp, segment) = (c & 31, c >> 8 & 31);
    let (most, least) = ((lane & segment) | (clamp & !segment), lane & segment);
    let (j, inside) = match mode {
        "up" => (lane - b, lane - b >= most),
        "down" => (lane + b, lane + b <= most),
        "bfly" => (lane ^ b, lane ^ b <= most),
        _ => (least | (b & !segment & 31), least | (b & !segment & 31) <= most),
    };
    if inside { (j, true) } else { (lane, false) }
}

#[test]
fn shuffles() {
    for mode in ["up", "down", "bfly", "idx"] {
        for (b, segment) in [(1, 0), (5, 0), (16, 0), (31, 0), (3, 0x18), (1, 0x1e), (2, 0x10)] {
            let c = segment << 8 | if mode == "up" { 0 } else { 31 };
            let body = format!("shfl.sync.{mode}.b32 %x|%p, %a, {b}, {c}, -1; @!%p xor.b32 %x, %x, 1;");
            for (a, x) in by_warps(&body) {
                for (lane, x) in x.into_iter().enumerate() {
                    let (from, inside) = source(mode, lane as i64, b, c);
                    assert_eq!(x, a[from as usize] ^ u64::from(!inside), "{body} on lane {lane}");
                }
            }
        }
    }
}

#[test]
fn votes_and_ballots() {
    let ones = "and.b32 %r1, %a, 1; setp.ne.u32 %p, %r1, 0;";
    for (a, x) in by_warps(&format!("{ones} vote.sync.ballot.b32 %x, %p, 0xffffffff;")) {
        let expected = (0..32).fold(0, |mask, lane| mask | (a[lane] & 1) << lane);
        assert_eq!(x, [expected; 32]);
    }
    for limit in [0, 1, 64, u32::MAX] {
        let yes = format!("setp.le.u32 %p, %a, {limit};");
        for (kind, holds) in [
            ("all", (|yes| yes == 32) as fn(usize) -> bool),
            ("any", |yes| yes > 0),
            ("uni", |yes| yes == 32 || yes == 0),
        ] {
            for (a, x) in by_warps(&format!("{yes} vote.sync.{kind}.pred %q, %p, -1; selp.u32 %x, 1, 0, %q;"))
            {
                let count = a.iter().filter(|a| **a <= u64::from(limit)).count();
                assert_eq!(x, [u64::from(holds(count)); 32], "{kind} {limit}");
            }
        }
    }
}

#[test]
fn reductions() {
    type Join = fn(u64, u64) -> u64;
    let cases: [(&str, Join); 8] = [
        ("add.u32", |x, y| (x + y) & 0xffff_ffff),
        ("min.u32", u64::min),
        ("max.u32", u64::max),
        ("min.s32", |x, y| (x as i32).min(y as i32) as u32 as u64),
        ("max.s32", |x, y| (x as i32).max(y as i32) as u32 as u64),
        ("and.b32", |x, y| x & y),
        ("or.b32", |x, y| x | y),
        ("xor.b32", |x, y| x ^ y),
    ];
    for (name, join) in cases {
        for (a, x) in by_warps(&format!("redux.sync.{name} %x, %a, 0xffffffff;")) {
            let expected = a.iter().copied().reduce(join).expect("a warp has lanes");
            assert_eq!(x, [expected; 32], "{name}");
        }
    }
}

#[test]
fn matches() {
    for (a, x) in by_warps("and.b32 %r1, %a, 3; match.any.sync.b32 %x, %r1, -1;") {
        for lane in 0..32 {
            let expected =
                (0..32).fold(0, |mask, other| mask | u64::from(a[lane] & 3 == a[other] & 3) << other);
            assert_eq!(x[lane], expected);
        }
    }
    for (a, x) in by_warps("shr.u32 %r1, %i, 6; match.all.sync.b32 %x|%p, %r1, -1; @!%p mov.u32 %x, 7;") {
        assert_eq!(x, [0xffff_ffff; 32], "{a:?}");
    }
    for (_, x) in by_warps("match.all.sync.b32 %x|%p, %i, -1; @%p mov.u32 %x, 7;") {
        assert_eq!(x, [0; 32]);
    }
}

#[test]
fn parts_of_a_warp() {
    // Only the lanes of a branch run, and name, what is in it.
    let body = "mov.u32 %r1, %laneid; setp.lt.u32 %p, %r1, 10; mov.u32 %x, 0; @!%p bra other;\n\
                activemask.b32 %x; redux.sync.add.u32 %r2, %r1, 0x3ff; add.u32 %x, %x, %r2; bra end;\n\
                other: activemask.b32 %x; end: bar.warp.sync -1;";
    for (_, x) in by_warps(body) {
        for (lane, x) in x.into_iter().enumerate() {
            assert_eq!(x, if lane < 10 { 0x3ff + 45 } else { !0x3ff & 0xffff_ffff });
        }
    }
    let body = "elect.sync %x|%p, -1; selp.u32 %r1, 100, 0, %p; add.u32 %x, %x, %r1;";
    for (_, x) in by_warps(body) {
        assert_eq!((x[0], x[1], x[31]), (100, 0, 0));
    }
}

#[test]
fn lanes_that_come_first_wait_for_those_on_a_longer_way() {
    // The place where all meet lies before that where two lanes go on their own.
    let body = "mov.u32 %r1, %laneid; setp.lt.u32 %p, %r1, 2; mov.u32 %r2, 1; @%p bra far;\n\
                near: bar.warp.sync -1; redux.sync.add.u32 %x, %r2, -1; bra end;\n\
                far: mov.u32 %r2, 100; bra near; end:";
    for (_, x) in by_warps(body) {
        assert_eq!(x, [230; 32]);
    }
}

#[test]
fn special_registers() {
    type Define = fn(usize) -> usize;
    let cases: [(&str, Define); 9] = [
        ("%laneid", |thread| thread % 32),
        ("%warpid", |thread| thread / 32 % 2),
        ("%nwarpid", |_| 2),
        ("%lanemask_eq", |thread| 1 << (thread % 32)),
        ("%lanemask_lt", |thread| (1 << (thread % 32)) - 1),
        ("%lanemask_le", |thread| (2 << (thread % 32)) - 1),
        ("%lanemask_gt", |thread| !((2 << (thread % 32)) - 1) & 0xffff_ffff),
        ("%lanemask_ge", |thread| !((1 << (thread % 32)) - 1) & 0xffff_ffff),
        ("%nctaid.x", |_| 4),
    ];
    for (name, define) in cases {
        let found = run(&format!("mov.u32 %x, {name};"), [4; 3], 4, &values([4; 3], 1));
        for (thread, x) in found.into_iter().enumerate() {
            assert_eq!(x, define(thread) as u64, "{name} of {thread}");
        }
    }
}
