//! A device with buffers, for tests: bytes in, a launch, bytes out.
#![allow(dead_code, reason = "each suite uses a part")]

use dtlc_emulator::{
    Argument, CudaDriver, DevicePointer, DriverError, Emulator, FaultKind, LaunchFault, LaunchShape,
    ModuleImage, Stream,
};

/// A device with one module.
pub struct Bench {
    pub device: Emulator,
    pub module: dtlc_emulator::ModuleHandle,
}

impl Bench {
    /// A device with this module, which must load.
    pub fn new(ptx: &str) -> Bench {
        let device = Emulator::default();
        let image = ModuleImage { name: "test", ptx, cubin: &[] };
        let module = device.load(&image).unwrap_or_else(|error| panic!("{error}"));
        Bench { device, module }
    }

    /// A buffer with these values.
    pub fn buffer<T: Plain>(&self, values: &[T]) -> DevicePointer {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.bytes()).collect();
        let pointer = self.device.allocate(bytes.len() as u64).expect("there is room");
        self.device.copy_to_device(pointer, &bytes, Stream::DEFAULT).expect("it fits");
        pointer
    }

    /// A buffer without values.
    pub fn room<T: Plain>(&self, count: usize) -> DevicePointer {
        self.device.allocate((count * T::BYTES) as u64).expect("there is room")
    }

    /// The values of a buffer.
    pub fn values<T: Plain>(&self, pointer: DevicePointer, count: usize) -> Vec<T> {
        let mut bytes = vec![0; count * T::BYTES];
        self.device
            .copy_to_host(&mut bytes, pointer, Stream::DEFAULT)
            .unwrap_or_else(|error| panic!("{error}"));
        bytes.chunks(T::BYTES).map(T::of).collect()
    }

    pub fn try_run(
        &self,
        kernel: &str,
        shape: LaunchShape,
        arguments: &[Argument],
    ) -> Result<(), DriverError> {
        let kernel = self.device.kernel(self.module, kernel)?;
        self.device.launch(kernel, shape, arguments, Stream::DEFAULT)
    }

    /// Runs a kernel, which must succeed.
    pub fn run(&self, kernel: &str, shape: LaunchShape, arguments: &[Argument]) {
        self.try_run(kernel, shape, arguments).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Runs a kernel, which must do wrong.
    pub fn fault(&self, kernel: &str, shape: LaunchShape, arguments: &[Argument]) -> LaunchFault {
        match self.try_run(kernel, shape, arguments) {
            Err(DriverError::Fault(fault)) => *fault,
            other => panic!("a fault is expected, not {other:?}"),
        }
    }

    pub fn fault_kind(&self, kernel: &str, shape: LaunchShape, arguments: &[Argument]) -> FaultKind {
        self.fault(kernel, shape, arguments).kind
    }
}

/// Numbers that lie in memory as they are.
pub trait Plain: Copy {
    const BYTES: usize;
    fn bytes(self) -> Vec<u8>;
    fn of(bytes: &[u8]) -> Self;
}

macro_rules! plain {
    ($($ty:ty),*) => {
        $(impl Plain for $ty {
            const BYTES: usize = size_of::<$ty>();
            fn bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
            fn of(bytes: &[u8]) -> $ty {
                <$ty>::from_le_bytes(bytes.try_into().expect("as many bytes"))
            }
        })*
    };
}

plain!(u8, u16, u32, u64, i32, i64, f32, f64);

/// Numbers that look random and are always the same.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Between minus one and one.
    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }
}

/// The PTX of a kernel file beside the tests.
pub fn kernel_text(name: &str) -> String {
    let path = format!("{}/tests/kernels/{name}.ptx", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}
