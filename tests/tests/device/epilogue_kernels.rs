//! Kernels that use a product's results one by one, `sums`, as fusion makes them: of so many lines, each of so many elements beside each other.

use dtlc_codegen::kir::{
    Access, AxisId, AxisKind, BinaryOperator, Combination, Comparison, Draw, ElementType, Index, Kernel,
    KernelBuilder, Register, TensorId, UnaryOperator, Variable,
};

/// A kernel of a line and an element of it, in two loops.
struct Rows {
    builder: KernelBuilder,
    size: [u64; 2],
    sums: TensorId,
    line: AxisId,
    d: AxisId,
}

impl Rows {
    fn new(name: &str, size: [u64; 2], element: ElementType) -> Rows {
        let mut builder = KernelBuilder::new(name);
        let sums = builder.tensor("sums", element, Access::Read, size[0] * size[1]);
        let line = builder.axis("line", size[0], AxisKind::Serial);
        let d = builder.axis("d", size[1], AxisKind::Vector);
        Rows { builder, size, sums, line, d }
    }

    fn whole(&mut self, name: &str, element: ElementType, access: Access) -> TensorId {
        self.builder.tensor(name, element, access, self.size[0] * self.size[1])
    }

    fn here(&self) -> Index {
        Index::from(self.d).plus(self.size[1] as i64, self.line)
    }

    fn load_sums(&mut self) -> Register {
        let here = self.here();
        self.builder.load(self.sums, here)
    }

    fn finish(mut self) -> Kernel {
        self.builder.leave();
        self.builder.leave();
        self.builder.finish().unwrap_or_else(|error| panic!("{error}"))
    }
}

/// `y = sums + bias`, by columns.
pub fn biased(size: [u64; 2], element: ElementType) -> Kernel {
    let mut rows = Rows::new("biased", size, element);
    let bias = rows.builder.tensor("bias", ElementType::F32, Access::Read, size[1]);
    let y = rows.whole("y", element, Access::Write);
    rows.builder.enter(rows.line);
    rows.builder.enter(rows.d);
    let (sum, column) = (rows.load_sums(), rows.builder.load(bias, rows.d));
    let value = rows.builder.add(sum, column);
    let here = rows.here();
    rows.builder.store(y, here, value);
    rows.finish()
}

/// `y = sums + x`, in one loop over all elements, tile by tile.
pub fn residual([lines, width]: [u64; 2], element: ElementType) -> Kernel {
    let mut builder = KernelBuilder::new("residual");
    let count = lines * width;
    let [x, sums] = ["x", "sums"].map(|name| builder.tensor(name, element, Access::Read, count));
    let y = builder.tensor("y", element, Access::Write, count);
    let (tile, d) = builder.tiled_axis("d", count, 48, AxisKind::Vector);
    builder.nest(tile, |builder| {
        builder.nest(d, |builder| {
            let (sum, addend) = (builder.load(sums, d), builder.load(x, d));
            let value = builder.add(sum, addend);
            builder.store(y, d, value);
        });
    });
    builder.finish().unwrap_or_else(|error| panic!("{error}"))
}

/// `y = silu(sums)`.
pub fn activated(size: [u64; 2], element: ElementType) -> Kernel {
    let mut rows = Rows::new("activated", size, element);
    let y = rows.whole("y", ElementType::F32, Access::Write);
    rows.builder.enter(rows.line);
    rows.builder.enter(rows.d);
    let sum = rows.load_sums();
    let gate = rows.builder.unary(UnaryOperator::Sigmoid, sum);
    let value = rows.builder.multiply(sum, gate);
    let here = rows.here();
    rows.builder.store(y, here, value);
    rows.finish()
}

/// `h = gelu(sums)` and `y = h x`: what a feed-forward layer keeps for its gradient and what it goes on with.
pub fn gated(size: [u64; 2], element: ElementType) -> Kernel {
    let mut rows = Rows::new("gated", size, element);
    let x = rows.whole("x", ElementType::Bf16, Access::Read);
    let h = rows.whole("h", element, Access::Write);
    let y = rows.whole("y", ElementType::Bf16, Access::Write);
    rows.builder.enter(rows.line);
    rows.builder.enter(rows.d);
    let here = rows.here();
    let (sum, factor) = (rows.load_sums(), rows.builder.load(x, here.clone()));
    let builder = &mut rows.builder;
    let root = builder.f32(std::f32::consts::FRAC_1_SQRT_2);
    let scaled = builder.multiply(sum, root);
    let (erf, one, half) = (builder.unary(UnaryOperator::Erf, scaled), builder.f32(1.0), builder.f32(0.5));
    let (both, halved) = (builder.add(erf, one), builder.multiply(sum, half));
    let gelu = builder.multiply(both, halved);
    let product = builder.multiply(gelu, factor);
    builder.store(h, here.clone(), gelu);
    builder.store(y, here, product);
    rows.finish()
}

/// `y = sums` where a number drawn for the element is below 0.8, else 0.
pub fn dropped(size: [u64; 2], element: ElementType) -> Kernel {
    let mut rows = Rows::new("dropped", size, element);
    let y = rows.whole("y", element, Access::Write);
    let [low, high, start] = ["low", "high", "start"].map(|name| rows.builder.integer(name, None));
    rows.builder.enter(rows.line);
    rows.builder.enter(rows.d);
    let (sum, here) = (rows.load_sums(), rows.here());
    let builder = &mut rows.builder;
    let counter = here.clone().plus(1, start);
    let drawn = builder.random([Index::from(low), Index::from(high)], counter, 1, Draw::Unit);
    let (most, zero) = (builder.f32(0.8), builder.f32(0.0));
    let is_kept = builder.compare(Comparison::Less, drawn, most);
    let value = builder.select(is_kept, sum, zero);
    builder.store(y, here, value);
    rows.finish()
}

/// `y += factor sums + table[id]`, with a factor and an id for each line.
pub fn accumulated(size: [u64; 2], element: ElementType) -> Kernel {
    const VOCABULARY: u32 = 5;
    let mut rows = Rows::new("accumulated", size, element);
    let factors = rows.builder.tensor("factors", ElementType::F32, Access::Read, size[0]);
    let ids = rows.builder.tensor("ids", ElementType::U32, Access::Read, size[0]);
    let table =
        rows.builder.tensor("table", ElementType::Bf16, Access::Read, u64::from(VOCABULARY) * size[1]);
    let y = rows.whole("y", ElementType::F32, Access::ReadWrite);
    rows.builder.enter(rows.line);
    let factor = rows.builder.load(factors, rows.line);
    let id = rows.builder.load(ids, rows.line);
    rows.builder.enter(rows.d);
    let row = Variable::Data { register: id, bound: VOCABULARY };
    let (sum, looked_up) =
        (rows.load_sums(), rows.builder.load(table, Index::from(rows.d).plus(size[1] as i64, row)));
    let value = rows.builder.multiply_add(factor, sum, looked_up);
    let here = rows.here();
    rows.builder.accumulate(y, here, Combination::Sum, value);
    rows.finish()
}

/// `y = max(sums, 0)` with heads of so many elements before lines.
pub fn by_heads<const HEAD: u64>([lines, width]: [u64; 2], element: ElementType) -> Kernel {
    let mut builder = KernelBuilder::new("by_heads");
    let sums = builder.tensor("sums", element, Access::Read, lines * width);
    let y = builder.tensor("y", element, Access::Write, lines * width);
    let line = builder.axis("line", lines, AxisKind::Serial);
    let head = builder.axis("head", width / HEAD, AxisKind::Serial);
    let d = builder.axis("d", HEAD, AxisKind::Vector);
    builder.nest(line, |builder| {
        builder.nest(head, |builder| {
            builder.nest(d, |builder| {
                let here = Index::from(d).plus(HEAD as i64, head).plus(width as i64, line);
                let (sum, zero) = (builder.load(sums, here), builder.f32(0.0));
                let value = builder.binary(BinaryOperator::Maximum, sum, zero);
                let there = Index::from(d).plus(HEAD as i64, line).plus((HEAD * lines) as i64, head);
                builder.store(y, there, value);
            });
        });
    });
    builder.finish().unwrap_or_else(|error| panic!("{error}"))
}

/// `y = sums`, turned: no epilogue, since an iteration has another element than its own.
pub fn with_turned_sums([lines, width]: [u64; 2], element: ElementType) -> Kernel {
    let mut rows = Rows::new("turned", [width, lines], element);
    let y = rows.whole("y", element, Access::Write);
    rows.builder.enter(rows.line);
    rows.builder.enter(rows.d);
    let turned = Index::from(rows.line).plus(width as i64, rows.d);
    let sum = rows.builder.load(rows.sums, turned);
    let here = rows.here();
    rows.builder.store(y, here, sum);
    rows.finish()
}
